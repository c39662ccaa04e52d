# SPDX-License-Identifier: Apache-2.0
"""Which handles of this host's devices Cyborg may give out now."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import hashlib
import logging

import os_resource_classes
import os_traits

from os_acc import objects
from os_acc.cyborg import names
from os_acc.cyborg import report
from os_acc.kernel import pci
from os_acc.kinds.mdev.driver import driver as mdev
from os_acc.objects import device as device_objects
from os_acc.placement import inventory

LOG = logging.getLogger(__name__)

# The trait of resource providers whose mediated devices Cyborg makes.
_OWNER_CYBORG = 'OWNER_CYBORG'
_CLASS = 'CUSTOM_PCI_CLASS_'
# Types of devices in Cyborg by the start of their PCI class.
_TYPES = {
    '03': 'GPU',
    '0B40': 'QAT',
    '02': 'NIC',
    '0108': 'NVME',
    '01': 'SSD',
}


class Lister:
    """Makes the report of what can be given out now, or has an ARQ.

    :param host: [DEFAULT] host of Cyborg
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._known = frozenset(os_traits.get_traits())
        self._told: set[str] = set()

    def offered(
        self,
        devices: Iterable[objects.Device],
        arq_vans: Collection[str],
    ) -> report.Report:
        """Report the handles that are free, or that a VAN of an ARQ has.

        Devices of the driver cyborg are left out: Cyborg has found them
        itself.

        :param devices: as os_acc.get_devices() returns them
        :param arq_vans: the UUIDs of the VANs that were plugged for an ARQ
        """
        parts: dict[str, list[report.Deployable]] = {}
        first: dict[str, objects.Device] = {}
        for device in sorted(devices, key=_order):
            if device.driver == 'cyborg':
                continue
            address = device.address
            own = [
                part
                for part in self._parts(device, arq_vans)
                if part.count > 0
            ]
            if own:
                first.setdefault(address, device)
                parts.setdefault(address, []).extend(own)
        return {
            address: self._device(first[address], _named(own))
            for address, own in parts.items()
        }

    def _device(
        self, device: objects.Device, parts: Iterable[report.Deployable]
    ) -> report.Device:
        made = {}
        for part in parts:
            name = names.deployable(self._host, device.address, part.name)
            made[name] = dataclasses.replace(part, name=name)
        board = {
            'vendor_id': device.vendor_id,
            'product_id': device.product_id,
            'numa_node': device.numa_node,
            'programming': device.programming,
        }
        return report.Device(
            address=device.address,
            type=device_type(device),
            vendor=device.vendor_id or 'none',
            model=device.product_id or device.address,
            std_board_info=report.dumps(board),
            vendor_board_info=report.dumps(
                {'address': device.address, 'driver': device.driver}
            ),
            deployables=made,
        )

    def _parts(
        self, device: objects.Device, arq_vans: Collection[str]
    ) -> Iterator[report.Deployable]:
        """The parts of a device that become one deployable each.

        Their names tell them apart: see names.deployable().
        """
        if device.mdev_types:
            yield from self._mdev_parts(device, arq_vans)
            return
        if not self._is_class(device, device.resource_class):
            return
        handles = {}
        for each in device.handles:
            if (
                each.state != device_objects.FREE
                and each.holder not in arq_vans
            ):
                continue
            made = _handle(each.handle)
            if made is None:
                self._tell(
                    f'{device.address} is not reported: Cyborg has no type '
                    f'for its attach handles ({each.handle.obj_name()})'
                )
                continue
            handles[made.key] = made
        traits = {*device.traits, *names.function_traits(device)}
        yield report.Deployable(
            '',
            device.resource_class,
            self._traits(device, traits),
            handles,
            len(handles),
        )

    def _mdev_parts(
        self, device: objects.Device, arq_vans: Collection[str]
    ) -> Iterator[report.Deployable]:
        """One part for each mdev type: they share the parent's capacity."""
        if not pci.is_address(device.address):
            self._tell(
                f'{device.address} is not reported: Cyborg creates mediated '
                'devices only on PCI functions'
            )
            return
        own_traits = {
            kind.name: mdev.type_trait(kind.name) for kind in device.mdev_types
        }
        for kind in device.mdev_types:
            resource_class = device.resource_class
            if resource_class in own_traits.values():
                resource_class = own_traits[kind.name]
            if not self._is_class(device, resource_class):
                continue
            there = [
                each
                for each in device.handles
                if isinstance(each.handle, objects.MdevHandle)
                and each.handle.type == kind.name
            ]
            # The agent makes the mediated device at bind, before any VAN has
            # it. A device that a selector's VAN has can be given to no ARQ.
            usable = sum(
                each.holder is None or each.holder in arq_vans
                for each in there
            )
            handles = [
                report.mdev_handle(device.address, kind.name, number)
                for number in range(len(there) + kind.capacity)
            ]
            others = set(own_traits.values()) - {own_traits[kind.name]}
            traits = (set(device.traits) - others) | {_OWNER_CYBORG}
            yield report.Deployable(
                kind.name,
                resource_class,
                self._traits(device, traits),
                {each.key: each for each in handles},
                usable + kind.available,
                shared=True,
            )

    def _is_class(self, device: objects.Device, name: str) -> bool:
        """Say whether Placement accepts a resource class."""
        if inventory.CUSTOM.fullmatch(name) or name in (
            os_resource_classes.STANDARDS
        ):
            return True
        self._tell(
            f'{device.address} is not reported: {name!r} is not a resource '
            'class of Placement'
        )
        return False

    def _traits(
        self, device: objects.Device, wanted: Iterable[str]
    ) -> tuple[str, ...]:
        """The traits that Placement accepts: any other aborts the report."""
        made = []
        for trait in sorted(wanted):
            if trait in self._known or inventory.CUSTOM.fullmatch(trait):
                made.append(trait)
            else:
                self._tell(
                    f'{device.address} is reported without {trait!r}, which '
                    'is not a trait of Placement'
                )
        return tuple(made)

    def _tell(self, text: str) -> None:
        """Log a warning once."""
        if text not in self._told:
            self._told.add(text)
            LOG.warning('%s', text)


