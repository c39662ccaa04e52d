# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Driver for the I/O slots of a PowerVM host, by DRC index.

PowerVM moves whole slots between partitions, so there is nothing to bind on
the host. The driver finds the slot in the inventory of the managed system and
checks that no other partition has it.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import re
from typing import Any

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import objects
from os_acc import powervm
from os_acc.devices import allocated
from os_acc.devices import availability
from os_acc.drivers import allocation
from os_acc.drivers import inventory as device_inventory

OPTS = (
    cfg.BoolOpt(
        'discover',
        default=False,
        help='Report the slots in get_devices(). Set it on PowerVM hosts.',
    ),
    cfg.StrOpt(
        'resource_class',
        default='CUSTOM_POWER_IO_SLOT',
        help='Resource class of the slots. The driver handles requests for '
        'this resource class.',
    ),
)

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


class DRCDriver(driver.DriverBase):
    """Prepares the I/O slots of a PowerVM host."""

    CONFIG_OPTS = OPTS
    handle_types = ('DRCHandle',)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        powervm.register(cfg.CONF)

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            return isinstance(request.handle, objects.DRCHandle)
        wanted: bool = request.resource_class == self.config.resource_class
        return wanted

    def get_devices(self) -> list[objects.Device]:
        if not self.config.discover:
            return []
        slots, holders = inventory(), allocation.holders(self)
        return [self._device(slot, slots, holders) for slot in slots]

    def _device(
        self, slot: Slot, slots: list[Slot], holders: allocated.Holders
    ) -> objects.Device:
        obstacles = []
        try:
            check(slot, slots, None)
        except exception.DeviceBusy as err:
            kind = availability.Kind.OPEN
            obstacles.append(
                availability.Obstacle(kind, f'slot {slot.address}', str(err))
            )
        holder = next(iter(holders.on(slot.address)), None)
        return device_inventory.device(
            slot.address,
            self.name,
            [
                device_inventory.handle(
                    slot.handle,
                    obstacles,
                    holder or holders.of_handle(slot.handle.identity),
                )
            ],
            vendor_id=slot.vendor_id,
            product_id=slot.product_id,
            resource_class=self.config.resource_class,
            traits=slot.traits,
        )

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        slots = {slot.address: slot for slot in inventory()}
        lpar = powervm.lpar_uuid(instance_info)
        wanted = van.handle or request.handle
        if wanted is None:
            self._choose(van, request, slots)
            return
        if not isinstance(wanted, objects.DRCHandle):
            raise exception.UnsupportedHandle(
                taker=f'driver {self.name!r}',
                handle=wanted.obj_name(),
                takes='DRCHandle',
            )
        slot = _find(wanted, slots)
        check(slot, slots.values(), lpar)
        van.handle, van.device = slot.handle, slot.address
        van.save()

    def is_intact(self, van: objects.VAN) -> bool:
        """Whether the slot is there, and no other partition has it."""
        if not isinstance(van.handle, objects.DRCHandle):
            return True
        slots = {slot.address: slot for slot in inventory()}
        for entry in self.journal.entries(van.instance_uuid):
            if entry.van.uuid != van.uuid:
                continue
            lpar = powervm.lpar_uuid(entry.instance_info)
            try:
                check(_find(van.handle, slots), slots.values(), lpar)
            except (
                exception.DeviceBusy,
                exception.DeviceNotFound,
                exception.InvalidRequest,
            ):
                return False
        return True

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Check that the LPAR has released the slot.

        There is nothing to undo, because prepareVAN changes nothing.

        :raises DeviceBusy: if the instance's LPAR still has the slot
        """
        if not isinstance(van.handle, objects.DRCHandle):
            return
        lpar = powervm.lpar_uuid(instance_info)
        for slot in inventory():
            if slot.address == van.handle.drc_index and slot.owner == lpar:
                raise exception.DeviceBusy(
                    device=f'slot {slot.address}',
                    holder=f'LPAR {slot.owner_name}',
                )

    def _choose(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        slots: dict[str, Slot],
    ) -> None:
        """Choose the first free slot with all of the request's traits."""
        for slot in slots.values():
            if slot.owner or not set(request.traits) <= set(slot.traits):
                continue
            with self.lock(slot.address):
                if self.vans_on(slot.address):
                    continue
                try:
                    check(slot, slots.values(), None)
                except exception.DeviceBusy:
                    continue
                van.handle, van.device = slot.handle, slot.address
                # Save while the lock is held, so that the next request sees
                # that the slot is in use.
                van.save()
                return
        raise exception.DeviceNotFound(
            wanted=f'request {request.uuid}',
            reason='no slot is free that has the traits '
            f'{", ".join(request.traits) or "(none requested)"}',
        )


def inventory() -> list[Slot]:
    """Read the I/O slots of this managed system.

    :raises HypervisorError: if the server refuses or fails
    :raises Timeout: if the server does not answer in time
    """
    adapter = powervm.adapter()
    with powervm.errors('inventory of I/O slots'):
        from pypowervm.wrappers import managed_system

        (system,) = managed_system.System.get(adapter)
        return [_slot(slot) for slot in system.asio_config.io_slots]


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


def _find(handle: objects.DRCHandle, slots: dict[str, Slot]) -> Slot:
    """Find a handle's slot, and check that its location code matches.

    :raises DeviceNotFound: if the managed system has no such slot
    :raises InvalidRequest: if the slot has another location code
    """
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


def check(slot: Slot, slots: Iterable[Slot], lpar: str | None) -> None:
    """Check that a slot can be assigned to an LPAR.

    :param slots: the whole inventory
    :param lpar: UUID of the LPAR that may already have the slot; None: the
        slot must be free
    :raises DeviceBusy: if another partition has the slot; or if all slots of
        its bus must move together, and another partition has one of them
    """
    if slot.owner not in (None, lpar):
        raise exception.DeviceBusy(
            device=f'slot {slot.address}',
            holder=f'partition {slot.owner_name} ({slot.owner})',
        )
    if not slot.handle.bus_grp_required or slot.bus is None:
        return
    for other in slots:
        if other.bus == slot.bus and other.owner not in (None, lpar):
            raise exception.DeviceBusy(
                device=f'bus group {slot.bus} of slot {slot.address}',
                holder=f'partition {other.owner_name} (slot {other.address})',
            )
