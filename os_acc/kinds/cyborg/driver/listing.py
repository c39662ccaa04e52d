# SPDX-License-Identifier: Apache-2.0

"""The devices that Cyborg's drivers discover, in os-acc's terms."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import itertools
import json
from typing import Any
from typing import NoReturn

from os_acc import exception
from os_acc import objects
from os_acc.kernel import pci
from os_acc.texts import forms

# Cyborg's attach handle types, cyborg/common/constants.py.
PCI, MDEV, TEST_PCI = 'PCI', 'MDEV', 'TEST_PCI'

# Cyborg's drivers report the function of an FPGA as a trait,
# CUSTOM_FPGA_FUNCTION_ID_<VENDOR>_<ID>.
_FUNCTION_TRAIT = 'CUSTOM_FPGA_FUNCTION_ID_'

_KEYS = ('domain', 'bus', 'device', 'function')


@dataclasses.dataclass(frozen=True)
class Found:
    """A device that one of Cyborg's drivers discovered.

    In Cyborg this is a deployable, which has a resource provider of its own.
    The deployables of a card that can be programmed are one device, because
    programming changes all of them.

    :ivar address: the PCI function of its control path. If the card has
        several deployables, it is the first handle of this one
    :ivar parent: the PCI function of its control path: the one that is
        programmed, and the parent of its mediated devices
    :ivar cyborg_driver: the name of Cyborg's driver
    :ivar controlpath_id: the argument for the driver's program()
    :ivar programmable: whether the driver can program it
    :ivar handles: its PCIHandles and TestHandles
    :ivar accelerators: the same handles by accelerator, as Placement counts
        them. An accelerator can have several: a Xilinx card has a management
        function and a user function
    :ivar mdevs: how many mediated devices of each type it can have
    """

    address: str
    parent: str
    cyborg_driver: str
    controlpath_id: Mapping[str, Any]
    vendor_id: str
    product_id: str
    resource_class: str
    traits: tuple[str, ...]
    programmable: bool
    accelerators: tuple[tuple[objects.AttachHandle, ...], ...]
    mdevs: Mapping[str, int]

    @property
    def handles(self) -> tuple[objects.AttachHandle, ...]:
        return tuple(itertools.chain.from_iterable(self.accelerators))

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
            forms.same_function(function_id, each) for each in self.functions
        )

    def has(self, handle: objects.AttachHandle) -> bool:
        """Whether a handle belongs to this device."""
        if isinstance(handle, objects.MdevHandle):
            return handle.parent == self.parent and handle.type in self.mdevs
        return handle.identity in {each.identity for each in self.handles}

    def siblings(
        self, handle: objects.AttachHandle
    ) -> tuple[objects.AttachHandle, ...]:
        """The other handles of the accelerator that a handle belongs to."""
        for each in self.accelerators:
            others = [h for h in each if h.identity != handle.identity]
            if len(others) < len(each):
                return tuple(others)
        return ()

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
        of a driver with an error may be missing. If several drivers found one
        device, it has the one that can program it, else the first one
    """
    found, errors = [], dict(answer['errors'])
    for each in answer['devices']:
        try:
            found += _read(each)
        except exception.InvalidRequest as err:
            errors[each['driver']] = str(err)
    return list(_once(found)), errors


def _once(devices: list[Found]) -> Iterator[Found]:
    """Leave out the handles and devices that another driver reports too."""
    handles: set[str] = set()
    addresses: set[str] = set()
    for found in sorted(devices, key=lambda each: not each.programmable):
        known = found.address in addresses
        accelerators = tuple(
            each
            for each in found.accelerators
            if handles.isdisjoint(handle.identity for handle in each)
        )
        if accelerators or not known:
            mdevs = {} if known else found.mdevs
            yield dataclasses.replace(
                found, accelerators=accelerators, mdevs=mdevs
            )
        handles.update(each.identity for each in found.handles)
        addresses.add(found.address)


