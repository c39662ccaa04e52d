# SPDX-License-Identifier: Apache-2.0
"""plug: runs the steps in their order, and undoes them after a failure."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import logging

from oslo_utils import timeutils

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc.attach import failures
from os_acc.attach import plan as plan_module
from os_acc.attach import prepare
from os_acc.attach import recorder
from os_acc.attach import release
from os_acc.attach import steps
from os_acc.journal import demand
from os_acc.journal import events
from os_acc.kernel import sysfs
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)

# The errors that say that there is no device, or that none is free.
_NONE_FREE = (
    exception.DeviceNotFound,
    exception.DeviceBusy,
    exception.DeviceInUseByHost,
)


def plug(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    requests: Sequence[objects.AcceleratorRequest],
    live: bool = False,
    callback: progress.Callback | None = None,
    plugin: str | None = None,
) -> objects.VANList:
    """See os_acc.plug."""
    plans = plan_module.plan(host, instance_info, requests, live, plugin)
    with steps.begun(
        host, events.PLUG, instance_info, exception.PlugException, callback
    ) as step:
        entries = _take_up(host, instance_info, plans, live, step, plugin)
        new = [e for e in entries if e.van.state == states.PREPARING]
        if new:
            plug_new(host, new, step)
    return objects.VANList(objects=[entry.van for entry in entries])


def replug(
    host: host_module.Host,
    instance: objects.InstanceInfo | str,
    callback: progress.Callback | None = None,
) -> objects.VANList:
    """See os_acc.replug."""
    if isinstance(instance, objects.InstanceInfo):
        uuid: str = instance.uuid
    else:
        uuid = plan_module.van_uuid(
            instance, 'instance_info', 'an InstanceInfo or a UUID'
        )
        instance = uuid
    with steps.begun(
        host, events.REPLUG, instance, exception.PlugException, callback
    ) as step:
        plan_module.check_readable(host, uuid)
        plugged = []
        entries = host.journal.entries(uuid)
        plan_module.check_settled(entries)
        for entry in entries:
            if entry.van.state == states.PLUGGED:
                plugged.append(entry)
                continue
            log.about(LOG, uuid, entry.van.uuid).warning(
                'not plugged again: its state is %s', entry.van.state
            )
        prepare.make_intact(host, plugged, step, live=False)
    return objects.VANList(objects=[entry.van for entry in plugged])


def _take_up(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    plans: Sequence[plan_module.Plan],
    live: bool,
    step: steps.Steps,
    plugin: str | None,
) -> list[journal.Entry]:
    """Find the entries that exist already, and make the missing ones.

    VANs that an earlier call left half done are released first. VANs that
    were plugged before a reboot of the host, or whose devices are not intact,
    are prepared again.

    :returns: the entries in the order of the plans. New ones are in state
        preparing and not yet in the journal
    """
    uuid = instance_info.uuid
    plan_module.check_readable(host, uuid)
    existing = {e.van.uuid: e for e in host.journal.entries(uuid)}
    plan_module.check_settled(existing.values())
    asked = [
        existing[p.request.uuid] for p in plans if p.request.uuid in existing
    ]
    plugged = {e.van.uuid: e for e in asked if e.van.state == states.PLUGGED}
    for plan in plans:
        if plan.request.uuid in plugged:
            before = plugged[plan.request.uuid].request
            plan_module.check_same(plan.request, before)
            plan_module.check_plugin(plugin, plugged[plan.request.uuid].van)
            # The journal does not have the password and query of a URL.
            before.bitstream = plan.request.bitstream
    half_done = [e for e in asked if e.van.state != states.PLUGGED]
    release_half_done(host, instance_info, half_done, step)
    prepare.make_intact(host, list(plugged.values()), step, live)
    now = sysfs.boot_id()
    return [
        plugged.get(plan.request.uuid)
        or new_entry(plan, instance_info, live, now, host.owner)
        for plan in plans
    ]


def release_half_done(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
) -> None:
    """Release what an earlier call has left half done."""
    if not entries:
        return
    recovery = recorder.Recorder(events.RECOVER, instance_info)
    result = release.release(host, entries, step.recorded_by(recovery))
    if result.errors:
        uuid = instance_info.uuid
        failures.fail(exception.PlugException, uuid, result.errors)


def plug_new(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    state: str = states.PLUGGED,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Do all steps of new VANs; undo all of it if one fails.

    :param check: raises an error if the instance cannot use what the drivers
        have prepared
    """
    vans = [entry.van for entry in entries]
    try:
        host.journal.add(entries)
    except exception.DeviceBusy:
        raise  # the journal has written none of the rows
    except BaseException as err:
        # Some errors leave it open whether the rows were written.
        _roll_back(host, entries, step, err)
        raise
    try:
        if failed := prepare.prepare(host, entries, step):
            _note_demand(host, entries, failed)
            raise next(iter(failed.values()))
        check()
        _set_state(vans, states.PLUGGING)
        host.journal.save_all(vans, attached=True)
        for entry in entries:
            entry.attached = True
            step.plug(entry)
        for entry in entries:
            step.postplug(entry)
        _set_state(vans, state)
        host.journal.save_all(vans, events=step.record.ended())
    except BaseException as err:
        _roll_back(host, entries, step, err)
        raise
    for van in vans:
        log.about(LOG, van.instance_uuid, van.uuid).info(
            '%s %s by driver %r and plugin %r: %s',
            state,
            van.handle.identity if van.handle else None,
            van.driver,
            van.plugin,
            step.durations(van),
        )


