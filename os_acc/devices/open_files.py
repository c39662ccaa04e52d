# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which processes have the files of a device open.

A guest that has a device through VFIO has a file below /dev/vfio open. Seeing
the open files of other users' processes (proc(5), /proc/pid/fd) takes
CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
import contextlib
import errno
import os
import re
import stat

from os_acc import exception
from os_acc.devices import sysfs

# Files that most processes have open, and that belong to no accelerator.
_COMMON = re.compile(
    '/dev/(null|zero|full|u?random|tty|ptmx|console|kmsg|kvm'
    '|(pts|shm|hugepages|mqueue)/.*)'
)

# The initial PID namespace: PROC_PID_INIT_INO, include/linux/proc_ns.h
_HOST_PID_NAMESPACE = 'pid:[4026531836]'


def users_of(paths: Collection[str]) -> list[str]:
    """Find the other processes that have one of the given device files open.

    :param paths: files under /dev; another file of the same device counts too
    :returns: a clause for each process, such as
        'process 4711 (qemu) has /dev/vfio/12 open'
    :raises PrivilegeError: if not all processes of the host can be seen
    """
    check_all_seen()
    wanted = set(paths)
    if not wanted:
        return []
    numbers = {n for path in paths if (n := _number(path)) is not None}
    found = []
    own = str(os.getpid())
    for pid in sysfs.names(sysfs.PROC):
        if not pid.isdigit() or pid == own:
            continue
        for path in _open_files(pid):
            if path in wanted or (
                path.startswith('/dev/')
                and not _COMMON.fullmatch(path)
                and _number(f'{sysfs.PROC}/{pid}/root{path}') in numbers
            ):
                name = sysfs.read(f'{sysfs.PROC}/{pid}/comm') or '?'
                found.append(f'process {pid} ({name}) has {path} open')
                break
    return found


def check_all_seen() -> None:
    """Check that this process sees all processes of the host.

    :raises PrivilegeError: if it runs in a PID namespace of its own
    """
    seen = sysfs.link(f'{sysfs.PROC}/self/ns/pid')
    if seen not in (None, _HOST_PID_NAMESPACE):
        raise exception.PrivilegeError(
            reason='this process is not in the PID namespace of the host and '
            'cannot see which guest has a device open; start the container '
            "in the host's PID namespace (--pid=host)"
        )


def _number(path: str) -> int | None:
    """The device number of a file: several files may be one device."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    return status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else None


def device_files(path: str) -> list[str]:
    """The character devices of a device, such as /dev/uio0.

    :param path: the device's folder in sysfs
    """
    folder, part = f'{sysfs.SYS}/dev/char', f'/{os.path.basename(path)}/'
    found = []
    for number in sysfs.names(folder):
        # A link such as ../../devices/pci0000:00/0000:00:17.0/uio/uio0
        where = f'{folder}/{number}'
        # The link may vanish while the others are read.
        if part in (sysfs.target(where) or ''):
            text = sysfs.read(f'{where}/uevent') or ''
            for line in text.splitlines():
                if line.startswith('DEVNAME='):
                    name = line.partition('=')[2].removeprefix('/dev/')
                    found.append(f'{sysfs.DEV}/{name}')
    return found


def nvidia_files(address: str) -> list[str]:
    """The device files of a GPU that is bound to the driver nvidia.

    No link in sysfs leads from the GPU to them.
    """
    gpus = f'{sysfs.PROC}/driver/nvidia/gpus/{address}'
    lines = (sysfs.read(f'{gpus}/information') or '').splitlines()
    minors = [x.split()[-1] for x in lines if x.startswith('Device Minor:')]
    return [f'{sysfs.DEV}/nvidia{minor}' for minor in minors]


def _open_files(pid: str) -> Iterable[str]:
    folder = f'{sysfs.PROC}/{pid}/fd'
    try:
        # The process may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for fd in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):
                    yield os.readlink(f'{folder}/{fd}')
    except PermissionError as err:
        raise exception.PrivilegeError(
            reason=f'{folder} cannot be read, so it is unknown who has a '
            'device open; reading it takes CAP_SYS_PTRACE and '
            'CAP_DAC_READ_SEARCH'
        ) from err


def exclusively_used(names: Iterable[str]) -> list[str]:
    """Find the block devices that somebody has opened exclusively.

    A mount, swap, md, dm, ZFS and Ceph open a block device with O_EXCL, and
    a second open with O_EXCL then fails with EBUSY (open(2)).

    :param names: of block devices, without /dev
    :returns: a clause for each
    :raises PrivilegeError: if a block device cannot be opened
    """
    found = []
    for name in names:
        try:
            fd = os.open(
                f'{sysfs.DEV}/{name}', os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC
            )
        except OSError as err:
            if err.errno == errno.EBUSY:
                found.append(
                    f'the host has opened block device {name} exclusively'
                )
            elif err.errno not in (errno.ENXIO, errno.ENOMEDIUM):
                # systemd's PrivateDevices= or a device cgroup may hide it; the
                # host may use it all the same.
                raise exception.PrivilegeError(
                    reason=f'{sysfs.DEV}/{name} cannot be opened '
                    f'({err.strerror}), so it is unknown whether the host '
                    'uses it'
                ) from err
        else:
            os.close(fd)
    return found
