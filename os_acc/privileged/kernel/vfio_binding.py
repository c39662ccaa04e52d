# SPDX-License-Identifier: Apache-2.0

"""Binding a PCI function to VFIO and to its driver again, as root.

This never writes to new_id, which would also bind other functions with the
same ids.
"""

from __future__ import annotations

import errno
import functools
import os
import time

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.privileged import operation_lock
from os_acc.refusals import refusals


def read_binding(function: pci.Function, seconds: float) -> vfio.Binding:
    """Read how a function is bound now, as root.

    Reading driver_override waits for the device's lock as long as an unbind of
    it is blocked (driver_override_show() in drivers/pci/pci-sysfs.c).
    """
    return operation_lock.within(
        functools.partial(operation_lock.held, function.path),
        seconds,
        f'the driver_override of PCI function {function.address}',
        lambda deadline: vfio.Binding.of(function),
    )


def bind(address: str, driver: str, seconds: float) -> None:
    """Unbind a function from its driver, and bind it to a VFIO driver.

    :param driver: vfio-pci or a variant of it; the driver must be loaded
    :param seconds: how long to wait for the driver and for the file below
        /dev/vfio
    """
    end = time.monotonic() + seconds
    now = vfio.Binding.of(pci.get(address))
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
    group = vfio.group_of(address)
    if group is None:
        raise exception.DeviceError(
            device=f'PCI function {address}',
            reason=refusals.NO_IOMMU_GROUP.reason().text,
        )
    left = max(end - time.monotonic(), 0.0)
    if vfio.has_groups():
        path = vfio.node(group)
        waiting.until(lambda: os.path.exists(path), left, path)
        return
    waiting.until(
        lambda: any(
            os.path.exists(file.path)
            for file in vfio.device_nodes(pci.directory(address))
        ),
        left,
        f'a file in {sysfs.DEV}/vfio/devices for PCI function {address}',
    )


def bind_to_host(address: str, driver: str, seconds: float) -> None:
    """Bind a function to a driver of the host."""
    if pci.driver_of(address) != driver:
        restore(address, vfio.Binding(driver, driver), seconds)


def restore(address: str, to: vfio.Binding, seconds: float) -> None:
    """Bind a function as it was bound before."""
    now = vfio.Binding.of(pci.get(address))
    if now.driver != to.driver:
        if to.driver is not None:
            # With it, the kernel lets no other driver bind the function, and
            # lets the driver bind a VF even if sriov_drivers_autoprobe of its
            # PF is 0: pci_device_can_probe() in drivers/pci/pci-driver.c.
            _override(address, to.driver)
        if now.driver is not None:
            _unbind(address, now.driver)
        if to.driver is not None:
            _bind(address, to.driver, seconds)
    if vfio.Binding.of(pci.get(address)).override != to.override:
        _override(address, to.override)


def rebind(address: str, driver: str, seconds: float) -> None:
    """Unbind a function from its driver and bind it again, which resets it.

    It need not be bound when it is called: an earlier call may have ended in
    between.

    :param driver: the driver; the function must not be bound to another one
    """
    if pci.driver_of(address) is not None:
        _unbind(address, driver)
    _bind(address, driver, seconds)


def _bind(address: str, driver: str, seconds: float) -> None:
    """Bind a function to a driver again, and wait until it is bound."""
    # drivers_probe could bind it to another driver.
    _write(address, f'{pci.driver_directory(driver)}/bind', address)
    waiting.until(
        lambda: pci.driver_of(address) == driver,
        seconds,
        f'driver {driver} to bind PCI function {address} again',
        'pci',
    )


def _override(address: str, driver: str | None) -> None:
    # A line feed clears it, an empty write does not: driver_set_override() in
    # drivers/base/driver.c.
    text = '\n' if driver is None else driver
    _write(address, f'{pci.directory(address)}/driver_override', text)


def _unbind(address: str, driver: str) -> None:
    try:
        sysfs.write(f'{pci.driver_directory(driver)}/unbind', address)
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
