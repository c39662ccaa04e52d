# SPDX-License-Identifier: Apache-2.0

"""The I/O slots of a managed system, as the server of PowerVM lists them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import objects
from os_acc import powervm

_PARENT = 'ParentSlotDynamicReconfigurationConnectorIndex'


@dataclasses.dataclass(frozen=True)
class Slot:
    """A slot in the inventory of the managed system.

    :ivar vendor_id: 4 hex digits; empty if unknown
    :ivar product_id: as vendor_id
    :ivar class_code: as vendor_id
    :ivar owner: UUID of the partition that has the slot, in upper case; None
        if the slot is free
    :ivar owner_name: the name of that partition
    :ivar bus: DRC index of the slot's parent bus; None if it has none
    """

    handle: objects.DRCHandle
    vendor_id: str
    product_id: str
    class_code: str
    owner: str | None
    owner_name: str | None
    bus: str | None

    @property
    def address(self) -> str:
        address: str = self.handle.drc_index
        return address

    @property
    def traits(self) -> list[str]:
        """The traits of the device in the slot and of its location."""
        traits = [
            f'CUSTOM_PCI_VENDOR_{self.vendor_id.upper()}',
            f'CUSTOM_PCI_PRODUCT_{self.product_id.upper()}',
            f'CUSTOM_PCI_CLASS_{self.class_code.upper()}',
        ]
        if self.handle.drc_name is not None:
            traits.append(location_trait(self.handle.drc_name))
        return traits


def location_trait(drc_name: str) -> str:
    """Return the trait of a location code.

    For example, CUSTOM_LOCATION_U78CB_001_WZS0JZB_P1_C7.
    """
    return 'CUSTOM_LOCATION_' + re.sub('[^A-Z0-9_]', '_', drc_name.upper())


def read(lpar_uuid: str | None = None) -> dict[str, Slot]:
    """Read the I/O slots of the managed system.

    If the server manages several systems, the option managed_system chooses
    one. If it is unset, the LPAR's own system is taken.

    :param lpar_uuid: the LPAR that a slot is for; None: no LPAR
    :returns: the slots by DRC index, in the server's order
    """
    adapter = powervm.adapter()
    with powervm.errors('inventory of I/O slots'):
        system = _system(adapter, lpar_uuid)
        found = [_slot(slot) for slot in system.asio_config.io_slots]
    return {slot.address: slot for slot in found}


def find(handle: objects.DRCHandle, slots: dict[str, Slot]) -> Slot:
    """Find a handle's slot, and check that its location code matches."""
    slot = slots.get(handle.drc_index)
    if slot is None:
        raise exception.DeviceNotFound(
            wanted=f'slot {handle.drc_index}',
            reason='this managed system has no such DRC index',
        )
    if handle.drc_name not in (None, slot.handle.drc_name):
        raise exception.InvalidRequest(
            subject=f'slot {handle.drc_index}',
            field='drc_name',
            value=handle.drc_name,
            expected=f'{slot.handle.drc_name!r}, the location code of that '
            'slot',
        )
    return slot


def group(slot: Slot, slots: Iterable[Slot]) -> Iterator[Slot]:
    """Yield the other slots that must be in the same partition as a slot.

    These are the slots of its bus, if the server says of one of the two that
    its whole bus must move together (BusGroupingRequired).
    """
    for other in slots:
        if (
            slot.bus is not None
            and other.bus == slot.bus
            and other.address != slot.address
            and (slot.handle.bus_grp_required or other.handle.bus_grp_required)
        ):
            yield other


def check(slot: Slot, slots: Iterable[Slot], lpar: str | None) -> None:
    """Check that a slot can be assigned to an LPAR.

    :param lpar: UUID of the LPAR that may already have the slot; None: the
        slot must be free
    """
    if slot.owner not in (None, lpar):
        raise exception.DeviceBusy(
            device=f'slot {slot.address}',
            holder=f'partition {slot.owner_name} ({slot.owner})',
        )
    for other in group(slot, slots):
        if other.owner not in (None, lpar):
            raise exception.DeviceBusy(
                device=f'bus group {slot.bus} of slot {slot.address}',
                holder=f'partition {other.owner_name} (slot {other.address})',
            )


