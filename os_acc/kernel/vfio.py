# SPDX-License-Identifier: Apache-2.0

"""PCI functions that are bound to VFIO, and the files of VFIO."""

from __future__ import annotations

import dataclasses
import errno
import os
import time

from os_acc.kernel import device_files
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import sysfs

# How often is_held() tries to open a group.
_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Binding:
    """The driver of a function, and its driver_override; None: unset."""

    driver: str | None
    override: str | None

    @classmethod
    def of(cls, function: pci.Function) -> Binding:
        """Read the binding; without the operation lock use read_binding()."""
        return cls(function.driver, function.driver_override)


def is_bound(function: pci.Function) -> bool:
    """Whether a function is bound to vfio-pci or a variant of it.

    A function on a VFIO driver has a directory vfio-dev
    (drivers/vfio/vfio_main.c from Linux 6.1 on); libvirt goes by it as well
    (src/util/virpci.c). On an older kernel a variant is known by modules.alias
    only. A VF that NVIDIA's driver keeps for vGPUs has vfio-dev too, but that
    driver is not a variant of vfio-pci: the VF is useless to a guest until it
    has a vGPU type.
    """
    if function.driver is None:
        return False
    return modules.is_vfio_driver(function.driver) or (
        'vfio-dev' in function.entries and 'nvidia' not in function.entries
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
    return sysfs.link(f'{pci.directory(address)}/iommu_group')


def node(group: str) -> str:
    """The file that a guest opens for the functions of an IOMMU group."""
    return f'{sysfs.DEV}/vfio/{group}'


def nodes(path: str) -> list[device_files.DeviceFile]:
    """The existing VFIO files of a device, by its directory in sysfs."""
    return group_nodes(path) + device_nodes(path)


def group_nodes(path: str) -> list[device_files.DeviceFile]:
    """The existing VFIO files of a device's IOMMU group.

    The file exists once a device of the group is bound to VFIO. In no-IOMMU
    mode its name is noiommu-<group> (drivers/vfio/group.c).
    """
    group = sysfs.link(f'{path}/iommu_group')
    names = (group, f'noiommu-{group}') if group is not None else ()
    vfio = f'{sysfs.SYS}/class/vfio'
    found = (device_files.read(node(name), f'{vfio}/{name}') for name in names)
    return [file for file in found if file is not None]


def device_nodes(path: str) -> list[device_files.DeviceFile]:
    """The VFIO files that belong to one device, not to its group.

    From Linux 6.6 on, a device can have such a file (Documentation/driver-api/
    vfio.rst).
    """
    found = (
        device_files.read(node(f'devices/{name}'), f'{path}/vfio-dev/{name}')
        for name in sysfs.names(f'{path}/vfio-dev')
    )
    return [file for file in found if file is not None]


def is_held(file: device_files.DeviceFile) -> bool:
    """Whether the kernel itself says that one of nodes() is open.

    A group can be open only once (vfio_group_fops_open() in
    drivers/vfio/group.c), so a True answer is certain. The file of a device
    itself can be opened any number of times: only the ioctl that binds it to
    an iommufd fails the second time (vfio_device_fops_cdev_open() and
    vfio_df_ioctl_bind_iommufd() in drivers/vfio/device_cdev.c). For it the
    answer is always False, which says nothing; so it is if this process may
    not open the file.

    For a group this also finds users that /proc/PID/fd does not show: a
    process that was killed and is still closing its files, an open file that
    is being passed through a socket, and a mapping of the device.
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
