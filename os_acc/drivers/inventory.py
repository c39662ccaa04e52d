# SPDX-License-Identifier: Apache-2.0

"""Reports of devices whose numbers agree with their handles.

All built-in drivers make their objects.Device here.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc import driver as driver_base
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.kernel import pci
from os_acc.objects import device as device_objects

Category = availability.Category

# An obstacle of any other kind makes a handle ABSENT.
_STATES = {
    Category.ALLOCATED: device_objects.USED,
    Category.GROUP_ALLOCATED: device_objects.USED,
    Category.OPEN: device_objects.USED,
    Category.HOST_USE: device_objects.HOST,
    Category.GROUP_HOST_USE: device_objects.HOST,
    Category.RESERVED: device_objects.RESERVED,
    Category.UNHEALTHY: device_objects.RESERVED,
}


@dataclasses.dataclass(frozen=True)
class Names:
    """The names in Placement that a request can select a device by.

    :ivar resource_class: empty: it is unknown
    """

    resource_class: str
    traits: Sequence[str]

    def serves(self, request: objects.AcceleratorRequest) -> bool:
        return self.resource_class == request.resource_class and set(
            request.traits
        ) <= set(self.traits)


def handle(
    attach_handle: objects.AttachHandle,
    obstacles: Iterable[availability.Obstacle] = (),
    holder: allocated.Holder | None = None,
    region: str | None = None,
) -> objects.DeviceHandleInfo:
    """Say whether a handle can be given out now.

    :param obstacles: why it cannot, the most important one first. Only the
        first one is looked at; none: the handle is free
    """
    state, reason = device_objects.FREE, None
    if holder is not None:
        state = device_objects.USED
        reason = f'instance {holder.called} has it'
    else:
        for first in obstacles:
            state = _STATES.get(first.category, device_objects.ABSENT)
            reason = first.text
            break
    return objects.DeviceHandleInfo(
        handle=attach_handle,
        state=state,
        holder=holder.van_uuid if holder is not None else None,
        reason=reason,
        region=region,
    )


def device(
    address: str,
    driver: str,
    handles: Sequence[objects.DeviceHandleInfo],
    mdev_types: Sequence[objects.DeviceMdevTypeInfo] = (),
    function: pci.Function | None = None,
    names: Names | None = None,
    **values: Any,
) -> objects.Device:
    """Make a report of a device, and count its handles.

    :param function: the device, if it is a PCI function: gives the ids
    :param names: its resource class, unless that is unknown, and its traits
    :param values: other fields of objects.Device, in their canonical form
    """
    if names is not None:
        values['traits'] = list(names.traits)
        if names.resource_class:
            values['resource_class'] = names.resource_class
    if function is not None:
        values['vendor_id'] = function.vendor_id
        values['product_id'] = function.product_id
        if 'numa_node' not in values:
            values['numa_node'] = function.numa_node
    free = sum(each.state == device_objects.FREE for each in handles)
    capacity = max((kind.capacity for kind in mdev_types), default=0)
    available = max((kind.available for kind in mdev_types), default=0)
    return objects.Device(
        address=address,
        driver=driver,
        handles=list(handles),
        mdev_types=list(mdev_types),
        handles_total=len(handles) + capacity,
        handles_free=free + available,
        **values,
    )


def failed(
    address: str, driver: driver_base.DriverBase, reason: str, **values: Any
) -> objects.Device:
    """Report a device that cannot be read: nothing of it can be given out.

    Its handles are those that VANs have.

    :param reason: why it cannot be read: a clause with the file and the error
    :param values: other fields of objects.Device that are known
    """
    handles = [
        objects.DeviceHandleInfo(
            handle=van.handle,
            state=device_objects.USED,
            holder=van.uuid,
            reason=f'instance {van.instance_uuid} has it',
            region=None,
        )
        for van in driver.vans_on(address)
        if van.handle is not None and van.driver == driver.name
    ]
    return device(
        address,
        driver.name,
        handles,
        health=device_objects.UNHEALTHY,
        health_reason=reason,
        **values,
    )
