# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Claims to devices: who has one already, and how another is refused."""

from __future__ import annotations

from collections.abc import Sequence

from os_acc import driver
from os_acc import exception
from os_acc import objects


def function_of(van: objects.VAN) -> str | None:
    """The address of the PCI function that a VAN has; None: it has none."""
    handle = van.handle
    return handle.address if isinstance(handle, objects.PCIHandle) else None


def check_not_whole(
    by: driver.DriverBase, van: objects.VAN, address: str, device: str
) -> None:
    """See that no other VAN has a device whole, of which a part is wanted.

    :param address: of the device
    :param device: the same, for the error
    :raises DeviceBusy: one has it
    """
    for other in by.vans_on(address):
        if other.uuid != van.uuid and function_of(other) == address:
            raise exception.DeviceBusy(
                device=device, holder=f'instance {other.instance_uuid}'
            )


def check_holders(device: str, holders: Sequence[str]) -> None:
    """See that nobody has a device.

    :param device: what it is, for the error
    :param holders: as privileged.holding has found them
    :raises DeviceBusy: there are some
    """
    if holders:
        raise exception.DeviceBusy(
            device=device, holder='; '.join(holders) + ','
        )


def selector(request: objects.AcceleratorRequest) -> str:
    """What a request selects a device by, in words."""
    traits = ', '.join(request.traits) or '(any)'
    return f'{request.resource_class} with the traits {traits}'


def none_left(
    request: objects.AcceleratorRequest, reasons: Sequence[str], none: str
) -> exception.DeviceNotFound:
    """The error where no device could be had for a request.

    :param reasons: why not, for each that would have served
    :param none: what to say where none would have served
    """
    return exception.DeviceNotFound(
        wanted=selector(request), reason='; '.join(reasons) or none
    )
