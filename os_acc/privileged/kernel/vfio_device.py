# SPDX-License-Identifier: Apache-2.0

"""Asking a VFIO device whether it has a feature, as root.

Numbers and structures are those of include/uapi/linux/vfio.h and iommufd.h of
the kernel. The kernel's side is in drivers/vfio: group.c and device_cdev.c
open a device, vfio_ioctl_device_feature() in vfio_main.c answers.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import os
import struct

from os_acc.kernel import device_files
from os_acc.kernel import sysfs
from os_acc.kernel import vfio

#: VFIO_DEVICE_FEATURE_MIGRATION: the state of the device can be saved
MIGRATION = 1

# _IO(';', 100 + n)
_SET_IOMMU = 0x3B66
_GROUP_SET_CONTAINER = 0x3B68
_GROUP_GET_DEVICE_FD = 0x3B6A
_DEVICE_FEATURE = 0x3B75
_DEVICE_BIND_IOMMUFD = 0x3B76

_TYPE1V2_IOMMU = 3
_FEATURE_GET, _FEATURE_PROBE = 1 << 16, 1 << 18
_FEATURE = struct.Struct('=II')  # argsz, flags
_BIND = struct.Struct('=IIiI')  # argsz, flags, iommufd, out_devid
_FD = struct.Struct('=i')


def probe(path: str, name: str, feature: int) -> None:
    """Ask whether a guest could get a feature of a device.

    The device is opened as a guest would open it, and closed at once. The
    kernel resets a PCI function when it is opened and closed.

    :param path: the device's directory in sysfs
    :param name: by which its IOMMU group knows it: a PCI address, or the UUID
        of a mediated device
    :raises OSError: if it has not: ENOTTY; if a guest has it open: EBUSY; or
        if the kernel cannot be asked
    """
    with contextlib.ExitStack() as opened:
        if vfio.has_groups():
            fd = _by_group(path, name, opened)
        else:
            fd = _by_iommufd(path, opened)
        flags = _FEATURE_GET | _FEATURE_PROBE | feature
        fcntl.ioctl(fd, _DEVICE_FEATURE, _FEATURE.pack(_FEATURE.size, flags))


def _by_group(path: str, name: str, opened: contextlib.ExitStack) -> int:
    container = opened.enter_context(_opened(f'{sysfs.DEV}/vfio/vfio'))
    fd = opened.enter_context(_opened_as(vfio.group_nodes(path)))
    fcntl.ioctl(fd, _GROUP_SET_CONTAINER, _FD.pack(container))
    fcntl.ioctl(container, _SET_IOMMU, _TYPE1V2_IOMMU)
    # A mutable buffer lets ioctl() return the descriptor.
    device: int = fcntl.ioctl(
        fd, _GROUP_GET_DEVICE_FD, bytearray(name.encode() + b'\0')
    )
    opened.callback(os.close, device)
    return device


def _by_iommufd(path: str, opened: contextlib.ExitStack) -> int:
    iommufd = opened.enter_context(_opened(f'{sysfs.DEV}/iommu'))
    device = opened.enter_context(_opened_as(vfio.device_nodes(path)))
    argument = _BIND.pack(_BIND.size, 0, iommufd, 0)
    fcntl.ioctl(device, _DEVICE_BIND_IOMMUFD, argument)
    return device


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _opened_as(files: list[device_files.DeviceFile]) -> Iterator[int]:
    """Open a device file, if it is the device that sysfs shows.

    :param files: the first one counts; if there is none, ENXIO is raised
    """
    if not files:
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    with _opened(files[0].path) as fd:
        number = os.fstat(fd).st_rdev
        if files[0].number != device_files.Number(
            'c', os.major(number), os.minor(number)
        ):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        yield fd
