# SPDX-License-Identifier: Apache-2.0

"""Taking PCI functions: who binds them, what undo needs, and the binding."""

from __future__ import annotations

import dataclasses
import logging

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import log
from os_acc import objects
from os_acc.availability import companions as companion_functions
from os_acc.availability import functions as availability
from os_acc.availability import storage
from os_acc.availability import vfio_rules
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import reset
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.kinds.pci.driver import companions
from os_acc.kinds.pci.driver import port
from os_acc.kinds.pci.driver import release
from os_acc.kinds.pci.driver import vfs as pci_vfs
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF


def bind_mode(
    driver: driver_base.DriverBase,
    wanted: objects.PCIHandle,
    spec: device_spec.Spec,
    for_host: bool,
) -> str:
    """Who is to bind a function.

    The handle's ``managed`` takes precedence, except that a function that the
    operator binds stays bound. For a service of the host itself, the entry's
    host_driver takes precedence.
    """
    if for_host and spec.host_driver is not None:
        return device_spec.BIND_HOST
    chosen: str = spec.bind or driver.config.bind
    if chosen == device_spec.BIND_NONE:
        return chosen
    if wanted.managed:
        return device_spec.BIND_LIBVIRT
    if wanted.managed is False:
        return device_spec.BIND_OS_ACC
    return chosen


def before(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    function: pci.Function,
    spec: device_spec.Spec,
    bind: str,
) -> dict[str, str]:
    """What undo needs to know about a function before it is touched."""
    data = {
        release.BIND: bind,
        **release.identity(function),
        release.RESET: spec.reset or driver.config.reset,
    }
    if bind in release.BOUND_BY_OS_ACC and function.driver is not None:
        data[release.DRIVER_BEFORE] = function.driver
    if bind == device_spec.BIND_HOST:
        data[release.HOST_DRIVER] = str(spec.host_driver)
        return data
    if spec.command_empties:
        data[release.COMMAND_EMPTIES] = 'yes'
    data |= release.hints(function, spec, bind)
    if bind == device_spec.BIND_OS_ACC:
        data[release.VFIO_DRIVER] = vfio_rules.driver_for(function, spec)
        # Another VAN of the instance has bound it to VFIO.
        taken = companions.record_of(driver, van, function)
        if taken is not None and vfio.is_bound(function):
            data.pop(release.DRIVER_BEFORE, None)
            if release.DRIVER_BEFORE in taken:
                data[release.DRIVER_BEFORE] = taken[release.DRIVER_BEFORE]
    return data


def companions_before(
    driver: driver_base.DriverBase,
    specs: device_spec.Specs,
    van: objects.VAN,
    function: pci.Function,
    spec: device_spec.Spec,
    bind: str,
) -> dict[str, str]:
    """Check what is to be bound along with a function, and record it.

    After a reboot this includes functions that were unplugged while the
    VAN stayed.
    """
    known = companions.own(driver, van)
    wanted = {
        each.address: each
        for each in companion_functions.of(function, spec, bind)
    }
    new = [each for name, each in wanted.items() if name not in known]
    if (denied := companions.denied(specs, new)) is not None:
        device = f'PCI function {function.address}'
        raise availability.Obstacle.of(device, denied).error()
    for address in known.keys() - wanted.keys():
        left = pci.find(address)
        if left is not None and left.ids == known[address][release.IDS]:
            wanted[address] = left
    if not wanted:
        return {}
    holders = allocation.holders(driver)
    records = {}
    for address, each in wanted.items():
        if holders.of_function(address) is not None:
            continue  # another VAN of the instance has it
        if address in known and vfio.is_bound(each):
            records[address] = known[address]
            continue
        allocation.check_nobody_has_open(each, van.instance_uuid, holders)
        its_spec = (
            specs.held(each, known[address].get(release.VFIO_DRIVER))
            if address in known
            else companion_functions.entry_for(specs, each)
        )
        records[address] = {
            # Few companions have a reset of their own to require.
            **before(driver, van, each, its_spec, device_spec.BIND_OS_ACC),
            release.RESET: its_spec.reset or reset.AUTO,
        }
    return companions.to_data(records)


def take(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    wanted: dict[str, dict[str, str]],
) -> None:
    """Bind functions of a VAN to VFIO."""
    requests = driver.requests_of(van.instance_uuid)
    siblings = allocation.functions_of(requests) | {
        allocation.address_of(van),
        *wanted,
    }
    from os_acc.privileged.pci import functions as privileged

    for address, data in wanted.items():
        name = privileged.take(
            address,
            data[release.VFIO_DRIVER],
            sorted(siblings - {address}),
            van.instance_uuid,
            CONF.os_acc.device_timeout,
        )
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'PCI function %s is bound to %s', address, name
        )
    # It is known for certain only now that the module vfio is loaded.
    if not vfio.has_groups() and release.IOMMUFD not in van.driver_data:
        van.driver_data = {**van.driver_data, release.IOMMUFD: 'yes'}
        van.save()


def take_again(
    driver: driver_base.DriverBase,
    specs: device_spec.Specs,
    van: objects.VAN,
    request: objects.AcceleratorRequest,
) -> None:
    """Take the function that a VAN had: after a reboot, or if it was lost."""
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
        release.check_same(van, function)
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
                data |= before(driver, van, function, spec, bind)
            data |= companions_before(driver, specs, van, function, spec, bind)
            van.live_migratable = unknown_or_no(function, spec, bind)
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


def take_for_host(van: objects.VAN) -> None:
    """Bind the function of a VAN to its host_driver."""
    from os_acc.privileged.pci import functions as privileged

    address = allocation.address_of(van)
    driver = van.driver_data[release.HOST_DRIVER]
    privileged.take_for_host(
        address, driver, van.instance_uuid, CONF.os_acc.device_timeout
    )
    log.about(LOG, van.instance_uuid, van.uuid).info(
        'PCI function %s is bound to %s', address, driver
    )


def is_intact(address: str, data: dict[str, str]) -> bool:
    """Whether a function of a VAN is there, and bound as a guest needs it.

    libvirt binds a function only when the guest starts.
    """
    function = pci.find(address)
    if function is None or function.ids != data[release.IDS]:
        return False
    if data[release.BIND] == device_spec.BIND_HOST:
        return modules.same(function.driver or '', data[release.HOST_DRIVER])
    by_libvirt = data[release.BIND] == device_spec.BIND_LIBVIRT
    return by_libvirt or vfio.is_bound(function)


def unknown_or_no(
    function: pci.Function, spec: device_spec.Spec, bind: str
) -> bool | None:
    """What live_migratable of a VAN is before the kernel is asked.

    device_spec can forbid it, and the data of a drive stays behind. What
    libvirt binds is bound only when the guest starts: it cannot be asked.
    """
    may_migrate = (
        bind in (device_spec.BIND_OS_ACC, device_spec.BIND_NONE)
        and spec.live_migratable is not False
        and not storage.is_storage(function)
    )
    return None if may_migrate else False
