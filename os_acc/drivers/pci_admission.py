# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Whether a PCI function may be given to an instance: all, before any act."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

from os_acc import device_spec
from os_acc import driver
from os_acc import exception
from os_acc import objects
from os_acc.drivers import claims
from os_acc.linux import in_use
from os_acc.linux import pci
from os_acc.linux import sriov
from os_acc.linux import vfio


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


def check(
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
    use = in_use.by_host(function)
    siblings = addresses_of_instance(by, van)
    for member, reason in in_use.in_group(function):
        if isinstance(member, str) or member.address not in siblings:
            use = use or reason
    if use is not None:
        raise exception.DeviceInUseByHost(device=device, by=use)
    shares = _check_group(by, van, function)
    if not new:
        from os_acc.privileged import holding

        claims.check_holders(
            device,
            holding.of_function(function.address, van.instance_uuid, shares),
        )


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


def addresses_of_instance(by: driver.DriverBase, van: objects.VAN) -> set[str]:
    """The PCI functions that an instance has, or is to have."""
    handles = [request.handle for request in by.requests_of(van.instance_uuid)]
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
        member = pci.find(name) if pci.is_address(name) else None
        if member is None or name == function.address:
            continue
        for other in by.vans_on(member.parent):
            if claims.function_of(other) != name:
                continue
            if other.instance_uuid != van.instance_uuid:
                raise exception.DeviceBusy(
                    device=f'IOMMU group {group} of {function.address}',
                    holder=f'instance {other.instance_uuid}, by {name},',
                )
            shares = True
    return shares


def check_pf(
    by: driver.DriverBase, van: objects.VAN, pf: pci.Function
) -> None:
    """See that a PF may get VFs.

    :raises DeviceBusy: a guest has the PF itself
    """
    device = f'PF {pf.address}'
    claims.check_not_whole(by, van, pf.address, device)
    if vfio.is_bound(pf):
        raise exception.DeviceBusy(device=device, holder=f'driver {pf.driver}')