def _note_demand(
    host: host_module.Host,
    entries: Iterable[journal.Entry],
    failed: prepare.Failed,
) -> None:
    """Record which requests found no device.

    A request that names its attach handle wants no other device, so it is no
    demand.
    """
    now = events.now()
    found, new_events = [], []
    for entry in entries:
        err = failed.get(entry.van.uuid)
        request = entry.request
        if (
            err is None
            or request.handle is not None
            or not isinstance(err.__cause__, _NONE_FREE)
        ):
            continue
        made = demand.Demand(
            request.resource_class,
            tuple(sorted(request.traits)),
            request.function_id,
            1,
            now,
            now,
        )
        found.append(made)
        new_events.append(
            events.Event(
                at=now,
                operation=events.DEMAND,
                step=None,
                result=events.FAILED,
                van_uuid=entry.van.uuid,
                instance_uuid=entry.van.instance_uuid,
                instance_name=entry.instance_info.name,
                extension=entry.van.driver,
                reason=made.text(),
            )
        )
    if found:
        host.journal.note_demand(found, new_events)


def _roll_back(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    cause: BaseException,
) -> None:
    """Undo a plug, and raise PlugException for an Exception.

    If the cause is not an Exception, such as KeyboardInterrupt or
    eventlet.Timeout, it returns, and the caller raises the cause itself.
    """
    instance_uuid = entries[0].van.instance_uuid
    log.about(LOG, instance_uuid).warning(
        'plug failed, undoing it: %s', exception.describe(cause)
    )
    step.record.fail(cause)
    errors = release.release(host, entries, step).errors
    if isinstance(cause, Exception):
        failures.fail(exception.PlugException, instance_uuid, errors, cause)


def new_entry(
    plan: plan_module.Plan,
    instance_info: objects.InstanceInfo,
    live: bool,
    boot_id: str,
    owner: str,
    migration_uuid: str | None = None,
) -> journal.Entry:
    """Make the entry of a VAN that is to be plugged."""
    # A versioned object is stored with whole seconds only.
    now = timeutils.utcnow(with_timezone=True).replace(microsecond=0)
    van = objects.VAN(
        uuid=plan.request.uuid,
        instance_uuid=instance_info.uuid,
        driver=plan.driver.name,
        plugin=plan.plugin.name,
        owner=owner,
        state=states.PREPARING,
        boot_id=boot_id,
        migration_uuid=migration_uuid,
        created_at=now,
        updated_at=now,
    )
    return journal.Entry(van, plan.request, instance_info, live, started=False)


def _set_state(vans: Sequence[objects.VAN], state: str) -> None:
    for van in vans:
        van.state = state
