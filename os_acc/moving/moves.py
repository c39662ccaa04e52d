# SPDX-License-Identifier: Apache-2.0

"""The steps of a migration, each on its host.

The VANs of an instance are ``plugged`` on at most one host:

    source   plugged --hand_over--> outgoing --finish--> (gone)
    target   (none) --prepare--> incoming --switch--> plugged

The source gives them up before the target takes them. What the target says
decides: a migration that has not switched there can be undone on both sides,
on the target first. One commit of a journal writes each arrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import logging
from typing import Any
from typing import NoReturn

from oslo_utils import timeutils

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc.attach import failures
from os_acc.attach import guests
from os_acc.attach import plan
from os_acc.attach import plug
from os_acc.attach import prepare as prepare_module
from os_acc.attach import recorder
from os_acc.attach import release
from os_acc.attach import steps
from os_acc.journal import events
from os_acc.kernel import sysfs
from os_acc.moving import plans
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)

#: Why nothing is decided about a guest, as guests.stays() says.
UNDECIDED = (
    'its guest is paused on this host, or is being moved; wait for the end of '
    'that, or look at both hosts where it runs'
)


def prepare(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    source_plan: Any,
    migration_uuid: str,
    callback: progress.Callback | None = None,
    requests: Sequence[objects.AcceleratorRequest] | None = None,
) -> objects.VANList:
    """See os_acc.migration.prepare."""
    call = _Call(host, instance_info, migration_uuid)
    wanted = plans.read(source_plan, call.instance)
    chosen = plans.chosen(wanted, requests)
    asked = plan.plan(host, instance_info, chosen, False)
    with call.begun(events.PREPARE, exception.PlugException, callback) as step:
        entries = call.entries()
        half_done = [e for e in entries if e.van.state not in states.WHOLE]
        plug.release_half_done(host, instance_info, half_done, step)
        existing = [e for e in entries if e not in half_done]
        if existing:
            call.check(existing, states.INCOMING, states.PLUGGED)
            _check_prepared(call, existing, wanted, chosen)
            prepare_module.make_intact(host, existing, step, live=False)
            return _vans(existing)
        now = sysfs.boot_id()
        new = [
            plug.new_entry(
                each, instance_info, False, now, host.owner, call.migration
            )
            for each in asked
        ]
        for entry in new:
            entry.van.migration_vans = [each.van.uuid for each in new]

        def check() -> None:
            for entry, each in zip(new, wanted, strict=True):
                plans.check_prepared(each, entry.van)

        plug.plug_new(host, new, step, states.INCOMING, check)
        return _vans(new)


def hand_over(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    live: bool = False,
    callback: progress.Callback | None = None,
) -> objects.VANList:
    """See os_acc.migration.hand_over."""
    call = _Call(host, instance_info, migration_uuid)
    cls = exception.UnplugException
    with call.begun(events.HAND_OVER, cls, callback) as step:
        entries = call.entries()
        if not entries:
            call.refuse('it has no accelerators on this host')
        again = {entry.van.state for entry in entries} != {states.PLUGGED}
        if again:
            call.check(entries, states.OUTGOING)
        for entry in entries:
            if live:
                plan.check_live(host.extensions.plugin(entry.van.plugin))
            entry.live = live or (again and entry.live)
        # Write live first, so that after a crash at any later moment it is
        # known what to attach again.
        host.journal.mark(entries, entries[0].van.state)
        for entry in entries:
            entry.van.state = states.OUTGOING
            entry.van.migration_uuid = call.migration
        ended = [] if live else step.record.ended()
        host.journal.save_all([e.van for e in entries], events=ended)
        if live:
            _detach(host, entries, step)
        return _vans(entries)


def switch(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    live: bool = False,
    callback: progress.Callback | None = None,
) -> objects.VANList:
    """See os_acc.migration.switch."""
    call = _Call(host, instance_info, migration_uuid)
    with call.begun(events.SWITCH, exception.PlugException, callback) as step:
        entries = call.entries()
        if not entries:
            call.refuse('it is not prepared on this host, or was aborted')
        call.check(entries, states.INCOMING, states.PLUGGED)
        incoming = entries[0].van.state == states.INCOMING
        if (
            incoming
            and has_expired(host, entries)
            and guests.runs(host, entries) is not True
        ):
            call.refuse(
                'it was prepared more than [os_acc] migration_timeout '
                f'({host.conf.os_acc.migration_timeout:g} s) ago, so that the '
                'source may have taken its accelerators back; abort it, on '
                'this host first'
            )
        if live:
            for entry in entries:
                plan.check_live(host.extensions.plugin(entry.van.plugin))
        if incoming or live:
            make_theirs(host, entries, step, live)
        return _vans(entries)


def finish(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    callback: progress.Callback | None = None,
) -> int:
    """See os_acc.migration.finish."""
    call = _Call(host, instance_info, migration_uuid)
    cls = exception.UnplugException
    with call.begun(events.FINISH, cls, callback) as step:
        whole = [e for e in call.entries() if e.van.state in states.WHOLE]
        call.check(whole, states.OUTGOING)
        _check_left(call, whole, 'abort')
        return _release(call, call.own(), step)


def abort(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    callback: progress.Callback | None = None,
) -> int:
    """See os_acc.migration.abort."""
    call = _Call(host, instance_info, migration_uuid)
    cls = exception.UnplugException
    with call.begun(events.ABORT, cls, callback) as step:
        entries = call.own()
        found = {entry.van.state for entry in entries}
        if states.PLUGGED in found:
            call.refuse('it has switched to this host; finish it instead')
        if states.OUTGOING in found:
            take_back(host, entries, step)
            return len(entries)
        if states.INCOMING in found:
            _check_left(call, entries, 'finish')
        return _release(call, entries, step)


def make_theirs(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    live: bool,
) -> None:
    """Give the VANs of a migration to the instance, on the target.

    :param live: also attach them to its running guest
    :raises MigrationConflict: if one that was prepared with them is missing
    """
    _check_whole(entries)
    prepare_module.make_intact(host, entries, step, live=False)
    if live:
        _attach(host, entries, step, live=True)
    _settle(host, entries, step)


def take_back(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
) -> None:
    """Assign outgoing VANs to the instance again, on the source.

    What was detached is attached again. If the guest has ended meanwhile, it
    gets the devices at its next start. A device with which the guest runs is
    not prepared again.
    """
    detached = [entry for entry in entries if entry.live]
    runs = guests.runs(host, entries)
    prepare_module.make_intact(
        host, entries, step, live=bool(runs) and not detached
    )
    _attach(host, detached, step, live=runs is not False)
    for entry in entries:
        entry.van.migration_uuid = None
    _settle(host, entries, step)


def can_attach(
    host: host_module.Host, entries: Sequence[journal.Entry]
) -> bool:
    """Whether VANs can be attached to a guest that runs.

    A guest that came without its devices lacks them; what it has stays.
    """
    return all(
        host.extensions.plugin(entry.van.plugin).supports_live
        for entry in entries
    )


def has_expired(
    host: host_module.Host, entries: Sequence[journal.Entry]
) -> bool:
    """Whether migration_timeout has passed. Until then only the caller acts.

    The time of the target begins first and ends first: for an incoming VAN it
    begins with its creation, for an outgoing one with its last change.
    """
    now = timeutils.utcnow(with_timezone=True)
    begun = [
        each.van.created_at
        if each.van.state == states.INCOMING
        else each.van.updated_at
        for each in entries
    ]
    newest = max(each or now for each in begun)
    seconds: float = host.conf.os_acc.migration_timeout
    return (now - newest).total_seconds() > seconds


def _attach(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    live: bool,
) -> None:
    """Attach VANs to a guest; what is attached already stays so.

    :param live: the guest runs
    """
    if not entries:
        return
    for entry in entries:
        entry.live, entry.attached = live, True
    host.journal.mark(entries, entries[0].van.state)
    for entry in entries:
        step.plug(entry)


def _detach(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
) -> None:
    """Detach VANs from a running guest, or leave all of them as they were."""
    try:
        for entry in reversed(entries):
            if entry.attached:
                step.unplug(entry)
        host.journal.save_all(
            [entry.van for entry in entries],
            attached=False,
            events=step.record.ended(),
        )
    except Exception as err:
        step.record.fail(err)
        try:
            take_back(host, entries, step)
        except Exception as undo:
            LOG.error(
                'The accelerators of instance %s stay outgoing: %s',
                entries[0].van.instance_uuid,
                exception.describe(undo),
            )
        raise


def _settle(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
) -> None:
    """Write that VANs are plugged for the instance, in one commit."""
    vans = [entry.van for entry in entries]
    for van in vans:
        van.state, van.migration_vans = states.PLUGGED, None
    host.journal.save_all(vans, events=step.record.settled(vans))
    for van in vans:
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'plugged on this host by a migration'
        )


def _release(
    call: _Call, entries: Sequence[journal.Entry], step: steps.Steps
) -> int:
    if not entries:
        return 0
    errors = release.release(call.host, entries, step).errors
    if errors:
        failures.fail(exception.UnplugException, call.instance, errors)
    return len(entries)


def _check_left(
    call: _Call, entries: Sequence[journal.Entry], instead: str
) -> None:
    """Check that no guest on this host has the VANs, or may yet get them.

    :param instead: the call for a guest that runs here
    :raises MigrationConflict: if one has
    """
    stays = guests.stays(call.host, entries) if entries else False
    if stays:
        call.refuse(f'its guest runs on this host; {instead} it instead')
    if stays is None:
        call.refuse(UNDECIDED)


def _check_prepared(
    call: _Call,
    entries: Sequence[journal.Entry],
    wanted: Sequence[objects.MigrationAccelerator],
    chosen: Sequence[objects.AcceleratorRequest],
) -> None:
    """Check that a repeated prepare asks for what is prepared."""
    found = {entry.van.uuid: entry for entry in entries}
    if found.keys() != {each.uuid for each in wanted}:
        call.refuse('it was prepared for other accelerators; abort it first')
    for each, request in zip(wanted, chosen, strict=True):
        entry = found[each.uuid]
        plan.check_same(request, entry.request)
        plans.check_prepared(each, entry.van)


def _check_whole(entries: Sequence[journal.Entry]) -> None:
    """Check that incoming VANs are all that were prepared together.

    The guest is defined with all of them, and must not start with fewer.

    :raises MigrationConflict: if one is missing
    """
    prepared = {
        uuid for each in entries for uuid in each.van.migration_vans or ()
    }
    missing = prepared - {each.van.uuid for each in entries}
    if missing:
        raise exception.MigrationConflict(
            instance=entries[0].van.instance_uuid,
            reason=f'VAN {", ".join(sorted(missing))} was prepared for it on '
            'this host, and has been unplugged since; abort the migration, '
            'on this host first. If the guest runs on this host already, '
            'unplug its other VANs here, finish the migration on the source, '
            'and plug them again',
        )


def _vans(entries: Sequence[journal.Entry]) -> objects.VANList:
    return objects.VANList(objects=[entry.van for entry in entries])


class _Call:
    """One call of a migration.

    :raises InvalidRequest: if an argument is wrong
    """

    def __init__(
        self,
        host: host_module.Host,
        instance_info: objects.InstanceInfo,
        migration_uuid: str,
    ) -> None:
        plan.check_instance(instance_info)
        self.instance: str = instance_info.uuid
        self.migration = plan.van_uuid(migration_uuid, 'migration_uuid')
        self.host, self._info = host, instance_info

    @contextlib.contextmanager
    def begun(
        self,
        operation: str,
        cls: type[exception.AttachException],
        callback: progress.Callback | None,
    ) -> Iterator[steps.Steps]:
        """Hold the lock of the instance, and record the call."""
        with (
            failures.raised_as(cls, self.instance),
            recorder.recorded(self.host, operation, self._info) as record,
            self.host.locks.instance(self.instance),
        ):
            yield steps.Steps(self.host, record, callback)

    def entries(self) -> list[journal.Entry]:
        """The rows of the instance.

        :raises JournalUnreadable: if one cannot be read
        """
        plan.check_readable(self.host, self.instance)
        return self.host.journal.entries(self.instance)

    def own(self) -> list[journal.Entry]:
        """The rows of the migration."""
        return [
            entry
            for entry in self.entries()
            if entry.van.migration_uuid == self.migration
        ]

    def check(self, entries: Iterable[journal.Entry], *expected: str) -> None:
        """Check that VANs are of this migration, and in one of the states.

        :raises MigrationConflict: if one is not
        """
        for entry in entries:
            van = entry.van
            if (
                van.state not in expected
                or van.migration_uuid != self.migration
            ):
                by = van.migration_uuid
                self.refuse(
                    f'VAN {van.uuid} is {van.state}'
                    + (f' by migration {by}' if by else '')
                    + f', expected {expected[0]} by migration '
                    f'{self.migration}'
                )

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error of a call that changes nothing."""
        raise exception.MigrationConflict(
            instance=self.instance, reason=reason
        )