def device_type(device: objects.Device) -> str:
    """Return the type that Cyborg has for a device."""
    name = device.resource_class
    if name == os_resource_classes.FPGA or device.programming != (
        device_objects.PROGRAMMING_NONE
    ):
        return 'FPGA'
    if name in (os_resource_classes.PGPU, os_resource_classes.VGPU):
        return 'GPU'
    if device.mdev_types:
        return 'MDEV'
    for trait in device.traits:
        if trait.startswith(_CLASS):
            number = trait.removeprefix(_CLASS)
            for start, kind in _TYPES.items():
                if number.startswith(start):
                    return kind
    return 'PCI'


def _order(device: objects.Device) -> tuple[str, ...]:
    return (
        str(device.address),
        str(device.driver),
        str(device.resource_class),
        *sorted(device.traits),
    )


def _handle(handle: objects.AttachHandle) -> report.Handle | None:
    if isinstance(handle, objects.PCIHandle):
        return report.pci_handle(handle.address, handle.physical_network)
    if isinstance(handle, objects.TestHandle):
        return report.test_handle(handle.name)
    return None


def _named(parts: Iterable[report.Deployable]) -> list[report.Deployable]:
    """Merge the parts of a device that are alike, and name the others.

    A device is listed several times if several entries of device_spec name
    VFs of one PF, for example.
    """
    alike: dict[tuple[str, str, tuple[str, ...]], report.Deployable] = {}
    for part in parts:
        key = (part.name, part.resource_class, part.traits)
        first = alike.setdefault(key, part)
        if first is not part:
            handles = {**first.handles, **part.handles}
            alike[key] = dataclasses.replace(
                first, handles=handles, count=len(handles)
            )
    merged = list(alike.values())
    if len(merged) == 1:
        return merged
    classes = [each.resource_class for each in merged if not each.shared]
    made = []
    for part in merged:
        name = part.name if part.shared else part.resource_class
        if not part.shared and classes.count(name) > 1:
            digest = hashlib.sha256(' '.join(part.traits).encode())
            name += f'_{digest.hexdigest()[:8]}'
        made.append(dataclasses.replace(part, name=name))
    return made
