# SPDX-License-Identifier: Apache-2.0
"""Releases VANs: for unplug, for the rollback of plug, and for recovery."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import logging

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc.attach import failures
from os_acc.attach import parallel
from os_acc.attach import plan
from os_acc.attach import steps
from os_acc.journal import events
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class Released:
    """The result of a release.

    :ivar done: the UUIDs of the VANs whose rows are deleted
    :ivar failed: the error of each undo that failed, by VAN UUID
    :ivar journal_errors: errors of writes to the journal
    """

    done: set[str] = dataclasses.field(default_factory=set)
    failed: dict[str, exception.ExceptionBase] = dataclasses.field(
        default_factory=dict
    )
    journal_errors: list[exception.ExceptionBase] = dataclasses.field(
        default_factory=list
    )

    @property
    def errors(self) -> list[exception.ExceptionBase]:
        """All errors, even if the VANs were released nevertheless."""
        return [*self.failed.values(), *self.journal_errors]

    def show(self, entries: Iterable[journal.Entry]) -> None:
        """Set error and state of the VANs as the journal has them now."""
        for entry in entries:
            van = entry.van
            if van.uuid in self.done:
                van.error = None
            else:
                errors = self.journal_errors
                van.error = str(self.failed.get(van.uuid) or errors[-1])
                van.state = states.ERROR


def unplug(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    wanted: Iterable[object] | None = None,
    live: bool = False,
    callback: progress.Callback | None = None,
) -> int:
    """See os_acc.unplug."""
    plan.check_instance(instance_info)
    uuids = None if wanted is None else plan.van_uuids(wanted)
    uuid = instance_info.uuid
    with steps.begun(
        host, events.UNPLUG, instance_info, exception.UnplugException, callback
    ) as step:
        unreadable = [
            plan.unreadable(host, row)
            for row in host.journal.unreadable(uuid)
            if uuids is None or row.van_uuid in uuids
        ]
        entries = [
            entry
            for entry in host.journal.entries(uuid)
            if uuids is None or entry.van.uuid in uuids
        ]
        if not entries and not unreadable:
            return 0
        for entry in entries:
            if live:
                plan.check_live(host.extensions.plugin(entry.van.plugin))
            entry.live = live
        errors = release(host, entries, step).errors + unreadable
    if errors:
        failures.fail(exception.UnplugException, uuid, errors)
    return len(entries)


def release(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
) -> Released:
    """Undo both halves of VANs of one instance, and delete their rows.

    The rows are marked as unplugging first. The instance halves are undone
    one by one, last plugged first, then the device halves in parallel. A VAN
    that fails keeps its row, in state error, and its device, because a guest
    may still use the device.

    Errors are in the result. No Exception is raised.

    :param entries: in the order in which they were plugged. The instance half
        is undone if ``attached`` is true, the device half if ``started`` is
        true
    :raises BaseException: an interruption, such as eventlet.Timeout, after
        all other undos
    """
    result = Released()
    step.begin_release()
    marked = _mark(host, entries, result)
    interrupt = _unplug(marked, step, result)
    detached = [e for e in marked if e.van.uuid not in result.failed]
    for entry in detached:
        entry.attached = False
    try:
        host.journal.mark(detached, states.UNPREPARING)
    except Exception as err:
        # The rows still have the state "unplugging", which is enough to
        # continue.
        LOG.warning('Not marked as unpreparing: %s', exception.describe(err))
    undone: set[str] = set()
    try:
        _unprepare(host, detached, step, result, undone)
    except BaseException as err:
        interrupt = interrupt or err
    _settle(host, marked, step, result, undone)
    if result.done >= {entry.van.uuid for entry in entries}:
        result.journal_errors.clear()
    if interrupt is not None:
        raise interrupt
    return result


def _mark(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    result: Released,
) -> list[journal.Entry]:
    """Write to the journal that the VANs are being unplugged."""
    # If this write fails, a VAN whose row says that both halves are done must
    # keep its device. A row in any other state already says that there is
    # something to undo.
    whole = {e.van.uuid for e in entries if e.van.state in states.WHOLE}
    try:
        host.journal.mark(entries, states.UNPLUGGING)
    except Exception as err:
        result.journal_errors.append(_journal_error(host, err))
    else:
        return list(entries)
    if whole:
        whole = _still_whole(host, whole, entries[0].van.instance_uuid)
    return [e for e in entries if e.van.uuid not in whole]


def _still_whole(
    host: host_module.Host, uuids: set[str], instance_uuid: str
) -> set[str]:
    """Return those of uuids whose rows have one of the states WHOLE.

    The state of a VAN object can be ahead of its row: the commit of the state
    "plugged" itself may have failed.

    :returns: all of uuids if the journal cannot be read
    """
    try:
        return uuids & {
            van.uuid
            for van in host.journal.vans(instance_uuid)
            if van.state in states.WHOLE
        }
    except Exception as err:
        LOG.warning('Cannot read the states: %s', exception.describe(err))
        return uuids


def _unplug(
    entries: Sequence[journal.Entry], step: steps.Steps, result: Released
) -> BaseException | None:
    """Undo instance halves, last plugged first.

    :returns: the exception that interrupted this thread during an undo, such
        as an eventlet.Timeout; None if there was none
    """
    interrupt: BaseException | None = None
    for entry in reversed(entries):
        if not entry.attached:
            continue
        try:
            step.unplug(entry)
        except exception.StepFailed as err:
            result.failed[entry.van.uuid] = err
            if steps.is_interruption(err.__cause__):
                interrupt = interrupt or err.__cause__
        except BaseException as err:
            result.failed[entry.van.uuid] = steps.failure(
                entry.van, 'unplug', err
            )
            interrupt = interrupt or err
    return interrupt


def _unprepare(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    result: Released,
    undone: set[str],
) -> None:
    """Undo device halves in parallel.

    :param undone: gets the UUIDs of the VANs whose device half is undone, or
        was never begun
    """

    def one(entry: journal.Entry) -> None:
        try:
            step.unprepare(entry)
        except exception.StepFailed as err:
            result.failed[entry.van.uuid] = err
        except BaseException as err:
            result.failed[entry.van.uuid] = steps.failure(
                entry.van, 'unprepareVAN', err
            )
        else:
            undone.add(entry.van.uuid)

    started = [entry for entry in reversed(entries) if entry.started]
    undone.update(e.van.uuid for e in entries if not e.started)
    parallel.run(one, started, host.conf.os_acc.max_workers)


def _settle(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    result: Released,
    undone: set[str],
) -> None:
    """Delete the rows of released VANs, and write the errors of the others."""
    released = [e.van for e in entries if e.van.uuid in undone]
    try:
        host.journal.settle(
            released,
            failures.texts(entries, result.failed),
            events=step.record.released(
                released, [entry.van for entry in entries], result.failed
            ),
        )
    except Exception as err:
        result.journal_errors.append(_journal_error(host, err))
        return
    for van in released:
        result.done.add(van.uuid)
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'unplugged %s from driver %r and plugin %r: %s',
            van.handle.identity if van.handle else None,
            van.driver,
            van.plugin,
            step.durations(van),
        )


def _journal_error(
    host: host_module.Host, err: Exception
) -> exception.ExceptionBase:
    if isinstance(err, exception.ExceptionBase):
        return err
    made = exception.JournalError(
        path=host.journal.path, reason=exception.describe(err)
    )
    made.__cause__ = err
    return made