def _read(device: dict[str, Any]) -> list[Found]:
    cyborg_driver = device['driver']
    if device['cpid_type'] != PCI:
        _refuse(cyborg_driver, 'cpid_type', device['cpid_type'], "'PCI'")
    cpid_info = _json(cyborg_driver, 'cpid_info', device['cpid_info'])
    parent = _address(cyborg_driver, 'cpid_info', cpid_info)
    controlpath_id = {
        'cpid_type': device['cpid_type'],
        'cpid_info': {key: cpid_info[key] for key in _KEYS},
    }
    board = _json(cyborg_driver, 'std_board_info', device['board'] or '{}')
    product = board.get('product_id') or board.get('device_id')
    deployables: list[dict[str, Any]] = device['deployables']
    by_address: dict[str, list[dict[str, Any]]] = {}
    for each in deployables:
        whole = device['programmable'] or len(deployables) == 1
        address = parent if whole else _place(cyborg_driver, each, parent)
        by_address.setdefault(address, []).append(each)
    return [
        Found(
            address=address,
            parent=parent,
            cyborg_driver=cyborg_driver,
            controlpath_id=controlpath_id,
            vendor_id=_id(device['vendor']),
            product_id=_id(product),
            programmable=device['programmable'],
            **_contents(cyborg_driver, parts),
        )
        for address, parts in (by_address or {parent: []}).items()
    ]


def _place(cyborg_driver: str, deployable: dict[str, Any], parent: str) -> str:
    """The address of a deployable: that of its first handle."""
    for _, text in deployable['handles']:
        return _address(
            cyborg_driver,
            'attach_info',
            _json(cyborg_driver, 'attach_info', text),
        )
    return parent


def _contents(
    cyborg_driver: str, deployables: list[dict[str, Any]]
) -> dict[str, Any]:
    """Read what deployables offer: the rest of the fields of Found."""
    attributes = [
        (key, value)
        for deployable in deployables
        for key, value in deployable['attributes']
    ]
    classes = [value for key, value in attributes if key == 'rc']
    # The functions of a device may repeat its traits.
    traits = dict.fromkeys(
        value for key, value in attributes if key.startswith('trait')
    )
    accelerators: list[tuple[objects.AttachHandle, ...]] = []
    mdevs: collections.Counter[str] = collections.Counter()
    for each in deployables:
        handles, types = _handles(cyborg_driver, each)
        accelerators += _grouped(handles, each['accelerators'])
        mdevs.update(types)
    return {
        'resource_class': classes[0] if classes else '',
        'traits': tuple(traits),
        'accelerators': tuple(accelerators),
        'mdevs': dict(mdevs),
    }


def _grouped(
    handles: list[objects.AttachHandle], number: int
) -> Iterator[tuple[objects.AttachHandle, ...]]:
    """Group the handles of a deployable by accelerator.

    Cyborg does not say which handle belongs to which accelerator. The only
    driver of Cyborg 17 with more handles than accelerators is Xilinx's: it
    reports one accelerator (_generate_dep_list in
    accelerator/drivers/fpga/xilinx/sysinfo.py).
    """
    if number == 1 and handles:
        yield tuple(handles)
    else:
        yield from ((each,) for each in handles)


def _handles(
    cyborg_driver: str, deployable: dict[str, Any]
) -> tuple[list[objects.AttachHandle], collections.Counter[str]]:
    handles: list[objects.AttachHandle] = []
    mdevs: collections.Counter[str] = collections.Counter()
    for kind, text in deployable['handles']:
        info = _json(cyborg_driver, 'attach_info', text)
        address = _address(cyborg_driver, 'attach_info', info)
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
                _refuse(
                    cyborg_driver,
                    'attach_info.asked_type',
                    name,
                    'an mdev type',
                )
            mdevs[name] += 1
        else:
            _refuse(
                cyborg_driver,
                'attach_type',
                kind,
                f'{PCI}, {MDEV} or {TEST_PCI}',
            )
    return handles, mdevs


def _json(cyborg_driver: str, field: str, text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        value = None
    if not isinstance(value, dict):
        _refuse(cyborg_driver, field, text, 'a JSON object')
    return value


def _address(cyborg_driver: str, field: str, info: Mapping[str, Any]) -> str:
    """Make a PCI address from its parts, hex numbers without a prefix."""
    try:
        domain, bus, slot, function = (int(info[key], 16) for key in _KEYS)
        made = objects.PCIHandle(address=pci.join(domain, bus, slot, function))
    except (KeyError, TypeError, ValueError):
        _refuse(
            cyborg_driver, field, info, f'the parts of a PCI address: {_KEYS}'
        )
    address: str = made.address
    return address


def _id(value: Any) -> str:
    """Read a PCI id, '0xABCD' or 'abcd'; returns 4 hex digits or ''."""
    try:
        number = int(str(value), 16)
    except ValueError:
        return ''
    return f'{number:04x}' if 0 <= number <= 0xFFFF else ''


def _refuse(
    cyborg_driver: str, field: str, value: Any, expected: str
) -> NoReturn:
    raise exception.InvalidRequest(
        subject=f"what Cyborg's {cyborg_driver} discovers",
        field=field,
        value=value,
        expected=expected,
    )
