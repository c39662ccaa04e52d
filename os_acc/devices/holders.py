# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Who has a device open: guests by VFIO, processes by its files.

Needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, to see what processes of
other users have open (proc(5), /proc/pid/fd).
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import errno
import os
import re
import stat

from lxml import etree

from os_acc import exception
from os_acc.devices import sysfs

# Where libvirt keeps what runs: src/qemu/qemu_conf.c, stateDir.
LIBVIRT_STATE = '/run/libvirt/qemu'

# Files of no device, that most processes have open.
_COMMON = re.compile(
    '/dev/(null|zero|full|u?random|tty|ptmx|console|kmsg|kvm'
    '|(pts|shm|hugepages|mqueue)/.*)'
)

# PROC_PID_INIT_INO, include/linux/proc_ns.h
_HOSTS_PIDS = 'pid:[4026531836]'


def of_files(paths: Collection[str]) -> list[str]:
    """The processes that have one of some files open.

    :param paths: under /dev
    :returns: a text for each
    :raises PrivilegeError: not all processes of the host can be seen
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
                found.append(f'process {pid} ({name}), which has {path} open')
                break
    return found


def check_all_seen() -> None:
    """See that this process sees the host's processes, not a container's.

    :raises PrivilegeError: it does not
    """
    seen = sysfs.link(f'{sysfs.PROC}/self/ns/pid')
    if seen not in (None, _HOSTS_PIDS):
        raise exception.PrivilegeError(
            reason='this is not the PID namespace of the host, so that '
            'nobody can tell which guest has a device; start the container '
            "with the host's (--pid=host)"
        )


def _number(path: str) -> int | None:
    """The device that a file is: one may have several names."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    return status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else None


def below(path: str) -> list[str]:
    """The device files that a device's driver made: /dev/uio0, /dev/xdma0.

    :param path: its folder in sysfs
    """
    folder, part = f'{sysfs.SYS}/dev/char', f'/{os.path.basename(path)}/'
    found = []
    for number in sysfs.names(folder):
        # A link such as ../../devices/pci0000:00/0000:00:17.0/uio/uio0
        where = f'{folder}/{number}'
        # It may go away while the others are looked at.
        if part in (sysfs.target(where) or ''):
            text = sysfs.read(f'{where}/uevent') or ''
            for line in text.splitlines():
                if line.startswith('DEVNAME='):
                    name = line.partition('=')[2].removeprefix('/dev/')
                    found.append(f'{sysfs.DEV}/{name}')
    return found


def of_nvidia(address: str) -> list[str]:
    """The files of a GPU that the driver nvidia has: no device is theirs."""
    gpus = f'{sysfs.PROC}/driver/nvidia/gpus/{address}'
    lines = (sysfs.read(f'{gpus}/information') or '').splitlines()
    minors = [x.split()[-1] for x in lines if x.startswith('Device Minor:')]
    return [f'{sysfs.DEV}/nvidia{minor}' for minor in minors]


def _open_files(pid: str) -> Iterable[str]:
    folder = f'{sysfs.PROC}/{pid}/fd'
    try:
        # It may end while it is looked at.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for fd in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):
                    yield os.readlink(f'{folder}/{fd}')
    except PermissionError as err:
        raise exception.PrivilegeError(
            reason=f'{folder} is not to be read, so that nobody can tell '
            'who has a device; it takes CAP_SYS_PTRACE and '
            'CAP_DAC_READ_SEARCH'
        ) from err


def by_kernel(names: Iterable[str]) -> list[str]:
    """The block devices that something has for itself alone.

    Mounted, swap, md, dm, ZFS, Ceph: whoever opens a disk with O_EXCL keeps
    others from doing so (open(2)).
    """
    found = []
    for name in names:
        try:
            fd = os.open(
                f'{sysfs.DEV}/{name}', os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC
            )
        except OSError as err:
            if err.errno == errno.EBUSY:
                found.append(f'the host, which uses block device {name}')
            elif err.errno not in (errno.ENXIO, errno.ENOMEDIUM):
                # Not seen is not unused: PrivateDevices=, a device cgroup.
                raise exception.PrivilegeError(
                    reason=f'{sysfs.DEV}/{name} cannot be opened '
                    f'({err.strerror}), so that nobody can tell whether the '
                    'host uses it'
                ) from err
        else:
            os.close(fd)
    return found


def by_libvirt(
    pci_address: str | None, mdev_uuid: str | None, besides: str
) -> list[str]:
    """The domains of libvirt that have a device while they start or run.

    :param besides: UUID of the instance that may have it
    """
    found = []
    for name in sysfs.names(LIBVIRT_STATE):
        if not name.endswith('.xml'):
            continue
        try:
            root = etree.parse(f'{LIBVIRT_STATE}/{name}').getroot()
        except (OSError, etree.XMLSyntaxError):
            continue
        domain = root.find('domain')
        if domain is None or domain.findtext('uuid') == besides:
            continue
        if any(
            _is(address, pci_address, mdev_uuid)
            for address in _host_addresses(domain)
        ):
            found.append(f'libvirt domain {domain.findtext("name")}')
    return found


def _host_addresses(domain: etree._Element) -> Iterator[etree._Element]:
    for path in (
        "devices/hostdev[@type='pci']",
        "devices/hostdev[@type='mdev']",
        "devices/interface[@type='hostdev']",
        "devices/disk[@type='nvme']",
    ):
        yield from domain.iterfind(f'{path}/source/address')


def _is(
    address: etree._Element, pci_address: str | None, mdev_uuid: str | None
) -> bool:
    uuid = address.get('uuid')
    if uuid is not None:
        return uuid.lower() == mdev_uuid
    try:
        parts = [
            int(address.get(name, '0'), 16)
            for name in ('domain', 'bus', 'slot', 'function')
        ]
    except ValueError:
        return False
    return '%04x:%02x:%02x.%x' % tuple(parts) == pci_address
