# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Binding a PCI function to VFIO, and binding it to its driver again.

This never writes to new_id, which would also bind other functions with the
same ids.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import time

from os_acc import exception
from os_acc.devices import device_file
from os_acc.devices import modules
from os_acc.devices import operation_lock
from os_acc.devices import pci
from os_acc.devices import sysfs
from os_acc.devices import waiting

LOG = logging.getLogger(__name__)

# How often is_held() tries to open a group.
_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Binding:
    """How a function is bound.

    :ivar driver: its driver; None if it is bound to none
    :ivar override: the text of driver_override; None if it is unset
    """

    driver: str | None
    override: str | None

    @classmethod
    def of(cls, function: pci.Function) -> Binding:
        """Read the binding; without the operation lock use read_binding()."""
        return cls(function.driver, function.driver_override)


def read_binding(function: pci.Function, seconds: float) -> Binding:
    """Read how a function is bound now.

    Reading driver_override waits for the device's lock as long as an unbind of
    it is blocked (driver_override_show() in drivers/pci/pci-sysfs.c).

    :raises Timeout: if it cannot be read in time
    """

    def act() -> Binding:
        with operation_lock.held(function.path, seconds / 2):
            return Binding.of(function)

    what = f'the driver_override of PCI function {function.address}'
    return waiting.at_most(act, seconds, what)


def is_bound(function: pci.Function) -> bool:
    """Whether a function is bound to vfio-pci or a variant of it."""
    return function.driver is not None and modules.is_vfio_driver(
        function.driver
    )


def group_of(address: str) -> str | None:
    """The IOMMU group of a PCI function; None if it is in none."""
    return sysfs.link(f'{pci.folder(address)}/iommu_group')


def node(group: str) -> str:
    """The file that a guest opens for the functions of an IOMMU group."""
    return f'{sysfs.DEV}/vfio/{group}'


def nodes(path: str) -> list[device_file.DeviceFile]:
    """The existing VFIO files of a device.

    The file of its IOMMU group exists once a device of the group is bound to
    VFIO. In no-IOMMU mode its name is noiommu-<group> (drivers/vfio/group.c).
    From Linux 6.6 on, a device can also have a file of its own
    (Documentation/driver-api/vfio.rst).

    :param path: the device's folder in sysfs
    """
    group = sysfs.link(f'{path}/iommu_group')
    groups = (group, f'noiommu-{group}') if group is not None else ()
    found = [
        device_file.read(node(name), f'{sysfs.SYS}/class/vfio/{name}')
        for name in groups
    ] + [
        device_file.read(node(f'devices/{name}'), f'{path}/vfio-dev/{name}')
        for name in sysfs.names(f'{path}/vfio-dev')
    ]
    return [file for file in found if file is not None]


def is_held(file: device_file.DeviceFile) -> bool:
    """Whether the kernel itself says that a VFIO group is open.

    A group can be open only once (vfio_group_fops_open() in
    drivers/vfio/group.c). This also finds users that /proc/PID/fd does not
    show: a process that was killed and is still closing its files, an open
    file on its way through a socket, and a mapping of the device.

    :param file: one of nodes()
    :returns: False also if this process is not allowed to open it
    """
    for _ in range(_TRIES):
        try:
            os.close(os.open(file.path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as err:
            if err.errno != errno.EBUSY:
                return False
        else:
            return False
        # Another process may be in this function at the moment.
        time.sleep(0.01)
    return True


def bind(address: str, driver: str, seconds: float) -> None:
    """Unbind a function from its driver, and bind it to a VFIO driver.

    :param driver: vfio-pci or a variant of it; the driver must be loaded
    :param seconds: how long to wait for the driver, and then for the file
        below /dev/vfio
    :raises DeviceError: if the kernel refuses, or there is no IOMMU group
    :raises Timeout: if the driver does not bind it, or no file appears
    """
    now = Binding.of(pci.get(address))
    if now.driver != driver:
        _override(address, driver)
        if now.driver is not None:
            _unbind(address, now.driver)
        _write(address, f'{sysfs.SYS}/bus/pci/drivers_probe', address)
        waiting.until(
            lambda: pci.driver_of(address) == driver,
            seconds,
            f'driver {driver} to bind PCI function {address}',
            'pci',
        )
    group = group_of(address)
    if group is None:
        raise exception.DeviceError(
            device=f'PCI function {address}',
            reason='it is in no IOMMU group: enable the IOMMU in the '
            'firmware, and boot with intel_iommu=on or the equivalent of '
            'the platform',
        )
    path = node(group)
    waiting.until(lambda: os.path.exists(path), seconds, path)


def restore(address: str, to: Binding, seconds: float) -> None:
    """Bind a function as it was bound before.

    :raises DeviceError: if the kernel refuses
    :raises Timeout: if its driver does not bind it again
    """
    now = Binding.of(pci.get(address))
    if now.override != to.override:
        _override(address, to.override)
    if now.driver == to.driver:
        return
    if now.driver is not None:
        _unbind(address, now.driver)
    if to.driver is None:
        return
    # drivers_probe could bind it to another driver.
    _write(address, f'{pci.driver_folder(to.driver)}/bind', address)
    waiting.until(
        lambda: pci.driver_of(address) == to.driver,
        seconds,
        f'driver {to.driver} to bind PCI function {address} again',
        'pci',
    )


def _override(address: str, driver: str | None) -> None:
    # A line feed clears it, an empty write does not: driver_set_override() in
    # drivers/base/driver.c.
    text = '\n' if driver is None else driver
    _write(address, f'{pci.folder(address)}/driver_override', text)


def _unbind(address: str, driver: str) -> None:
    try:
        sysfs.write(f'{pci.driver_folder(driver)}/unbind', address)
    except OSError as err:
        # ENODEV: it is not bound to that driver any more.
        if err.errno != errno.ENODEV or pci.driver_of(address) == driver:
            raise _error(address, f'unbind from {driver}', err) from err


def _write(address: str, path: str, text: str) -> None:
    try:
        sysfs.write(path, text)
    except OSError as err:
        what = f'{os.path.basename(path)} {text.strip() or "(none)"}'
        raise _error(address, what, err) from err


def _error(address: str, what: str, err: OSError) -> exception.DeviceError:
    return exception.DeviceError(
        device=f'PCI function {address}', reason=f'{what}: {err.strerror}'
    )
