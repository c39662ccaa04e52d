# SPDX-License-Identifier: Apache-2.0

"""What the devices of this host are in Placement: a provider for each.

Each device, and each region of a device whose regions are programmed one by
one, becomes a resource provider below that of the compute node. So an
allocation names the device.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import re

from os_acc import objects
from os_acc import reserved
from os_acc.kinds.mdev.driver import driver as mdev
from os_acc.objects import device as device_objects
from os_acc.placement import functions

#: A name that Placement accepts as a custom resource class or trait.
CUSTOM = re.compile(r'CUSTOM_[A-Z0-9_]{1,248}')


@dataclasses.dataclass
class Inventory:
    """The inventory of one resource class.

    :ivar total: how many handles there are
    :ivar reserved: how many of them are kept back from new instances
    """

    total: int = 0
    reserved: int = 0


@dataclasses.dataclass
class Part:
    """What a device has in one place.

    :ivar device: the device. Several devices have the same place if several
        entries of device_spec name VFs of one PF
    :ivar handles: its handles in this place
    """

    device: objects.Device
    handles: list[objects.DeviceHandleInfo]


@dataclasses.dataclass
class Provider:
    """A provider that a host reports.

    :ivar inventories: by resource class
    :ivar traits: those of its devices, and those of its functions
    """

    inventories: dict[str, Inventory] = dataclasses.field(default_factory=dict)
    traits: set[str] = dataclasses.field(default_factory=set)
    parts: list[Part] = dataclasses.field(default_factory=list)


def place(address: str, region: str = '') -> str:
    """Name what becomes one provider. The name is unique on the host."""
    return f'{address}_{region}' if region else address


def providers(
    devices: Iterable[objects.Device],
    allocated: Collection[str] = (),
    kept: Iterable[reserved.Reserved] = (),
) -> dict[str, Provider]:
    """Make the providers of devices, by the name from place().

    A handle counts if a guest has it or could get it. One that the host uses,
    or that does not exist, does not count. These are reserved: a handle that
    is kept back until an operator frees it, one that something has which has
    no allocation, and each free one of a device that has failed.

    A device that has nothing to count has a provider without an inventory. So
    has one that is programmed ahead of time only, until it holds a function.

    :param devices: as os_acc.get_devices() returns them. A device whose
        resource class does not begin with CUSTOM_ is left out
    :param allocated: the UUIDs of the VANs whose devices are allocated from
        these providers
    :param kept: what a document of os-acc apply reserves
    """
    ahead = [each for each in kept if each.ahead_of_time]
    made: dict[str, Provider] = {}
    for device in devices:
        name = device.resource_class
        if not CUSTOM.fullmatch(name):
            continue
        for region, part in _parts(device):
            provider = made.setdefault(
                place(device.address, region), Provider()
            )
            provider.parts.append(part)
            inside = _functions(device, region)
            provider.traits |= traits_of(device) | inside
            if functions.EMPTY in inside and _is_kept(part, region, ahead):
                continue
            count = _count(part, allocated)
            if count.total:
                inventory = provider.inventories.setdefault(name, Inventory())
                inventory.total += count.total
                inventory.reserved += count.reserved
    return made


def _parts(device: objects.Device) -> Iterator[tuple[str, Part]]:
    regions = {''}
    if device.programming == device_objects.PROGRAMMING_DYNAMIC:
        regions = {each.region or '' for each in device.handles} or {''}
    for region in sorted(regions):
        handles = [
            each
            for each in device.handles
            if len(regions) == 1 or (each.region or '') == region
        ]
        yield region, Part(device, handles)


def _is_kept(
    part: Part, region: str, kept: Iterable[reserved.Reserved]
) -> bool:
    """Whether a device is reserved in a place, and nobody has it."""
    if any(each.holder is not None for each in part.handles):
        return False
    addresses = {part.device.address}.union(
        *(reserved.names(None, each.handle) for each in part.handles)
    )
    return any(each.is_about(addresses, region) for each in kept)


def _functions(device: objects.Device, region: str) -> set[str]:
    """The traits of the function that a device has in a region."""
    if device.programming == device_objects.PROGRAMMING_NONE:
        return set()
    if region:
        found = device.functions.get(region)
    else:
        found = device.function_id or device.functions.get('')
    return {functions.EMPTY if found is None else functions.trait(found)}


def traits_of(device: objects.Device) -> set[str]:
    """The traits that a request for the device's resource class can have.

    If the resource class is that of one mdev type, the other types of the
    device cannot be requested by it.
    """
    requestable = mdev_types(device)
    others = {
        mdev.type_trait(kind.name)
        for kind in device.mdev_types
        if kind not in requestable
    }
    return set(device.traits) - others


def mdev_types(device: objects.Device) -> list[objects.DeviceMdevTypeInfo]:
    """The mdev types that a request for the device's class can get."""
    of_class = [
        kind
        for kind in device.mdev_types
        if mdev.type_trait(kind.name) == device.resource_class
    ]
    return of_class or list(device.mdev_types)


def _count(part: Part, allocated: Collection[str]) -> Inventory:
    device = part.device
    healthy = device.health == device_objects.OK
    if not device.handles and not device.mdev_types:
        # A driver that was written for Device 1.0 sets the numbers only.
        total = device.handles_total
        return Inventory(total, 0 if healthy else device.handles_free)
    made = Inventory()
    for each in part.handles:
        if device.mdev_types and each.holder is None:
            # A mediated device that no VAN has belongs to somebody else,
            # unless it is kept back: os-acc makes a new one for each request.
            counts = each.state == device_objects.RESERVED
        else:
            counts = each.state in (
                device_objects.FREE,
                device_objects.USED,
                device_objects.RESERVED,
            )
        made.total += counts
        made.reserved += counts and not (
            each.holder in allocated
            or (each.state == device_objects.FREE and healthy)
        )
    if device.mdev_types:
        types = mdev_types(device)
        room = min(kind.capacity for kind in types)
        left = min(kind.available for kind in types) if healthy else 0
        made.total += room
        made.reserved += max(room - left, 0)
    return made
