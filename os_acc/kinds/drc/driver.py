# SPDX-License-Identifier: Apache-2.0

"""Driver for the I/O slots of a PowerVM host, by DRC index.

PowerVM moves whole slots between partitions, so there is nothing to bind on
the host. The driver finds the slot in the inventory of the managed system and
checks that no other partition has it, and that no other instance has a slot of
its bus group.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import objects
from os_acc import powervm
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.claims import facts
from os_acc.drivers import allocation
from os_acc.drivers import choosing
from os_acc.drivers import inventory as device_inventory
from os_acc.powervm import inventory

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
        slots = inventory.read()
        holders = _holders(self, slots)
        return choosing.report(
            self,
            slots,
            lambda address: self._device(slots[address], slots, holders),
        )

    def takes_unlisted(self, request: objects.AcceleratorRequest) -> bool:
        return not self.config.discover

    def _device(
        self,
        slot: inventory.Slot,
        slots: Mapping[str, inventory.Slot],
        holders: allocated.Holders,
    ) -> objects.Device:
        obstacles = list(_obstacles(slot, holders))
        try:
            inventory.check(slot, slots.values(), None)
        except exception.DeviceBusy as err:
            category = availability.Category.OPEN
            obstacles.append(
                availability.Obstacle(
                    category, f'slot {slot.address}', str(err)
                )
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
        lpar = powervm.lpar_uuid(instance_info)
        slots = inventory.read(lpar)
        wanted = van.handle or request.handle
        if wanted is None:
            self._choose(van, request, slots)
            return
        wanted = objects.DRCHandle.cast(wanted, f'driver {self.name!r}')
        slot = inventory.find(wanted, slots)
        self._take(van, slot, slots, lpar)

    def is_intact(self, van: objects.VAN) -> bool:
        """Whether the slot is there, and no other partition has it."""
        if not isinstance(van.handle, objects.DRCHandle):
            return True
        for entry in self.journal.entries(van.instance_uuid):
            if entry.van.uuid != van.uuid:
                continue
            lpar = powervm.lpar_uuid(entry.instance_info)
            slots = inventory.read(lpar)
            try:
                slot = inventory.find(van.handle, slots)
                inventory.check(slot, slots.values(), lpar)
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
        """
        if not isinstance(van.handle, objects.DRCHandle):
            return
        index = van.handle.drc_index
        lpar = powervm.lpar_uuid(instance_info)
        name = inventory.lpar_with(lpar, index)
        if name is not None:
            raise exception.DeviceBusy(
                device=f'slot {index}', holder=f'LPAR {name}'
            )

    def _choose(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        slots: dict[str, inventory.Slot],
    ) -> None:
        """Choose the first free slot with all of the request's traits."""
        if request.resource_class not in (None, self.config.resource_class):
            raise exception.DeviceNotFound(
                wanted=f'request {request.uuid}',
                reason=f'the slots are of {self.config.resource_class}, not '
                f'of {request.resource_class}',
            )
        choosing.choose(
            van,
            request,
            slots.values(),
            lambda slot: (
                [slot] if set(request.traits) <= set(slot.traits) else []
            ),
            lambda slot: self._take(van, slot, slots, None),
            lambda: None,  # nothing is changed on the host
            'no slot has the traits '
            f'{", ".join(request.traits) or "(none requested)"}',
        )

    def _take(
        self,
        van: objects.VAN,
        slot: inventory.Slot,
        slots: Mapping[str, inventory.Slot],
        lpar: str | None,
    ) -> None:
        """Give a slot to a VAN.

        :param lpar: UUID of the LPAR that may already have the slot
        """
        inventory.check(slot, slots.values(), lpar)
        allocation.check_healthy(self, van, slot.address)
        with self.lock(_lock_name(slot)):
            holders = _holders(self, slots, van)
            allocation.check(_obstacles(slot, holders))
            van.handle, van.device = slot.handle, slot.address
            # Saved while the lock is held, so that the next request sees that
            # the slot is in use.
            van.save()


def _lock_name(slot: inventory.Slot) -> str:
    """The lock under which a slot is given out: that of its whole bus."""
    return slot.address if slot.bus is None else f'bus-group-{slot.bus}'


def _holders(
    asking: driver.DriverBase,
    slots: Mapping[str, inventory.Slot],
    van: objects.VAN | None = None,
) -> allocated.Holders:
    """The VANs of this host, and which slots must be in one partition."""
    return allocation.holders(
        asking,
        van,
        {
            each.address: facts.Slot(
                each.bus, bool(each.handle.bus_grp_required)
            )
            for each in slots.values()
        },
    )


def _obstacles(
    slot: inventory.Slot, holders: allocated.Holders
) -> Iterator[availability.Obstacle]:
    """Say which VANs have the slot, or another one of its bus group.

    No LPAR shows a slot that was plugged cold until the caller has built the
    LPAR, so the inventory alone is not enough.
    """
    for met in holders.in_the_way(slot.handle.identity, slot.address):
        yield availability.Obstacle.of(f'slot {slot.address}', met.reason)
