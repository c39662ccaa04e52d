# SPDX-License-Identifier: Apache-2.0

"""Which block device a path stands for, as files of the kernel show it."""

from __future__ import annotations

import fcntl
import os
import struct

from os_acc.kernel import device_files
from os_acc.kernel import sysfs

# LOOP_GET_STATUS64 and struct loop_info64: include/uapi/linux/loop.h. The
# field lo_rdevice is the number of the block device behind the loop device.
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_INFO = struct.Struct('=16xQ208x')


def name_of(path: str) -> str | None:
    """The name in sysfs of the block device that a path stands for, if any.

    The number of the file counts, because a device file may be at any place:
    kubelet makes one for each raw block volume below /var/lib/kubelet. If the
    file is not here, its name below /dev counts. The kernel writes
    ' (deleted)' behind a path that was removed.
    """
    path = path.removesuffix(' (deleted)')
    there = os.path.join(sysfs.DEV, path.removeprefix('/dev/'))
    number = device_files.number_of(there)
    if number is not None and number.kind == 'b':
        name = _name_of_number(number.major, number.minor)
        if name is not None:
            return name
    if not path.startswith('/dev/'):
        return None
    # The kernel writes ! for / in a name: kobject_set_name_vargs() in
    # lib/kobject.c. cciss/c0d0 is such a name.
    real = os.path.realpath(there)
    return os.path.relpath(real, os.path.realpath(sysfs.DEV)).replace('/', '!')


def name_of_tagged(text: str) -> str | None:
    """Do what name_of() does, also for a name like UUID=...: fstab(5)."""
    tag, equals, value = text.replace('"', '').partition('=')
    return name_of(f'/dev/disk/by-{tag.lower()}/{value}' if equals else text)


def behind_loop(name: str, path: str) -> str | None:
    """The name of the block device that a loop device keeps its data on.

    The loop driver does not open it exclusively: loop_configure() in
    drivers/block/loop.c. None: it is an ordinary file, or the path does not
    exist here and this process may not ask the loop device.

    :param path: what the file loop/backing_file says: a path in the mount
        namespace of the process that has set it up
    """
    if found := name_of(path):
        return found
    if device_files.exists(path):
        return None
    info = bytearray(_LOOP_INFO.size)
    try:
        fd = os.open(f'{sysfs.DEV}/{name}', os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _LOOP_GET_STATUS64, info)
        finally:
            os.close(fd)
    except OSError:
        return None
    (number,) = _LOOP_INFO.unpack(info)
    return _name_of_number(os.major(number), os.minor(number))


def _name_of_number(major: int, minor: int) -> str | None:
    return sysfs.link(f'{sysfs.SYS}/dev/block/{major}:{minor}')
