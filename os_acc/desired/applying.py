# SPDX-License-Identifier: Apache-2.0

"""Does the steps towards the state that a document describes.

The document is written to the journal before the first step, so that a step
that a crash, a reboot or a user of a device has prevented is done later: see
again().
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import itertools
import json
import logging

from oslo_config import cfg

from os_acc import exception
from os_acc import host as host_module
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc.desired import documents
from os_acc.desired import functions
from os_acc.desired import mdevs
from os_acc.desired import offered
from os_acc.desired import partitions
from os_acc.desired import pools
from os_acc.desired import reservations
from os_acc.desired import steps
from os_acc.desired import vfs
from os_acc.desired import vgpus
from os_acc.desired import work_queues
from os_acc.journal import desired as rows
from os_acc.kernel import sysfs
from os_acc.objects import report as results

LOG = logging.getLogger(__name__)

# The parts for which os-acc undoes what the document no longer has.
_AHEAD = (partitions.PART, vgpus.PART, work_queues.PART, mdevs.PART)


def apply(
    host: host_module.Host,
    document: documents.Document,
    callback: progress.Callback | None = None,
) -> objects.ApplyReport:
    """Do what is needed for a document. See os_acc.apply."""
    with host.locks.document():
        host.failed_steps.clear()
        before = host.journal.desired()
        let_go = {
            part: before.devices_of(part)
            for part in _AHEAD
            if before is not None
        }
        host.journal.save_desired(_row(document, let_go=let_go))
        try:
            done = offer(host.conf, document)
        except exception.ExceptionBase:
            # Nothing was touched: the earlier document stays.
            host.journal.save_desired(before)
            raise
        return _finish(host, document, before, done, callback)


def offer(
    conf: cfg.ConfigOpts, document: documents.Document
) -> list[objects.ApplyStep]:
    """Do the step that only root can do, and that needs no journal."""
    return [_do(each) for each in offered.find(conf, document)]


def check(
    host: host_module.Host, document: documents.Document
) -> objects.ApplyReport:
    """Say what apply() would do. This changes nothing."""
    found = itertools.chain(
        offered.find(host.conf, document),
        _steps(host, document, host.journal.desired()),
    )
    return objects.ApplyReport(steps=[_preview(each) for each in found])


def again(
    host: host_module.Host, anew: bool = False
) -> objects.ApplyReport | None:
    """Apply the document of the journal, unless all of it was done.

    It is for initialize(), and for os_acc.apply_again(): after a reboot, after
    a crash, and if something was in the way. Nothing is raised, because a
    service must be able to start: an error is in the report and in the log. A
    step that has failed in this process is not repeated, so that a device is
    not programmed in vain every minute.

    :param anew: also if all of it was done: a step may have failed, and the
        operator has repaired the cause
    :returns: None: there was nothing to do, or another process is doing it
    """
    try:
        if _unsettled(host, anew) is None:
            return None
        with host.locks.document(0):
            # Another process may have applied another document meanwhile.
            known = _unsettled(host, anew)
            if known is None:
                return None
            document = documents.stored(known)
            done = offer(host.conf, document)
            return _finish(host, document, known, done, None)
    except exception.LockTimeout:
        return None
    except Exception as err:
        _log(err)
        step = steps.Step(
            'document', steps.OTHERS, 'unknown', 'as the document says'
        )
        failed = _report_of(step, results.FAILED, exception.describe(err))
        return objects.ApplyReport(steps=[failed])


def before_instances(host: host_module.Host) -> None:
    """Do what instances need to get their devices again, after a reboot.

    again() does the rest. Nothing is raised, as there.
    """
    try:
        known = _unsettled(host)
        if known is None or not known.devices_of(partitions.PART):
            return
        with host.locks.document(0):
            if (known := _unsettled(host)) is not None:
                document = documents.stored(known)
                steps_first = partitions.before_instances(
                    host, document, known
                )
                for step in steps_first:
                    # If it fails, again() repeats it and reports the error.
                    # By then, device_spec has what the document offers.
                    with contextlib.suppress(exception.ExceptionBase):
                        _do(step)
    except exception.LockTimeout:
        return
    except Exception as err:
        _log(err)


def _log(err: Exception) -> None:
    log.error(
        LOG,
        err,
        'The document of os-acc apply is not applied: %s',
        exception.describe(err),
    )


def _unsettled(
    host: host_module.Host, anew: bool = False
) -> rows.Desired | None:
    """Read the document; None: there is none, or all of it was done."""
    known = host.journal.desired()
    if known is None or (known.settled == sysfs.boot_id() and not anew):
        return None
    return known


def _finish(
    host: host_module.Host,
    document: documents.Document,
    before: rows.Desired | None,
    done: list[objects.ApplyStep],
    callback: progress.Callback | None,
) -> objects.ApplyReport:
    """Do the other steps, now that device_spec says what is offered."""
    for step in _steps(host, document, before, callback):
        known = host.failed_steps.get((step.part, step.name, step.after))
        if known is None or step.act is None:
            done.append(_attempt(host, step))
        else:
            done.append(_report_of(step, results.FAILED, known))
    made = objects.ApplyReport(steps=done)
    left = {part: _left(part, before, made) for part in _AHEAD}
    waits = results.IN_THE_WAY in made.results()
    row = _row(document, None if waits else sysfs.boot_id(), left)
    # What was let go is not let go again.
    if row != host.journal.desired():
        host.journal.save_desired(row)
    return made


def _left(
    part: str, before: rows.Desired | None, made: objects.ApplyReport
) -> list[str]:
    """The devices that may still be set up as the earlier document says.

    Also those for which no step was found, because of an error.
    """
    done = {
        each.name
        for each in made.steps
        if each.part == part
        and each.result in (results.UNCHANGED, results.CHANGED)
    }
    had = [] if before is None else before.devices_of(part)
    return [name for name in had if name not in done]


def _steps(
    host: host_module.Host,
    document: documents.Document,
    before: rows.Desired | None,
    callback: progress.Callback | None = None,
) -> Iterator[steps.Step]:
    """The steps after offer(). Each is found when its turn comes."""
    earlier = _earlier(before)
    parts = {
        reservations.PART: reservations.find(
            earlier.reserved, document.reserved
        ),
        vfs.PART: vfs.find(host, document),
        partitions.PART: partitions.find(host, document, before),
        vgpus.PART: vgpus.find(host, document, before),
        work_queues.PART: work_queues.find(host, document, before),
        mdevs.PART: mdevs.find(host, document, before),
        functions.PART: functions.find(host, document, callback),
        pools.PART: pools.find(earlier, document),
    }
    return itertools.chain.from_iterable(
        steps.all_found(part, found) for part, found in parts.items()
    )


def _earlier(row: rows.Desired | None) -> documents.Document:
    """Read the document that was applied last; empty: there is none."""
    try:
        return documents.stored(row)
    except exception.InvalidRequest:
        return documents.Document()  # a later version of os-acc wrote it


def _row(
    document: documents.Document,
    settled: str | None = None,
    let_go: Mapping[str, list[str]] | None = None,
) -> rows.Desired:
    """Make the row of the journal.

    :param let_go: devices that the document may no longer have, by their part
    """
    made = document.as_object()
    gone = {
        part: sorted({*devices} - {*rows.devices_in(made, part)})
        for part, devices in (let_go or {}).items()
    }
    if any(gone.values()):
        made[rows.LET_GO] = gone
    return rows.Desired(json.dumps(made), settled)


def _do(step: steps.Step) -> objects.ApplyStep:
    if step.act is None or step.act() is False:
        return _report_of(step, results.UNCHANGED)
    LOG.info('Applied: %s %s: %s', step.part, step.name, step.after)
    return _report_of(step, results.CHANGED)


def _attempt(host: host_module.Host, step: steps.Step) -> objects.ApplyStep:
    """Do a step. Its error does not stop the others."""
    try:
        return _do(step)
    except steps.IN_THE_WAY as err:
        return _report_of(step, results.IN_THE_WAY, exception.describe(err))
    except Exception as err:
        why = exception.describe(err)
        if isinstance(err, exception.ExceptionBase):
            LOG.error('%s %s: %s', step.part, step.name, why)
        else:
            log.error(LOG, err, '%s %s failed:', step.part, step.name)
        host.failed_steps[step.part, step.name, step.after] = why
        return _report_of(step, results.FAILED, why)


def _preview(step: steps.Step) -> objects.ApplyStep:
    if step.fault is not None:
        return _report_of(step, results.FAILED, step.fault)
    try:
        if step.act is None or not step.changes():
            return _report_of(step, results.UNCHANGED)
        users = '; '.join(step.users()) or None
    except Exception as err:
        return _report_of(step, results.FAILED, exception.describe(err))
    return _report_of(step, results.WOULD_CHANGE, users)


def _report_of(
    step: steps.Step, result: str, reason: str | None = None
) -> objects.ApplyStep:
    return objects.ApplyStep(
        part=step.part,
        name=step.name,
        before=step.before,
        after=step.after,
        result=result,
        reason=reason,
    )
