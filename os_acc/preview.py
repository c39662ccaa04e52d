# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""What plug and unplug would do, by a look at the journal and the host."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses

from os_acc import discovery
from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import objects
from os_acc.attach import plan
from os_acc.devices import boot
from os_acc.objects import device as device_objects
from os_acc.objects import van as states

PLUG = 'plug'
NOTHING = 'nothing'
PREPARE_AGAIN = 'prepare again'
ATTACH_AGAIN = 'attach again'
RELEASE_AND_PLUG = 'release, then plug'
UNPLUG = 'unplug'


@dataclasses.dataclass(frozen=True)
class Planned:
    """What would be done with one VAN.

    :ivar van: its UUID
    :ivar action: one of the constants of this module
    :ivar driver: name of the driver, which would do the device half
    :ivar plugin: name of the plugin, which would do the instance half
    :ivar state: the state of the VAN in the journal; None: it has none yet
    :ivar handle: the attach handle; None: the driver would choose it
    :ivar devices: the address of the device; several if the driver would
        choose one of them; empty if none fits
    :ivar obstacle: why it would fail, as far as a look can tell; None: there
        is no such reason
    """

    van: str
    action: str
    driver: str
    plugin: str
    state: str | None = None
    handle: str | None = None
    devices: list[str] = dataclasses.field(default_factory=list)
    obstacle: str | None = None


def plug(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    requests: Sequence[objects.AcceleratorRequest],
    live: bool = False,
    plugin: str | None = None,
) -> list[Planned]:
    """Say what os_acc.plug() would do. Nothing is changed.

    A free handle can be taken by somebody else before the plug, and the
    driver may find a reason against a device that discovery does not see.

    :param host: made with read_only=True
    :returns: what would be done for each request, in their order
    :raises ExceptionBase: what os_acc.plug() would raise before it touches
        anything
    """
    plans = plan.plan(host, instance_info, requests, live, plugin)
    uuid = instance_info.uuid
    plan.check_readable(host, uuid)
    existing = {e.van.uuid: e for e in host.journal.entries(uuid)}
    offers = _Offers(host)
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
            planned.append(_existing(entry, RELEASE_AND_PLUG))
    return planned


def unplug(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    wanted: Iterable[object] | None = None,
    live: bool = False,
) -> list[Planned]:
    """Say what os_acc.unplug() would do. Nothing is changed.

    :param host: made with read_only=True
    :param wanted: as the requests of os_acc.unplug()
    :returns: what would be done with each VAN, in the order in which they
        would be released; empty if there is none
    :raises InvalidRequest: if a value is wrong
    :raises JournalUnreadable: if the row of one of the VANs cannot be read
    """
    plan.check_instance(instance_info)
    uuids = None if wanted is None else plan.van_uuids(wanted)
    uuid = instance_info.uuid
    for row in host.journal.unreadable(uuid):
        if uuids is None or row.van_uuid in uuids:
            raise plan.unreadable(host, row)
    return [
        _existing(entry, UNPLUG, _cannot_release(host, entry.van, live))
        for entry in reversed(host.journal.entries(uuid))
        if uuids is None or entry.van.uuid in uuids
    ]


def unsettled(host: host_module.Host) -> list[str]:
    """List the instances that recovery would look at before the call."""
    return host.journal.unsettled(boot.boot_id())


def _existing(
    entry: journal.Entry, action: str, obstacle: str | None = None
) -> Planned:
    van = entry.van
    return Planned(
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
) -> Planned:
    """Say what a repeated plug would do with a VAN that is plugged."""
    van = entry.van
    if van.boot_id != boot.boot_id():
        return _existing(entry, PREPARE_AGAIN)
    try:
        prepared = host.extensions.driver(van.driver).is_intact(van)
        attached = host.extensions.plugin(van.plugin).is_intact(van)
    except Exception as err:
        return _existing(entry, NOTHING, exception.describe(err))
    if not prepared:
        return _existing(
            entry,
            PREPARE_AGAIN,
            'its device is not as the driver has prepared it, and the guest '
            'runs'
            if live
            else None,
        )
    return _existing(entry, NOTHING if attached else ATTACH_AGAIN)


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


