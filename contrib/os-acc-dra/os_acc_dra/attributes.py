# SPDX-License-Identifier: Apache-2.0

"""What a ResourceSlice says about a device: attributes, and taints."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import os
import re
from typing import Any

from os_acc import objects
from os_acc.kernel import sysfs
from os_acc_dra import offers

_MOST = 32
_LONGEST = 64
_STANDARD = 'resource.kubernetes.io'
_NAME = re.compile(r'[A-Za-z_][A-Za-z0-9_]{0,31}')
_ROOT = re.compile(r'pci[0-9a-f]{4,8}:[0-9a-f]{2}')
_FREE, _USED = 'free', 'used'

#: The effect of a taint: no new Pod gets the device. Pods that have it stay.
EFFECT = 'NoSchedule'


def of(offer: offers.Offer) -> dict[str, dict[str, Any]]:
    """The attributes of a device; those that do not fit are left out."""
    return _typed(_all(offer))


def of_handle(handle: objects.AttachHandle) -> dict[str, dict[str, Any]]:
    """The attributes that follow from the attach handle alone."""
    return _typed(_of_handle(handle, ''))


def is_vfio(handle: objects.AttachHandle) -> bool:
    """Whether a container uses a device through VFIO."""
    return isinstance(handle, objects.PCIHandle | objects.MdevHandle)


def _typed(values: Iterator[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    """Make attributes from values; those that do not fit are left out."""
    made: dict[str, dict[str, Any]] = {}
    for name, value in values:
        if len(made) == _MOST:
            break
        if isinstance(value, bool):
            made[name] = {'bool': value}
        elif isinstance(value, int):
            made[name] = {'int': value}
        elif value and len(value) <= _LONGEST:
            made[name] = {'string': value}
    return made


def _all(offer: offers.Offer) -> Iterator[tuple[str, Any]]:
    device, handle = offer.device, offer.handle
    yield from _of_handle(handle, device.address)
    yield 'driver', device.driver
    yield 'device', device.address
    yield 'vendorID', device.vendor_id
    yield 'productID', device.product_id
    yield 'resourceClass', device.resource_class
    if device.numa_node is not None and device.numa_node >= 0:
        yield 'numaNode', device.numa_node
    yield 'programming', device.programming
    region = offer.info.region
    yield 'functionID', device.functions.get(region or '')
    if region:
        yield 'region', region
    for trait in sorted(device.traits):
        if _NAME.fullmatch(trait):
            yield trait, True


def _of_handle(
    handle: objects.AttachHandle, parent: str
) -> Iterator[tuple[str, Any]]:
    """What a handle says.

    :param parent: the address of its device; '': unknown
    """
    yield 'kind', offers.KINDS[type(handle)]
    yield 'handle', handle.identity
    if isinstance(handle, objects.MdevHandle):
        yield 'mdevType', handle.type
        yield 'mdevUUID', handle.uuid  # KubeVirt's name
    if isinstance(handle, objects.PCIHandle):
        yield f'{_STANDARD}/pciBusID', handle.address
        yield f'{_STANDARD}/pcieRoot', _root(handle.address, parent)


def _root(*addresses: str) -> str | None:
    """The PCIe root of a function; for a future VF, that of its PF."""
    for address in addresses:
        path = os.path.realpath(f'{sysfs.SYS}/bus/pci/devices/{address}')
        for part in path.split('/'):
            if _ROOT.fullmatch(part):
                return part
    return None


def taints(
    offer: offers.Offer, driver: str, is_own: bool
) -> list[dict[str, str]]:
    """Say why no new claim should get a device.

    :param driver: the name of this driver, the prefix of the keys
    :param is_own: whether a claim has the device, or one that it excludes:
        the scheduler knows that
    """
    found = []
    if offer.device.health != 'ok':
        found.append(_taint(f'{driver}/health', offer.device.health))
    state = offer.info.state
    if state != _FREE and not (state == _USED and is_own):
        found.append(_taint(f'{driver}/state', state))
    return found


def _taint(key: str, value: str) -> dict[str, str]:
    return {'key': key, 'value': value, 'effect': EFFECT}


def own(
    offered: Collection[offers.Offer], holders: Collection[str]
) -> set[str]:
    """The names of the devices that claims of this driver have.

    :param holders: the identities of the handles that they have
    """
    return {each.name for each in offered if each.handle.identity in holders}
