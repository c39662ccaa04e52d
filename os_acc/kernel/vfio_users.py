# SPDX-License-Identifier: Apache-2.0

"""Which functions of a shared IOMMU group processes have open through VFIO.

Needs the privileges that open_files needs.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os

from os_acc.kernel import descriptors
from os_acc.kernel import libvirt_domains
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import vfio

# The file that a process gets for each function that it uses of a group:
# vfio_device_open_file() in drivers/vfio/group.c.
_DEVICE = 'anon_inode:[vfio-device]'

# The line of /proc/PID/fdinfo/FD that names the function (Linux 6.17,
# vfio_device_show_fdinfo() in drivers/vfio/vfio_main.c).
_SYSPATH = 'vfio-device-syspath:'


def have_others_only(path: str) -> bool:
    """Whether a function's IOMMU group is open for other functions of it only.

    A guest that keeps another function of the group keeps the group's file
    open. The answer is True only if the kernel or libvirt shows that no
    process has this function open.

    :param path: the function's directory in sysfs
    """
    own = vfio.device_nodes(path)
    if own and open_files.users_of(own):
        return False
    address = os.path.basename(path)
    others = set(pci.group_members(vfio.group_of(address) or '')) - {address}
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
            return 0 < number <= len(domain.devices)
    return False


def _open_devices() -> Iterator[tuple[str, str | None]]:
    """The functions that processes have open through the file of a group.

    :returns: process id and address; None if the kernel does not name it
    """
    for pid in descriptors.processes():
        for each in descriptors.of_process(pid):
            with contextlib.suppress(FileNotFoundError):
                if each.text == _DEVICE:
                    yield pid, _named(each)


def _named(descriptor: descriptors.Descriptor) -> str | None:
    for line in descriptor.info():
        if line.startswith(_SYSPATH):
            return os.path.basename(line.removeprefix(_SYSPATH).strip())
    return None
