# SPDX-License-Identifier: Apache-2.0

"""PCI functions between two tenants: still bound to VFIO, or freed."""

from __future__ import annotations

from collections.abc import Callable

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc.availability import companions
from os_acc.availability import storage
from os_acc.drivers import allocation
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.kinds.pci.driver import release
from os_acc.kinds.pci.driver import vfs as pci_vfs
from os_acc.spec import device_spec

CONF = cfg.CONF


def stays(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    specs: Callable[[], device_spec.Specs],
) -> bool:
    """Whether a VAN's function stays bound to VFIO at its release.

    VFs that os-acc has made do not, because they are removed.
    """
    if pci_vfs.MADE in van.driver_data or (
        van.driver_data[release.BIND] != device_spec.BIND_OS_ACC
    ):
        return False
    function = pci.find(allocation.address_of(van))
    try:
        spec = specs().find(function) if function else None
    except exception.InvalidRequest:
        spec = None  # device_spec is malformed by now
    if spec is None:
        return False  # it is not offered any more: the host gets it
    chosen: str = spec.between_tenants or driver.config.between_tenants
    return chosen == device_spec.BETWEEN_VFIO


def free(
    driver: driver_base.DriverBase, specs: device_spec.Specs, address: str
) -> list[str]:
    """Free a function that no VAN has: see DriverBase.free_device().

    One that may hold the data of an instance is emptied first.
    """
    function = pci.find(address) if pci.is_address(address) else None
    if function is None:
        return []
    from os_acc.privileged.pci import functions as privileged

    with driver.lock(function.parent):
        holders = allocation.holders(driver)
        if (holder := holders.of_function(address)) is not None:
            raise exception.DeviceBusy(
                device=f'PCI function {address}',
                reason=f'instance {holder.called} has it (VAN '
                f'{holder.van_uuid})',
            )
        done = []
        spec = specs.held(function)
        others = companions.of(function, spec, device_spec.BIND_OS_ACC)
        for each in (function, *others):
            if holders.of_function(each.address) is not None:
                continue
            name = 'it' if each is function else each.address
            if storage.is_storage(each) and privileged.clean(
                each.address,
                each.ids,
                specs.held(each).reset or driver.config.reset,
                0,
                CONF.os_acc.device_timeout,
                only_if_used=True,
            ):
                done.append(f'{name} was erased')
            if vfio.is_bound(pci.get(each.address)) and privileged.give_back(
                each.address, each.ids, CONF.os_acc.device_timeout
            ):
                now = pci.driver_of(each.address) or 'no driver'
                done.append(f'{name} is bound to {now} again')
    return done
