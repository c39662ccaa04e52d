# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Whether a device may be given to an instance: all, before any act."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib

from os_acc import driver
from os_acc import exception
from os_acc import objects
from os_acc.devices import device_spec
from os_acc.devices import in_use
from os_acc.devices import pci
from os_acc.devices import sriov
from os_acc.devices import vfio


@contextlib.contextmanager
def group_lock(
    by: driver.DriverBase, function: pci.Function
) -> Iterator[None]:
    """Hold a function's IOMMU group, where others are in it."""
    group = function.iommu_group
    if group is None or len(pci.group_members(group)) < 2:
        yield
        return
    with by.lock(f'iommu-group-{group}'):
        yield


def check_function(
    by: driver.DriverBase,
    van: objects.VAN,
    function: pci.Function,
    bind: str,
    new: bool,
) -> None:
    """See that nobody uses a function, nor what must go with it.

    :param by: the driver, which knows the journal
    :param bind: who is to bind it, one of device_spec.BINDS
    :param new: it was just made, so that nobody can have it
    :raises DeviceBusy: another guest has it, or a part of its IOMMU group
    :raises DeviceInUseByHost: the host uses it, or a part of its group
    :raises DeviceError: it cannot go to a guest at all
    """
    device = f'PCI function {function.address}'
    _check_possible(function, bind, device)
    if function.is_pf and (number := sriov.count(function.address)):
        raise exception.DeviceBusy(
            device=f'PF {function.address}', holder=f'its {number} VFs'
        )
    _check_vans(by, van, function)
    use = in_use.by_host(function) or _by_group(by, van, function)
    if use is not None:
        raise exception.DeviceInUseByHost(device=device, by=use)
    shares = _check_group(by, van, function)
    if not new:
        from os_acc.privileged import holding

        check_holders(
            device,
            holding.of_function(function.address, van.instance_uuid, shares),
        )


def _by_group(
    by: driver.DriverBase, van: objects.VAN, function: pci.Function
) -> str | None:
    """What the host uses of a function's group that the instance is not to
    get too.
    """
    others = in_use.in_group(function)
    if not others:
        return None
    siblings = functions_of(by.requests_of(van.instance_uuid))
    for member, reason in others:
        if isinstance(member, str) or member.address not in siblings:
            return reason
    return None


def _check_vans(
    by: driver.DriverBase, van: objects.VAN, function: pci.Function
) -> None:
    """A part of it may be another VAN's: a mediated device, a vGPU."""
    for other in by.vans_on(function.address):
        if other.uuid != van.uuid and other.handle is not None:
            raise exception.DeviceBusy(
                device=f'PCI function {function.address}',
                holder=f'instance {other.instance_uuid}, by '
                f'{other.handle.identity},',
            )


def _check_possible(function: pci.Function, bind: str, device: str) -> None:
    if function.is_bridge:
        raise exception.DeviceError(
            device=device, reason='it is a bridge: nothing for a guest'
        )
    if function.iommu_group is None:
        raise exception.DeviceError(
            device=device,
            reason='it is in no IOMMU group: enable the IOMMU in the '
            'firmware, and boot with intel_iommu=on or its like',
        )
    if bind == device_spec.BIND_NONE and not vfio.is_bound(function):
        raise exception.DeviceError(
            device=device,
            reason=f'it is bound to {function.driver or "no driver"}, and '
            'with bind = none someone else has to bind it to VFIO first',
        )


def address_of(van: objects.VAN) -> str:
    """The address of the PCI function that a VAN is known to have."""
    assert isinstance(van.handle, objects.PCIHandle)
    address: str = van.handle.address
    return address


def functions_of(
    those: Iterable[objects.VAN | objects.AcceleratorRequest],
) -> set[str]:
    """The addresses of the PCI functions that VANs have, or requests name."""
    handles = [each.handle for each in those]
    return {
        handle.address
        for handle in handles
        if isinstance(handle, objects.PCIHandle)
    }


def _check_group(
    by: driver.DriverBase, van: objects.VAN, function: pci.Function
) -> bool:
    """An IOMMU group goes to one guest only.

    :returns: whether the instance has another function of the group
    :raises DeviceBusy: another instance has one
    """
    shares = False
    group = function.iommu_group or ''
    for name in pci.group_members(group):
        if name == function.address or not pci.is_address(name):
            continue
        member = pci.find(name)
        if member is None:
            continue
        for other in by.vans_on(member.parent):
            if name not in functions_of([other]):
                continue
            if other.instance_uuid != van.instance_uuid:
                raise exception.DeviceBusy(
                    device=f'IOMMU group {group} of {function.address}',
                    holder=f'instance {other.instance_uuid}, by {name},',
                )
            shares = True
    return shares


def check_not_whole(
    by: driver.DriverBase, van: objects.VAN, address: str, device: str
) -> None:
    """See that no other VAN has a device whole, of which a part is wanted.

    :param address: of the device
    :param device: the same, for the error
    :raises DeviceBusy: one has it
    """
    for other in by.vans_on(address):
        if other.uuid != van.uuid and address in functions_of([other]):
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
        wanted=selector(request),
        reason='; '.join(dict.fromkeys(reasons)) or none,
    )
