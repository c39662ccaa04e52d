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

from collections.abc import Collection
from collections.abc import Sequence
import logging
from typing import Any

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
from os_acc.attach import release
from os_acc.attach import steps
from os_acc.journal import events
from os_acc.kernel import sysfs
from os_acc.moving import calls
from os_acc.moving import plans
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)


def prepare(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    source_plan: Any,
    migration_uuid: str,
    callback: progress.Callback | None = None,
    requests: Sequence[objects.AcceleratorRequest] | None = None,
) -> objects.VANList:
    """See os_acc.migration.prepare."""
    call = calls.Call(host, instance_info, migration_uuid)
    wanted = plans.read(source_plan, call.instance)
    chosen = plans.chosen(wanted, requests)
    asked = plan.plan(host, instance_info, chosen, False)
    with call.begun(events.PREPARE, callback) as step:
        entries = call.entries()
        half_done = [e for e in entries if e.van.state not in states.WHOLE]
        plug.release_half_done(host, instance_info, half_done, step)
        existing = [e for e in entries if e not in half_done]
        if existing:
            call.check(existing, states.INCOMING, states.PLUGGED)
            calls.check_prepared(call, existing, wanted, chosen)
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
    vans: Collection[str] | None = None,
) -> objects.VANList:
    """See os_acc.migration.hand_over."""
    call = calls.Call(host, instance_info, migration_uuid)
    planned = calls.planned(vans)
    with call.begun(events.HAND_OVER, callback) as step:
        entries = call.entries()
        if not entries:
            call.refuse('it has no accelerators on this host')
        if planned is not None:
            calls.check_planned(call, entries, planned)
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
    call = calls.Call(host, instance_info, migration_uuid)
    with call.begun(events.SWITCH, callback) as step:
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
    call = calls.Call(host, instance_info, migration_uuid)
    with call.begun(events.FINISH, callback) as step:
        whole = [e for e in call.entries() if e.van.state in states.WHOLE]
        call.check(whole, states.OUTGOING)
        calls.check_left(call, whole, 'abort')
        return _release(call, call.own(), step)


def abort(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    migration_uuid: str,
    callback: progress.Callback | None = None,
) -> int:
    """See os_acc.migration.abort."""
    call = calls.Call(host, instance_info, migration_uuid)
    with call.begun(events.ABORT, callback) as step:
        entries = call.own()
        found = {entry.van.state for entry in entries}
        if states.PLUGGED in found:
            call.refuse('it has switched to this host; finish it instead')
        if states.OUTGOING in found:
            take_back(host, entries, step)
            return len(entries)
        if states.INCOMING in found:
            calls.check_left(call, entries, 'finish')
        return _release(call, entries, step)


def make_theirs(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    live: bool,
) -> None:
    """Give the VANs of a migration to the instance, on the target.

    :param live: also attach them to its guest, or to its definition if it is
        off
    """
    calls.check_whole(entries)
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

    What was detached is attached again. If the guest has ended meanwhile, its
    definition gets the devices, as long as it exists. A device with which the
    guest runs is not prepared again.
    """
    detached = [entry for entry in entries if entry.live]
    runs = guests.runs(host, entries)
    prepare_module.make_intact(
        host, entries, step, live=bool(runs) and not detached
    )
    if detached:
        # The plugin has taken them out of the definition too.
        live = runs is not False or guests.exists(host, entries) is not False
        _attach(host, detached, step, live=live)
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

    :param live: the guest runs, or is defined
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
    call: calls.Call, entries: Sequence[journal.Entry], step: steps.Steps
) -> int:
    if not entries:
        return 0
    errors = release.release(call.host, entries, step).errors
    if errors:
        failures.fail(exception.UnplugException, call.instance, errors)
    return len(entries)


def _vans(entries: Sequence[journal.Entry]) -> objects.VANList:
    return objects.VANList(objects=[entry.van for entry in entries])
