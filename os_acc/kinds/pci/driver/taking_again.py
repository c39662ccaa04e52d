# SPDX-License-Identifier: Apache-2.0

"""Takes the PCI function that a VAN had, after a reboot or if it was lost."""

from __future__ import annotations

import dataclasses

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.kinds.pci.driver import companions
from os_acc.kinds.pci.driver import port
from os_acc.kinds.pci.driver import release
from os_acc.kinds.pci.driver import taking
from os_acc.kinds.pci.driver import vfs as pci_vfs
from os_acc.spec import device_spec

CONF = cfg.CONF


def take(
    driver: driver_base.DriverBase,
    specs: device_spec.Specs,
    van: objects.VAN,
    request: objects.AcceleratorRequest,
) -> None:
    """Take the function that a VAN had: after a reboot, or if it was lost.

    :param specs: the entries of device_spec that are the driver's
    :raises DeviceNotFound: if another function is at that address
    :raises DeviceBusy, DeviceInUseByHost, DeviceError: if the function
        cannot be taken
    :raises Timeout: if it does not come back
    """
    address = allocation.address_of(van)
    pf = van.device or address
    with driver.lock(pf):
        pci_vfs.create_again(van, pf, specs)
        # VFs that another service makes appear once it has started.
        function = waiting.until(
            lambda: as_before(address, pf),
            CONF.os_acc.device_timeout,
            f'PCI function {address} to come back'
            + ('' if pf == address else f' as a VF of {pf}'),
            'pci',
        )
        if function.ids != van.driver_data[release.IDS]:
            raise exception.DeviceNotFound(
                wanted=f'PCI function {address}',
                reason=f'device {function.ids} is at that address now; '
                f'when it was plugged, {van.driver_data[release.IDS]} was',
            )
        bind = van.driver_data[release.BIND]
        spec = specs.held(
            function,
            van.driver_data.get(release.VFIO_DRIVER),
            release.COMMAND_EMPTIES in van.driver_data,
        )
        if bind == device_spec.BIND_HOST:
            spec = dataclasses.replace(
                spec, host_driver=van.driver_data[release.HOST_DRIVER]
            )
        with allocation.shared_locks(driver, function, spec):
            allocation.check_function(
                driver,
                van,
                function,
                spec,
                bind,
                new=False,
                companions=companions.of(van),
            )
            if release.CLEANED in van.driver_data and (
                bind not in release.BOUND_BY_OS_ACC
            ):
                release.hold(address)
            data = dict(van.driver_data)
            data.pop(release.CLEANED, None)
            data.pop(port.REPRESENTOR, None)
            if not vfio.is_bound(function):
                # Without a reboot it may be bound to nothing, and goes
                # back to the driver that it had at first.
                if van.boot_id != sysfs.boot_id():
                    data.pop(release.DRIVER_BEFORE, None)
                data |= taking.before(driver, van, function, spec, bind)
            data |= taking.companions_before(
                driver, specs, van, function, spec, bind
            )
            van.live_migratable = taking.unknown_or_no(function, spec, bind)
            van.driver_data = data | port.state(function, request, data)
            van.save()


def as_before(address: str, pf: str) -> pci.Function | None:
    """A function, if it is, or is not, a VF as it was when a VAN got it.

    After a change of the firmware, another function of a card can be where a
    VF was.

    :param pf: the PF that the VF had; the address itself: it was not a VF
    """
    found = pci.find(address)
    return found if found is not None and found.parent == pf else None
