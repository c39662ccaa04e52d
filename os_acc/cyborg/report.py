# SPDX-License-Identifier: Apache-2.0
"""The devices of a host, as Cyborg's conductor expects them, in plain data.

Cyborg is not imported here: os_acc.cyborg.agent makes Cyborg's objects from
these.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from os_acc.kernel import pci

#: Types of attach handles in Cyborg (ATTACH_HANDLE_TYPES in
#: cyborg/common/constants.py).
PCI, MDEV, TEST_PCI = 'PCI', 'MDEV', 'TEST_PCI'

_ADDRESS = ('domain', 'bus', 'device', 'function')


@dataclasses.dataclass(frozen=True)
class Handle:
    """An attach handle.

    :ivar key: identifies it among the handles of the host
    :ivar type: PCI, MDEV or TEST_PCI
    :ivar info: JSON. Cyborg compares this text with that of the last report
    """

    key: str
    type: str
    info: str


@dataclasses.dataclass(frozen=True)
class Deployable:
    """A part of a device with a resource provider of its own.

    :ivar handles: by their keys
    :ivar count: num_accelerators in Cyborg, the total of the inventory in
        Placement; at most the number of handles
    :ivar shared: the handles are mere numbers, such as those of mediated
        devices, and there may be more of them than can be given out
    """

    name: str
    resource_class: str
    traits: tuple[str, ...]
    handles: Mapping[str, Handle]
    count: int
    shared: bool = False


@dataclasses.dataclass(frozen=True)
class Device:
    """A device and its deployables.

    :ivar address: as os_acc.get_devices() gives it
    :ivar type: one of DEVICE_TYPE in cyborg/common/constants.py
    :ivar std_board_info: JSON, for operators
    :ivar vendor_board_info: JSON; has the address, see address_in()
    :ivar deployables: by their names
    """

    address: str
    type: str
    vendor: str
    model: str
    std_board_info: str
    vendor_board_info: str
    deployables: Mapping[str, Deployable]


#: The devices of a host by their addresses.
Report = dict[str, Device]


def dumps(values: Mapping[str, Any]) -> str:
    """Write JSON that is always the same for the same values."""
    return json.dumps(dict(values), sort_keys=True)


def control_path(address: str) -> str:
    """Return the cpid_info of a device.

    :returns: JSON with domain, bus, device and function, or with the address
        if the device is not a PCI function
    """
    if pci.is_address(address):
        return dumps(_parts(address))
    return dumps({'address': address})


def controlled(info: Mapping[str, Any] | str) -> str:
    """Return the address of the device of a cpid_info. See control_path()."""
    try:
        values = json.loads(info) if isinstance(info, str) else dict(info)
        if 'address' in values:
            return str(values['address'])
        return _joined(values)
    except (KeyError, TypeError, ValueError) as err:
        raise ValueError(f'{info!r} is not a control path of os-acc') from err


def pci_handle(address: str, physical_network: str | None = None) -> Handle:
    values = _parts(address)
    if physical_network is not None:
        values['physical_network'] = physical_network
    return Handle(f'pci/{address}', PCI, dumps(values))


def mdev_handle(parent: str, kind: str, number: int) -> Handle:
    """Make a handle for a mediated device that Cyborg may make.

    :param number: its place, from 0. Cyborg needs different texts for the
        handles, so it is part of the info, as Cyborg's own driver for NVIDIA
        GPUs does it
    """
    mark = f'{kind}_{number}'
    values = {**_parts(parent), 'asked_type': kind, 'vgpu_mark': mark}
    return Handle(f'mdev/{parent}/{mark}', MDEV, dumps(values))


def test_handle(name: str) -> Handle:
    """Make a handle of a fake device. AcceleratorRequest.from_arq reads it."""
    return Handle(f'test/{name}', TEST_PCI, dumps({'name': name}))


def of_arq(arq: Mapping[str, Any]) -> Handle:
    """Return the handle of a bound ARQ.

    :raises ValueError: if os-acc's driver has not reported it
    """
    kind, info = arq.get('attach_handle_type'), arq.get('attach_handle_info')
    try:
        values = dict(info or {})
        if kind == PCI:
            key = f'pci/{_joined(values)}'
        elif kind == MDEV:
            key = f'mdev/{_joined(values)}/{values["vgpu_mark"]}'
        elif kind == TEST_PCI:
            key = f'test/{values["name"]}'
        else:
            raise ValueError(kind)
    except (KeyError, TypeError, ValueError) as err:
        raise ValueError(
            f'ARQ {arq.get("uuid")} has a handle of type {kind!r} with '
            f'{info!r}, which os-acc did not report'
        ) from err
    return Handle(key, str(kind), dumps(values))


def address_in(vendor_board_info: Any) -> str | None:
    """Return the address of a device that os-acc's driver reported."""
    try:
        address = json.loads(vendor_board_info)['address']
    except (KeyError, TypeError, ValueError):
        return None
    return address if isinstance(address, str) else None


def deployables(report: Report) -> Iterator[tuple[Device, Deployable]]:
    """List all deployables of a report, each with its device."""
    for device in report.values():
        for deployable in device.deployables.values():
            yield device, deployable


def _parts(address: str) -> dict[str, str]:
    domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    return dict(zip(_ADDRESS, (domain, bus, slot, function), strict=True))


def _joined(values: Mapping[str, str]) -> str:
    return pci.join(*(int(values[name], 16) for name in _ADDRESS))