def lpar_with(lpar_uuid: str, drc_index: str) -> str | None:
    """Return the name of an LPAR if it has a slot.

    :returns: None if it does not have the slot, or does not exist
    """
    adapter = powervm.adapter()
    with powervm.errors(f'slots of LPAR {lpar_uuid}'):
        lpar = _lpar(adapter, lpar_uuid)
        if lpar is not None:
            for slot in lpar.io_config.io_slots:
                if slot.drc_index == int(drc_index, 16):
                    return str(lpar.name)
    return None


def _slot(slot: Any) -> Slot:
    def hex4(value: int | None) -> str:
        return '' if value is None else f'{value & 0xFFFF:04x}'

    bus = slot.element.findtext(_PARENT)
    return Slot(
        handle=objects.DRCHandle(
            drc_index=slot.drc_index,
            drc_name=slot.drc_name or None,
            bus_grp_required=bool(slot.bus_grp_required),
        ),
        vendor_id=hex4(slot.pci_vendor_id),
        product_id=hex4(slot.pci_dev_id),
        class_code=hex4(slot.pci_class),
        owner=slot.part_uuid.upper() if slot.part_uuid else None,
        owner_name=slot.part_name,
        bus=f'{int(bus):08X}' if bus else None,
    )


def _system(adapter: Any, lpar_uuid: str | None) -> Any:
    """Choose the managed system; returns a pypowervm System."""
    from pypowervm.wrappers import managed_system

    systems = managed_system.System.get(adapter)
    wanted = cfg.CONF[powervm.GROUP].managed_system
    chosen = _named(systems, wanted) if wanted else None
    if len(systems) == 1:
        return chosen or systems[0]
    own = _system_of(adapter, lpar_uuid) if lpar_uuid is not None else None
    for system in systems:
        if own is None or system.uuid.upper() != own:
            continue
        if chosen is None or chosen.uuid == system.uuid:
            return system
        raise exception.HypervisorError(
            what=f'LPAR {lpar_uuid}',
            reason=f'it is on the managed system {_names([system])}, but '
            f'[os_acc_powervm] managed_system is {_names([chosen])}',
        )
    if chosen is None:
        raise exception.HypervisorError(
            what='choice of the managed system',
            reason=f'the server manages {len(systems)} systems: '
            f'{_names(systems)}. Set [os_acc_powervm] managed_system',
        )
    return chosen


def _named(systems: Sequence[Any], wanted: str) -> Any:
    found = [
        system
        for system in systems
        if wanted.upper()
        in (
            system.system_name.upper(),
            system.uuid.upper(),
            system.mtms.mtms_str.upper(),
        )
    ]
    if len(found) == 1:
        return found[0]
    raise exception.HypervisorError(
        what='choice of the managed system',
        reason=f'{len(found)} systems are called {wanted!r}, which is '
        '[os_acc_powervm] managed_system; the server manages: '
        f'{_names(systems)}',
    )


def _names(systems: Sequence[Any]) -> str:
    return (
        '; '.join(
            f'{system.system_name} (MTMS {system.mtms.mtms_str}, UUID '
            f'{system.uuid})'
            for system in systems
        )
        or 'none'
    )


def _system_of(adapter: Any, lpar_uuid: str) -> str | None:
    """Return the UUID of an LPAR's system; None if there is no such LPAR."""
    lpar = _lpar(adapter, lpar_uuid)
    own = lpar.assoc_sys_uuid if lpar is not None else None
    return own.upper() if own else None


def _lpar(adapter: Any, lpar_uuid: str) -> Any:
    """Read an LPAR; returns a pypowervm LPAR, or None if there is none."""
    from pypowervm import exceptions as pvm_exceptions
    from pypowervm.wrappers import logical_partition

    try:
        return logical_partition.LPAR.get(adapter, uuid=lpar_uuid)
    except pvm_exceptions.HttpNotFound:
        return None
