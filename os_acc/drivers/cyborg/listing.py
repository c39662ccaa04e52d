# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The devices that Cyborg's drivers discover, in os-acc's terms."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import json
from typing import Any
from typing import NoReturn

from os_acc import exception
from os_acc import objects
from os_acc.objects import function_id as function_ids

# Cyborg's attach handle types, cyborg/common/constants.py.
PCI, MDEV, TEST_PCI = 'PCI', 'MDEV', 'TEST_PCI'

# Cyborg's drivers report the function of an FPGA as a trait,
# CUSTOM_FPGA_FUNCTION_ID_<VENDOR>_<ID>.
_FUNCTION_TRAIT = 'CUSTOM_FPGA_FUNCTION_ID_'

_KEYS = ('domain', 'bus', 'device', 'function')


@dataclasses.dataclass(frozen=True)
class Found:
    """A device that one of Cyborg's drivers discovered.

    :ivar address: the PCI function of its control path: the one that is
        programmed, and the parent of its mediated devices
    :ivar by: the name of Cyborg's driver
    :ivar controlpath_id: the argument for the driver's program()
    :ivar programmable: whether the driver can program it
    :ivar handles: its PCIHandles and TestHandles
    :ivar mdevs: how many mediated devices of each type it can have
    """

    address: str
    by: str
    controlpath_id: Mapping[str, Any]
    vendor_id: str
    product_id: str
    resource_class: str
    traits: tuple[str, ...]
    programmable: bool
    handles: tuple[objects.AttachHandle, ...]
    mdevs: Mapping[str, int]

    @property
    def functions(self) -> tuple[str, ...]:
        """The ids of the functions that the device reports."""
        return tuple(
            trait.removeprefix(_FUNCTION_TRAIT).partition('_')[2].lower()
            for trait in self.traits
            if trait.startswith(_FUNCTION_TRAIT)
        )

    def has_function(self, function_id: str) -> bool:
        """Whether the device reports this function."""
        return any(
            function_ids.same(function_id, each) for each in self.functions
        )

    def has(self, handle: objects.AttachHandle) -> bool:
        """Whether a handle belongs to this device."""
        if isinstance(handle, objects.MdevHandle):
            return handle.parent == self.address and handle.type in self.mdevs
        return handle.identity in {each.identity for each in self.handles}

    def serves(self, request: objects.AcceleratorRequest) -> bool:
        """Whether the device fits a request without a handle."""
        wants_function = request.function_id or request.bitstream
        traits = set(request.traits)
        if wants_function:
            # Programming adds the function, and with it the trait.
            traits = {t for t in traits if not t.startswith(_FUNCTION_TRAIT)}
        return (
            request.resource_class in (None, self.resource_class)
            and traits.issubset(self.traits)
            and (self.programmable or not wants_function)
        )


def read(answer: Mapping[str, Any]) -> tuple[list[Found], dict[str, str]]:
    """Read the answer of the helper's discover().

    :returns: the devices, and errors by the name of Cyborg's driver. Devices
        of a driver with an error may be missing
    """
    found, errors = [], dict(answer['errors'])
    for each in answer['devices']:
        try:
            found.append(_read(each))
        except exception.InvalidRequest as err:
            errors[each['driver']] = str(err)
    return found, errors


def _read(device: dict[str, Any]) -> Found:
    by = device['driver']
    if device['cpid_type'] != PCI:
        _refuse(by, 'cpid_type', device['cpid_type'], "'PCI'")
    cpid_info = _json(by, 'cpid_info', device['cpid_info'])
    address = _address(by, 'cpid_info', cpid_info)
    board = _json(by, 'std_board_info', device['board'] or '{}')
    product = board.get('product_id') or board.get('device_id')
    attributes = [
        (key, value)
        for deployable in device['deployables']
        for key, value in deployable['attributes']
    ]
    classes = [value for key, value in attributes if key == 'rc']
    # Every deployable of a device repeats the same traits.
    traits = dict.fromkeys(
        value for key, value in attributes if key.startswith('trait')
    )
    handles, mdevs = _handles(by, device['deployables'])
    return Found(
        address=address,
        by=by,
        controlpath_id={
            'cpid_type': device['cpid_type'],
            'cpid_info': {key: cpid_info[key] for key in _KEYS},
        },
        vendor_id=_id(device['vendor']),
        product_id=_id(product),
        resource_class=classes[0] if classes else '',
        traits=tuple(traits),
        programmable=device['programmable'],
        handles=handles,
        mdevs=mdevs,
    )


def _handles(
    by: str, deployables: list[dict[str, Any]]
) -> tuple[tuple[objects.AttachHandle, ...], dict[str, int]]:
    handles: list[objects.AttachHandle] = []
    mdevs: dict[str, int] = {}
    for kind, text in _pairs(deployables):
        info = _json(by, 'attach_info', text)
        address = _address(by, 'attach_info', info)
        if kind == PCI:
            handles.append(
                objects.PCIHandle(
                    address=address,
                    physical_network=info.get('physical_network'),
                )
            )
        elif kind == TEST_PCI:
            handles.append(objects.TestHandle(name=address))
        elif kind == MDEV:
            name = info.get('asked_type')
            if not isinstance(name, str):
                _refuse(by, 'attach_info.asked_type', name, 'an mdev type')
            mdevs[name] = mdevs.get(name, 0) + 1
        else:
            _refuse(by, 'attach_type', kind, f'{PCI}, {MDEV} or {TEST_PCI}')
    return tuple(handles), mdevs


def _pairs(deployables: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for deployable in deployables:
        yield from deployable['handles']


def _json(by: str, field: str, text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        value = None
    if not isinstance(value, dict):
        _refuse(by, field, text, 'a JSON object')
    return value


def _address(by: str, field: str, info: Mapping[str, Any]) -> str:
    """Make a PCI address from its parts, hex numbers without a prefix."""
    try:
        parts = tuple(int(info[key], 16) for key in _KEYS)
        made = objects.PCIHandle(address='%04x:%02x:%02x.%x' % parts)
    except (KeyError, TypeError, ValueError):
        _refuse(by, field, info, f'the parts of a PCI address: {_KEYS}')
    address: str = made.address
    return address


def _id(value: Any) -> str:
    """Read a PCI id, '0xABCD' or 'abcd'; returns 4 hex digits or ''."""
    try:
        number = int(str(value), 16)
    except ValueError:
        return ''
    return f'{number:04x}' if 0 <= number <= 0xFFFF else ''


def _refuse(by: str, field: str, value: Any, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject=f"what Cyborg's {by} discovers",
        field=field,
        value=value,
        expected=expected,
    )
