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
import contextlib
import errno
import os

from lxml import etree

from os_acc import exception
from os_acc.linux import sysfs

# Where libvirt keeps what runs: src/qemu/qemu_conf.c, stateDir.
LIBVIRT_STATE = '/run/libvirt/qemu'


def of_files(paths: Collection[str]) -> list[str]:
    """The processes that have one of some files open.

    :param paths: under /dev
    :returns: a text for each
    """
    wanted = set(paths)
    found = []
    own = str(os.getpid())
    for pid in sysfs.names(sysfs.PROC):
        if not pid.isdigit() or pid == own:
            continue
        for path in _open_files(pid):
            if path in wanted:
                name = sysfs.read(f'{sysfs.PROC}/{pid}/comm') or '?'
                found.append(f'process {pid} ({name}), which has {path} open')
                break
    return found


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
            for address in domain.iterfind('devices/hostdev/source/address')
        ):
            found.append(f'libvirt domain {domain.findtext("name")}')
    return found


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
