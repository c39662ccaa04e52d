# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which containers have a device, whether a program has opened it or not.

Needs the privileges that open_files needs.
"""

from __future__ import annotations

from collections.abc import Collection
import os
import stat

from os_acc.devices import container_spec
from os_acc.devices import device_file
from os_acc.devices import device_files
from os_acc.devices import open_files
from os_acc.devices import sysfs


def users_of(nodes: Collection[container_spec.Node]) -> list[str]:
    """Find the processes in containers that have one of the device files.

    A container has a /dev of its own. It has a device if its /dev has a device
    file with the number, or if one of its processes has the device open. Who
    is in the container can rename its files and make links: the path of the
    file does not matter, and no link is followed, because it would lead into
    the /dev of the host. Processes with the /dev of the host do not count:
    whether they use the device is the business of its driver.

    :returns: a clause for each process, such as
        'process 4711 (python3) is in a container that has /dev/vfio/12'
    :raises PrivilegeError: if not all processes of the host can be seen
    """
    open_files.check_all_seen()
    if not nodes:
        return []
    by_number = {node.number: node.path for node in nodes}
    # Process 1 is the host's, also if this process is in a container.
    hosts = (
        _identity(f'{sysfs.PROC}/1/root{device_files.FOLDER}'),
        _identity(sysfs.DEV),
    )
    # Many processes share the /dev of a container.
    known: dict[tuple[int, int] | None, str | None] = {None: None}
    found = []
    for pid in sysfs.names(sysfs.PROC):
        if not pid.isdigit():
            continue
        root = f'{sysfs.PROC}/{pid}/root'
        folder = _identity(root + device_files.FOLDER)
        if folder is not None and folder in hosts:
            continue
        if folder not in known:
            known[folder] = _has(root, nodes)
        path = known[folder] or next(
            (
                by_number[number]
                for number in open_files.open_devices(pid)
                if number in by_number
            ),
            None,
        )
        if path is not None:
            name = sysfs.read(f'{sysfs.PROC}/{pid}/comm') or '?'
            found.append(
                f'process {pid} ({name}) is in a container that has {path}'
            )
    return found


def _has(root: str, nodes: Collection[container_spec.Node]) -> str | None:
    """The path of a device file in a container's /dev that is one of nodes."""
    for node in nodes:
        if not _below_link(root, node.path) and (
            device_file.number_of(root + node.path, follow=False)
            == node.number
        ):
            return node.path
    numbers = {node.number for node in nodes}
    for above, folders, files in os.walk(root + device_files.FOLDER):
        # A file system of the container need not answer.
        folders[:] = [
            each for each in folders if not os.path.ismount(f'{above}/{each}')
        ]
        for each in files:
            path = f'{above}/{each}'
            if device_file.number_of(path, follow=False) in numbers:
                return path.removeprefix(root)
    return None


def _below_link(root: str, path: str) -> bool:
    """Whether a folder of a path is a link."""
    above = os.path.dirname(path)
    while above != '/':
        if os.path.islink(root + above):
            return True
        above = os.path.dirname(above)
    return False


def _identity(path: str) -> tuple[int, int] | None:
    """What tells a folder from others; None if it does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        # The process has ended; its root folder has no /dev; or that is on a
        # file system in user space, which not even root may look into.
        return None
    return (
        (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None
    )
