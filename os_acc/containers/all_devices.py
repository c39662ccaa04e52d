# SPDX-License-Identifier: Apache-2.0

"""Finds privileged containers, which have all devices of the host.

A runtime gives a privileged container each device file that the host has then,
and the capabilities of root. On a node of Kubernetes, kube-proxy and the
agents of the network run so. Such a file does not say that the container uses
the device. Nor would it keep a device safe to wait for such a container: its
processes can load code into the kernel, and so open any device at any time.
"""

from __future__ import annotations

import os

from os_acc.kernel import device_cgroup
from os_acc.kernel import device_file
from os_acc.kernel import device_files
from os_acc.kernel import sysfs

# The number of CAP_SYS_MODULE, CAP_SYS_RAWIO and CAP_SYS_ADMIN:
# include/uapi/linux/capability.h
_RIGHTS = 1 << 16 | 1 << 17 | 1 << 21

# The devices of the kernel's memory, such as /dev/mem and /dev/kmsg: char
# devices with this major (Documentation/admin-guide/devices.txt).
_MEMORY = 1
# null, zero, full, random and urandom, which each container has: "Default
# Devices" in config-linux.md of the OCI runtime specification.
_OF_EACH = {3, 5, 7, 8, 9}


def has(task: str) -> bool:
    """Whether a process is in a container that has all devices of the host.

    Its control group must not name devices, it must have the rights of root in
    the user namespace of the host, and its /dev must have all of the host's
    files of the kernel's memory, of which no container needs all.

    :param task: the directory of a process or thread in /proc
    :returns: False: it is in none, or that is unknown
    """
    if not _is_root(task) or device_cgroup.names_devices(task):
        return False
    hosts = _memory(sysfs.DEV) - _OF_EACH
    return bool(hosts) and hosts <= _memory(
        f'{task}/root{device_files.DIRECTORY}'
    )


def _is_root(task: str) -> bool:
    """Whether it may have the rights, in the user namespace of the host."""
    rights = 0
    for line in (sysfs.read(f'{task}/status') or '').splitlines():
        if line.startswith('CapBnd:'):
            rights = int(line.split()[1], 16)
    try:
        own = sysfs.link(f'{sysfs.PROC}/self/ns/user')
        other = sysfs.link(f'{task}/ns/user')
    except PermissionError:
        return False
    return rights & _RIGHTS == _RIGHTS and own == other is not None


def _memory(directory: str) -> set[int]:
    """The minor numbers of the files of the kernel's memory there."""
    try:
        names = os.listdir(directory)
    except OSError:  # it has ended, or its /dev cannot be read
        return set()
    found = (
        device_file.number_of(os.path.join(directory, name), follow=False)
        for name in names
    )
    return {
        each.minor
        for each in found
        if each is not None and (each.kind, each.major) == ('c', _MEMORY)
    }
