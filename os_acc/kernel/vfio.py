# SPDX-License-Identifier: Apache-2.0

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
from os_acc.deadlines import waiting
from os_acc.kernel import device_file
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.privileged import operation_lock
from os_acc.refusals import refusals
from os_acc.spec import device_spec

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
    """Read how a function is bound now, as root.

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
    """Whether a function is bound to vfio-pci or a variant of it.

    A function on a VFIO driver has a folder vfio-dev (drivers/vfio/vfio_main.c
    from Linux 6.1 on); libvirt goes by it as well (src/util/virpci.c). On an
    older kernel a variant is known by modules.alias only. A VF that NVIDIA's
    driver keeps for vGPUs has vfio-dev too, but that driver is no variant of
    vfio-pci: the VF is useless to a guest until it has a vGPU type.
    """
    if function.driver is None:
        return False
    return modules.is_vfio_driver(function.driver) or (
        'vfio-dev' in function.entries and 'nvidia' not in function.entries
    )


def driver_for(function: pci.Function, spec: device_spec.Spec) -> str:
    """The module of the VFIO driver that os-acc binds a function to.

    It is the entry's vfio_driver if that is set. Otherwise it is what
    modules.alias says, which cannot be read in a container without the host's
    /lib/modules: then it is vfio-pci.

    :param spec: the entry of device_spec for it
    :raises InvalidRequest: if vfio_driver is not the name of a VFIO driver
    """
    chosen = spec.vfio_driver
    if chosen is None:
        return modules.vfio_driver(function.modalias)
    if not modules.is_name(chosen) or 'vfio' not in chosen:
        raise exception.InvalidRequest(
            subject='[os_acc] device_spec',
            field='vfio_driver',
            value=chosen,
            expected='the name of a VFIO driver, such as vfio-pci or '
            'mlx5_vfio_pci',
        )
    return chosen


def is_migratable(driver: str) -> bool:
    """Whether guests can be live migrated with functions on a VFIO driver.

    vfio-pci cannot save the state of a device; a variant driver is made to do
    so. The exception is in drivers/vfio/pci/nvgrace-gpu. Whether the device's
    firmware supports it too, only the guest's start shows.
    """
    return not any(
        modules.same(driver, name)
        for name in (modules.VFIO_PCI, 'nvgrace_gpu_vfio_pci')
    )


def has_groups() -> bool:
    """Whether the kernel gives functions to guests by their IOMMU group.

    A kernel without CONFIG_VFIO_GROUP has no file for a group, only one for
    each device, which a guest uses with iommufd. The kernel makes the class
    vfio for groups and the class vfio-dev for devices (drivers/vfio/group.c,
    vfio_main.c) when the module vfio is loaded. As long as it is not, the
    answer is True.
    """
    return os.path.isdir(f'{sysfs.SYS}/class/vfio') or not os.path.isdir(
        f'{sysfs.SYS}/class/vfio-dev'
    )


def group_of(address: str) -> str | None:
    """The IOMMU group of a PCI function; None if it is in none."""
    return sysfs.link(f'{pci.folder(address)}/iommu_group')


def node(group: str) -> str:
    """The file that a guest opens for the functions of an IOMMU group."""
    return f'{sysfs.DEV}/vfio/{group}'


def nodes(path: str) -> list[device_file.DeviceFile]:
    """The existing VFIO files of a device.

    :param path: the device's folder in sysfs
    """
    return group_nodes(path) + device_nodes(path)


def group_nodes(path: str) -> list[device_file.DeviceFile]:
    """The existing VFIO files of a device's IOMMU group.

    The file exists once a device of the group is bound to VFIO. In no-IOMMU
    mode its name is noiommu-<group> (drivers/vfio/group.c).
    """
    group = sysfs.link(f'{path}/iommu_group')
    names = (group, f'noiommu-{group}') if group is not None else ()
    found = [
        device_file.read(node(name), f'{sysfs.SYS}/class/vfio/{name}')
        for name in names
    ]
    return [file for file in found if file is not None]


def device_nodes(path: str) -> list[device_file.DeviceFile]:
    """The VFIO files of a device of its own.

    From Linux 6.6 on, a device can have one (Documentation/driver-api/
    vfio.rst).
    """
    found = [
        device_file.read(node(f'devices/{name}'), f'{path}/vfio-dev/{name}')
        for name in sysfs.names(f'{path}/vfio-dev')
    ]
    return [file for file in found if file is not None]


def is_held(file: device_file.DeviceFile) -> bool:
    """Whether the kernel itself says that a VFIO group is open.

    A group can be open only once (vfio_group_fops_open() in
    drivers/vfio/group.c), so a True answer is certain. The file of a device
    itself can be opened any number of times: only the ioctl that binds it to
    an iommufd fails the second time (vfio_device_fops_cdev_open() and
    vfio_df_ioctl_bind_iommufd() in drivers/vfio/device_cdev.c). For it the
    answer is always False, which says nothing.

    For a group this also finds users that /proc/PID/fd does not show: a
    process that was killed and is still closing its files, an open file on its
    way through a socket, and a mapping of the device.

    :param file: one of nodes()
    :returns: False also if this process is not allowed to open it
    """
    if os.path.dirname(file.path) == node('devices'):
        return False
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
    :param seconds: how long to wait for the driver and for the file below
        /dev/vfio
    :raises DeviceError: if the kernel refuses, or there is no IOMMU group
    :raises Timeout: if the driver does not bind it, or no file appears
    """
    end = time.monotonic() + seconds
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
            reason=refusals.NO_IOMMU_GROUP.say().text,
        )
    left = max(end - time.monotonic(), 0.0)
    if has_groups():
        path = node(group)
        waiting.until(lambda: os.path.exists(path), left, path)
        return
    waiting.until(
        lambda: any(
            os.path.exists(file.path)
            for file in device_nodes(pci.folder(address))
        ),
        left,
        f'a file in {sysfs.DEV}/vfio/devices for PCI function {address}',
    )


def restore(address: str, to: Binding, seconds: float) -> None:
    """Bind a function as it was bound before.

    :raises DeviceError: if the kernel refuses
    :raises Timeout: if its driver does not bind it again
    """
    now = Binding.of(pci.get(address))
    if now.driver != to.driver:
        if to.driver is not None:
            # With it, the kernel lets no other driver bind the function, and
            # lets the driver bind a VF even if sriov_drivers_autoprobe of its
            # PF is 0: pci_device_can_probe() in drivers/pci/pci-driver.c.
            _override(address, to.driver)
        if now.driver is not None:
            _unbind(address, now.driver)
        if to.driver is not None:
            # drivers_probe could bind it to another driver.
            _write(address, f'{pci.driver_folder(to.driver)}/bind', address)
            waiting.until(
                lambda: pci.driver_of(address) == to.driver,
                seconds,
                f'driver {to.driver} to bind PCI function {address} again',
                'pci',
            )
    if Binding.of(pci.get(address)).override != to.override:
        _override(address, to.override)


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


def is_alone(function: pci.Function) -> bool:
    """Whether a function is in an IOMMU group that has no other member."""
    group = function.iommu_group
    return group is not None and pci.group_members(group) == [function.address]