class _Offers:
    """The devices of this host, and what earlier requests would take.

    :param host: has the drivers, which look for devices
    """

    def __init__(self, host: host_module.Host) -> None:
        self._failed: str | None = None
        try:
            self._devices = discovery.devices(host)
        except exception.DiscoveryFailed as err:
            self._devices, self._failed = err.devices, str(err)
        self._free = [device.handles_free for device in self._devices]

    def new(self, planned: plan.Plan) -> Planned:
        """Say what would be done for a request that has no VAN yet."""
        if planned.request.handle is not None:
            return self._named(planned, planned.request.handle)
        fits = [
            place
            for place, device in enumerate(self._devices)
            if _fits(device, planned)
        ]
        left = [place for place in fits if self._free[place]]
        if left:
            # The driver may choose another one: this only counts them.
            self._free[left[0]] -= 1
        wanted = planned.request.resource_class
        obstacle = None
        if not fits:
            if not planned.driver.takes_unlisted(planned.request):
                obstacle = self._failed or (
                    f'driver {planned.driver.name!r} lists no device of '
                    f'{wanted} with these traits'
                )
                for each in discovery.unread(
                    self._devices, planned.driver.name
                ):
                    obstacle += f'; {each.address}: {each.health_reason}'
        elif not left:
            obstacle = f'no device of {wanted} has a free handle left'
        free = [
            self._devices[place].address
            for place in fits
            if left and self._devices[place].handles_free
        ]
        return self._planned(planned, None, free, obstacle)

    def _named(
        self, planned: plan.Plan, handle: objects.AttachHandle
    ) -> Planned:
        """Say what would be done for a request that names its handle."""
        for device in self._devices:
            for each in device.handles:
                if each.handle.identity == handle.identity:
                    return self._planned(
                        planned, handle, [device.address], _why_not(each)
                    )
        if isinstance(handle, objects.MdevHandle):
            return self._mdev(planned, handle)
        address = handle.identity.partition('/')[2]
        obstacle = self._unlisted(planned, address)
        return self._planned(planned, handle, [], obstacle)

    def _mdev(self, planned: plan.Plan, handle: objects.MdevHandle) -> Planned:
        """Say what would be done for a mediated device that is to be made."""
        kinds = {
            (device.address, kind.name): kind.available
            for device in self._devices
            for kind in device.mdev_types
        }
        available = kinds.get((handle.parent, handle.type))
        obstacle = None
        if available is None:
            obstacle = self._unlisted(planned, handle.parent)
        elif not available:
            obstacle = f'no more of type {handle.type} can be made'
        return self._planned(planned, handle, [handle.parent], obstacle)

    def _unlisted(self, planned: plan.Plan, address: str) -> str | None:
        """Say why a device that discovery does not list cannot be taken."""
        driver = planned.driver
        try:
            if driver.takes_unlisted(planned.request):
                return None
            shown = driver.show_device(address) or {}
        except Exception as err:
            return exception.describe(err)
        status = shown.get('status')
        return f'driver {driver.name!r} does not list {address}' + (
            f': {status}' if status else ''
        )

    @staticmethod
    def _planned(
        planned: plan.Plan,
        handle: objects.AttachHandle | None,
        devices: list[str],
        obstacle: str | None,
    ) -> Planned:
        return Planned(
            planned.request.uuid,
            PLUG,
            planned.driver.name,
            planned.plugin.name,
            None,
            handle.identity if handle is not None else None,
            devices,
            obstacle,
        )


def _fits(device: objects.Device, planned: plan.Plan) -> bool:
    """Whether a device is what a request without a handle asks for."""
    request = planned.request
    return (
        device.driver == planned.driver.name
        and request.resource_class in (None, device.resource_class)
        and set(request.traits) <= set(device.traits)
    )


def _why_not(found: objects.DeviceHandleInfo) -> str | None:
    if found.state == device_objects.FREE:
        return None
    text = f'its handle is not free: {found.state}'
    if found.reason is not None:
        text += f', {found.reason}'
    return text + (f' (VAN {found.holder})' if found.holder else '')
