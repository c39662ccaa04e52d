# SPDX-License-Identifier: Apache-2.0
"""What plug and unplug would do, by a look at the journal and the host."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import objects
from os_acc.attach import plan
from os_acc.kernel import sysfs
from os_acc.objects import van as states
from os_acc.operations import offers as offers_module
from os_acc.operations import planned as planned_module


def plug(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    requests: Sequence[objects.AcceleratorRequest],
    live: bool = False,
    plugin: str | None = None,
) -> list[planned_module.Planned]:
    """Say what os_acc.plug() would do. Nothing is changed.

    It checks what the plug checks: the plan, discovery, and the driver's
    serves() and check_request(). A free handle can be taken by somebody else
    before the plug, and which processes have a device open is not seen without
    the privileged daemon.

    :param host: made with read_only=True
    """
    plans = plan.plan(host, instance_info, requests, live, plugin)
    uuid = instance_info.uuid
    plan.check_readable(host, uuid)
    existing = {e.van.uuid: e for e in host.journal.entries(uuid)}
    plan.check_settled(existing.values())
    offers = offers_module.Offers(host, requests, instance_info.project_id)
    planned = []
    for each in plans:
        entry = existing.get(each.request.uuid)
        if entry is None:
            planned.append(offers.new(each))
        elif entry.van.state == states.PLUGGED:
            plan.check_same(each.request, entry.request)
            plan.check_plugin(plugin, entry.van)
            planned.append(_plugged(host, entry, live))
        else:
            planned.append(_existing(entry, planned_module.RELEASE_AND_PLUG))
    return planned


def unplug(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    wanted: Iterable[object] | None = None,
    live: bool = False,
) -> list[planned_module.Planned]:
    """Say what os_acc.unplug() would do. Nothing is changed.

    :param host: made with read_only=True
    :returns: what would be done with each VAN, in the order in which they
        would be released; empty if there is none
    """
    plan.check_instance(instance_info)
    uuids = None if wanted is None else plan.van_uuids(wanted)
    uuid = instance_info.uuid
    for row in host.journal.unreadable(uuid):
        if uuids is None or row.van_uuid in uuids:
            raise plan.unreadable(host, row)
    return [
        _existing(
            entry,
            planned_module.UNPLUG,
            _cannot_release(host, entry.van, live),
        )
        for entry in reversed(host.journal.entries(uuid))
        if uuids is None or entry.van.uuid in uuids
    ]


def unsettled(host: host_module.Host) -> list[str]:
    """List the instances that recovery would look at before the call."""
    return host.journal.unsettled(sysfs.boot_id())


def _existing(
    entry: journal.Entry, action: str, obstacle: str | None = None
) -> planned_module.Planned:
    van = entry.van
    return planned_module.Planned(
        van.uuid,
        action,
        van.driver,
        van.plugin,
        van.state,
        van.handle.identity if van.handle is not None else None,
        [van.device] if van.device is not None else [],
        obstacle,
    )


def _plugged(
    host: host_module.Host, entry: journal.Entry, live: bool
) -> planned_module.Planned:
    """Say what a repeated plug would do with a VAN that is plugged."""
    van = entry.van
    if van.boot_id != sysfs.boot_id():
        return _existing(entry, planned_module.PREPARE_AGAIN)
    try:
        prepared = host.extensions.driver(van.driver).is_intact(van)
        attached = host.extensions.plugin(van.plugin).is_intact(van)
    except Exception as err:
        return _existing(
            entry, planned_module.NOTHING, exception.describe(err)
        )
    if not prepared:
        return _existing(
            entry,
            planned_module.PREPARE_AGAIN,
            'its device is not as the driver has prepared it, and the guest '
            'runs'
            if live
            else None,
        )
    return _existing(
        entry,
        planned_module.NOTHING if attached else planned_module.ATTACH_AGAIN,
    )


def _cannot_release(
    host: host_module.Host, van: objects.VAN, live: bool
) -> str | None:
    try:
        host.extensions.driver(van.driver)
        plugin = host.extensions.plugin(van.plugin)
        if live:
            plan.check_live(plugin)
    except Exception as err:
        return exception.describe(err)
    return None
