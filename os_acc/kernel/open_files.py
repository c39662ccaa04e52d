# SPDX-License-Identifier: Apache-2.0

"""Which processes have the files of a device open.

A guest that has a device through VFIO has a file below /dev/vfio open. Seeing
the open files of other users' processes (proc(5), /proc/pid/fd) takes
CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import errno
import itertools
import os

from os_acc import exception
from os_acc.kernel import descriptors
from os_acc.kernel import device_files
from os_acc.kernel import sysfs
from os_acc.refusals import refusals

# The initial PID namespace: PROC_PID_INIT_INO, include/linux/proc_ns.h
_HOST_PID_NAMESPACE = 'pid:[4026531836]'

# Documentation/admin-guide/devices.txt
_NVIDIA_MAJOR = 195


def users_of(
    files: Collection[device_files.DeviceFile],
    writers: bool = False,
    places: Mapping[str, device_files.Number] | None = None,
) -> list[str]:
    """Find the other processes that have one of the given devices open.

    This compares device numbers, so it does not matter by which path a process
    has opened the device, nor whether that path still exists. A process that
    has only mapped the file counts too.

    :param writers: whether to find only those that have opened it for writing
    :param places: the numbers of files that /dev no longer has, by what
        /proc/PID/maps shows for them: the result of place_of(), or a path
    :returns: a clause for each process, such as
        'process 4711 (qemu) has /dev/vfio/12 open', with the given path
    :raises PrivilegeError: if not all processes of the host can be seen
    """
    check_all_seen()
    paths = {file.number: file.path for file in files}
    if not paths:
        return []
    inodes = dict(places or {})
    for each, path in paths.items():
        # A device that no /dev of this host shows cannot be compared.
        if place := place_of(path):
            inodes[place] = each
    found = []
    own = str(os.getpid())
    for pid in descriptors.processes():
        if pid == own:
            continue
        numbers = itertools.chain(
            open_devices(pid, writers), mapped_devices(pid, inodes, writers)
        )
        number = next((each for each in numbers if each in paths), None)
        if number is not None:
            name = sysfs.read(f'{sysfs.PROC}/{pid}/comm') or '?'
            path = paths[number]
            reason = refusals.PROCESS.reason(pid=pid, name=name, path=path)
            found.append(reason.text)
    return found


def check_all_seen() -> None:
    """Check that this process sees all processes of the host."""
    seen = sysfs.link(f'{sysfs.PROC}/self/ns/pid')
    if seen not in (None, _HOST_PID_NAMESPACE):
        raise exception.PrivilegeError(
            reason='this process is not in the PID namespace of the host and '
            'cannot see which guest has a device open; start the container '
            "in the host's PID namespace (--pid=host)"
        )


def character_files(path: str) -> list[device_files.DeviceFile]:
    """The character devices, such as /dev/uio0, of a device's directory."""
    directory, part = f'{sysfs.SYS}/dev/char', f'/{os.path.basename(path)}/'
    found = []
    for number in sysfs.names(directory):
        # A link such as ../../devices/pci0000:00/0000:00:17.0/uio/uio0
        where = f'{directory}/{number}'
        # The link may vanish while the others are read.
        if part in (sysfs.target(where) or ''):
            text = sysfs.read(f'{where}/uevent') or ''
            for line in text.splitlines():
                if line.startswith('DEVNAME='):
                    name = line.partition('=')[2].removeprefix('/dev/')
                    found.append(
                        device_files.DeviceFile(
                            f'{sysfs.DEV}/{name}',
                            device_files.parse(number),
                        )
                    )
    return found


def nvidia_files(address: str) -> list[device_files.DeviceFile]:
    """The device files of a GPU that is bound to the driver nvidia.

    No link in sysfs leads from the GPU to them.
    """
    gpus = f'{sysfs.PROC}/driver/nvidia/gpus/{address}'
    lines = (sysfs.read(f'{gpus}/information') or '').splitlines()
    minors = [x.split()[-1] for x in lines if x.startswith('Device Minor:')]
    return [
        device_files.DeviceFile(
            f'{sysfs.DEV}/nvidia{minor}',
            device_files.Number('c', _NVIDIA_MAJOR, int(minor)),
        )
        for minor in minors
        if minor.isdigit()
    ]


def open_devices(
    pid: str, writers: bool = False
) -> Iterator[device_files.Number]:
    """The devices that a process has open, or that it has open to write."""
    for each in descriptors.of_process(pid):
        with contextlib.suppress(FileNotFoundError):
            # Only a path is in a file system. Sockets, pipes and the like read
            # 'socket:[4711]' (proc(5), /proc/pid/fd).
            text = each.text
            if text is None or text.startswith('/'):
                number = device_files.number_of(each.path)
                if number is not None and not (writers and _only_reads(each)):
                    yield number


def _only_reads(descriptor: descriptors.Descriptor) -> bool:
    """Whether a process has opened a file for reading only.

    The flags are octal: proc(5), /proc/pid/fdinfo.
    """
    for line in descriptor.info():
        if line.startswith('flags:'):
            return int(line.split()[1], 8) & os.O_ACCMODE == os.O_RDONLY
    return False


def place_of(path: str) -> str:
    """File system and inode of a file, as /proc/PID/maps shows them.

    Such as '00:06 1234'; empty if there is no such file.
    """
    try:
        there = os.lstat(path)
    except OSError:
        return ''
    major, minor = os.major(there.st_dev), os.minor(there.st_dev)
    return f'{major:02x}:{minor:02x} {there.st_ino}'


def mapped_devices(
    pid: str,
    inodes: Mapping[str, device_files.Number],
    writers: bool = False,
) -> Iterator[device_files.Number]:
    """The numbers of the devices that a process has mapped into its memory.

    A mapping keeps the device open after its file descriptor was closed.

    :param inodes: device numbers by the result of place_of(), or by a path
    """
    if not inodes:
        return
    for line in descriptors.maps_of(pid).splitlines():
        # such as '7f0000000000-7f0000001000 rw-s 00000000 00:06 1234 /dev/x'
        fields = line.split(maxsplit=5)
        number = inodes.get(' '.join(fields[3:5]))
        if number is None and len(fields) > 5:
            number = inodes.get(fields[5].removesuffix(' (deleted)'))
        if number is not None and not (writers and 'w' not in fields[1]):
            yield number


def exclusively_used(names: Iterable[str]) -> list[str]:
    """Find the block devices that somebody has opened exclusively.

    A mount, swap, md, dm, ZFS and Ceph open a block device with O_EXCL, and
    a second open with O_EXCL then fails with EBUSY (open(2)).

    :param names: of block devices in sysfs, where / is written as !
    """
    found = []
    for name in names:
        path = f'{sysfs.DEV}/{name.replace("!", "/")}'
        try:
            fd = os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
        except OSError as err:
            if err.errno == errno.EBUSY:
                found.append(name)
            elif err.errno not in (errno.ENXIO, errno.ENOMEDIUM):
                # systemd's PrivateDevices= or a device cgroup may hide it; the
                # host may use it all the same.
                raise exception.PrivilegeError(
                    reason=f'{path} cannot be opened '
                    f'({err.strerror}), so it is unknown whether the host '
                    'uses it'
                ) from err
        else:
            os.close(fd)
    return found
