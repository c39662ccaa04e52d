# SPDX-License-Identifier: Apache-2.0

"""What the devices of this host are in Placement, as Nova can report them.

Nova adds the inventories and traits of a provider.yaml to the resource
provider of the compute node. It accepts only names that begin with CUSTOM_
(_validate_provider_config in nova/compute/provider_config.py).
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import re

from os_acc import objects
from os_acc.kinds.mdev.driver import driver as mdev
from os_acc.objects import device as device_objects

#: A name that Placement accepts as a custom resource class or trait.
CUSTOM = re.compile(r'CUSTOM_[A-Z0-9_]{1,248}')


@dataclasses.dataclass
class Inventory:
    """The inventory of one resource class.

    :ivar total: how many handles the devices have
    :ivar reserved: how many of them are kept back until an operator frees
        them
    """

    total: int = 0
    reserved: int = 0


@dataclasses.dataclass
class Offer:
    """What a host offers.

    :ivar inventories: by resource class
    :ivar traits: of all devices of the inventories
    :ivar notes: a sentence for each thing that was left out, or counted in a
        way that an operator may not expect
    """

    inventories: dict[str, Inventory]
    traits: set[str]
    notes: list[str]


def offer(
    devices: Iterable[objects.Device],
    unusable: Callable[[str], str | None] = lambda name: None,
    only: Iterable[str] = (),
) -> Offer:
    """Make the inventories of devices.

    Handles that are free or in use count. Handles that the host uses, or that
    do not exist, do not count.

    :param devices: as os_acc.get_devices() returns them
    :param unusable: says why no request for a resource class can be served;
        None: it can
    :param only: the resource classes to offer; empty: all
    """
    made = Offer({}, set(), [])
    refused: set[str] = set()
    chosen = set(only)
    for device in devices:
        name = device.resource_class
        if chosen and name not in chosen:
            continue
        where = f'{device.address} ({name or "no resource class"})'
        why = _refusal(name) or unusable(name)
        if why is not None:
            made.notes.append(f'{where} is left out: {why}')
            continue
        count = _count(device)
        made.notes += [
            f'{where}: {text}' for text in _remarks(device, count.total)
        ]
        if not count.total:
            continue
        inventory = made.inventories.setdefault(name, Inventory())
        inventory.total += count.total
        inventory.reserved += count.reserved
        for trait in traits_of(device):
            fits = CUSTOM.fullmatch(trait) is not None
            (made.traits if fits else refused).add(trait)
    if refused:
        made.notes.append(
            f'the traits {", ".join(sorted(refused))} are left out: Nova '
            'accepts only traits that begin with CUSTOM_ in this file'
        )
    made.notes += [
        f'no device of this host has the resource class {name}, or it is left '
        'out'
        for name in sorted(chosen - made.inventories.keys())
    ]
    return made


def traits_of(device: objects.Device) -> set[str]:
    """The traits that a request for the device's resource class can have.

    If the resource class is that of one mdev type, the other types of the
    device cannot be requested by it.
    """
    others = {
        mdev.type_trait(kind.name)
        for kind in device.mdev_types
        if kind not in _requestable(device)
    }
    return set(device.traits) - others


def _requestable(
    device: objects.Device,
) -> list[objects.DeviceMdevTypeInfo]:
    """The mdev types that a request for the device's class can get."""
    of_class = [
        kind
        for kind in device.mdev_types
        if mdev.type_trait(kind.name) == device.resource_class
    ]
    return of_class or list(device.mdev_types)


def _refusal(name: str) -> str | None:
    """Say why Nova does not accept a resource class."""
    if CUSTOM.fullmatch(name):
        return None
    return (
        'Nova accepts only resource classes that begin with CUSTOM_ in this '
        'file. Set resource_class to such a name in the entry of [os_acc] '
        'device_spec that offers the device'
    )


def _count(device: objects.Device) -> Inventory:
    if not device.handles and not device.mdev_types:
        # A driver that was written for Device 1.0 sets the number only.
        return Inventory(device.handles_total)
    states = collections.Counter(each.state for each in device.handles)
    reserved = states[device_objects.RESERVED]
    if device.mdev_types:
        # A mediated device that nobody has is of somebody else: os-acc makes
        # a new one for each request.
        taken = sum(each.holder is not None for each in device.handles)
        room = min(kind.capacity for kind in _requestable(device))
        return Inventory(taken + reserved + room, reserved)
    usable = states[device_objects.FREE] + states[device_objects.USED]
    return Inventory(usable + reserved, reserved)


def _remarks(device: objects.Device, total: int) -> Iterator[str]:
    """Say what an operator may not expect of the number of a device."""
    reasons = collections.Counter(
        (each.state, each.reason or each.state)
        for each in device.handles
        if each.state in (device_objects.HOST, device_objects.ABSENT)
    )
    for (_, reason), number in sorted(reasons.items()):
        are = 'is' if number == 1 else 'are'
        yield f'{number} of its handles {are} not counted: {reason}'
    types = _requestable(device)
    if others := [k.name for k in device.mdev_types if k not in types]:
        yield (
            f'the mdev types {", ".join(others)} cannot be requested, because '
            'its resource class is that of another type. Allow one type for '
            'each device (mdev_types in device_spec)'
        )
    if len(types) > 1:
        names = ', '.join(each.name for each in types)
        yield (
            f'the mdev types {names} share its capacity, and Placement counts '
            'them as one. The smallest of their numbers is used. Allow one '
            'type for each device to use all of the capacity (mdev_types in '
            'device_spec)'
        )
    if not total:
        yield 'it is left out: it has no handle that a guest could get'
