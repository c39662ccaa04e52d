# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Who has a PCI function open through VFIO, also in a shared IOMMU group.

Needs the privileges that open_files needs.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os

from os_acc.devices import libvirt_domains
from os_acc.devices import open_files
from os_acc.devices import pci
from os_acc.devices import sysfs
from os_acc.devices import vfio

# The file that a process gets for each function that it uses of a group:
# vfio_device_open_file() in drivers/vfio/group.c.
_DEVICE = 'anon_inode:[vfio-device]'

# The line of /proc/PID/fdinfo/FD that names the function (Linux 6.17,
# vfio_device_show_fdinfo() in drivers/vfio/vfio_main.c).
_SYSPATH = 'vfio-device-syspath:'


def users_of(path: str, shares: bool) -> list[str]:
    """Find the processes that have a device open through VFIO.

    :param path: the device's folder in sysfs
    :param shares: whether the guest keeps other functions of the device's
        IOMMU group, and so keeps the group's file open. The device then counts
        as open unless the kernel or libvirt shows that the file is open for
        the other functions only
    :returns: a clause for each process, as open_files.users_of()
    """
    # A device in no group and on no VFIO driver has no files.
    own, group = vfio.device_nodes(path), vfio.group_nodes(path)
    found = open_files.users_of(own) if own else []
    of_group = open_files.users_of(group) if group else []
    if of_group and shares and _is_for_others(os.path.basename(path)):
        of_group = []
    return found + [text for text in of_group if text not in found]


def _is_for_others(address: str) -> bool:
    """Whether a group's file is open for other functions of it only."""
    group = vfio.group_of(address) or ''
    others = set(pci.group_members(group)) - {address}
    opened = list(_open_devices())
    shown = {function for _, function in opened if function is not None}
    if shown:
        return address not in shown and bool(shown & others)
    # The kernel does not name the functions. libvirt knows which ones the
    # guest has; the number of open files tells whether QEMU has closed it.
    for domain in libvirt_domains.running():
        if address in domain.devices:
            return False
        if others & set(domain.devices):
            number = sum(pid == domain.pid for pid, _ in opened)
            return number <= len(domain.devices)
    return False


def _open_devices() -> Iterator[tuple[str, str | None]]:
    """The functions that processes have open through the file of a group.

    :returns: process id and address; None if the kernel does not name it
    """
    for pid in sysfs.names(sysfs.PROC):
        folder = f'{sysfs.PROC}/{pid}'
        if not pid.isdigit():
            continue
        # The process may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for fd in os.listdir(f'{folder}/fd'):
                if sysfs.target(f'{folder}/fd/{fd}') == _DEVICE:
                    yield pid, _named(f'{folder}/fdinfo/{fd}')


def _named(path: str) -> str | None:
    for line in (sysfs.read(path) or '').splitlines():
        if line.startswith(_SYSPATH):
            return os.path.basename(line.removeprefix(_SYSPATH).strip())
    return None
