# SPDX-License-Identifier: Apache-2.0

"""Accelerators as the class accel shows them. Needs no privilege.

drivers/accel/drm_accel.c in the kernel makes the class, its character devices
(major number 261) and their files /dev/accel/accelN. The number N is the
lowest that is free, so it may change when a driver is bound again. Drivers:
ivpu, amdxdna, habanalabs and qaic for PCI functions, rocket for a platform
device. See Documentation/accel/introduction.rst.
"""

from __future__ import annotations

import dataclasses
import os
import re

from os_acc.kernel import device_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs

CLASS = 'accel'

# accel_set_device_instance_params() and accel_devnode()
_NAME = re.compile('accel[0-9]+')


@dataclasses.dataclass(frozen=True)
class Other:
    """An accelerator that is not a PCI function.

    :ivar device: the device that it belongs to, such as fdab0000.npu
    :ivar path: its device file
    """

    device: str
    path: str


def files_of(address: str) -> list[device_files.DeviceFile]:
    """The device files of a PCI function, by their numbers.

    :returns: with paths in the /dev of this process. Empty if no driver of the
        class is bound to the function. A file may not be there yet
    """
    return sorted(
        _read(f'{pci.directory(address)}/{CLASS}'),
        key=lambda each: each.number,
    )


def _read(directory: str) -> list[device_files.DeviceFile]:
    found = (
        device_files.read(_path(name), f'{directory}/{name}')
        for name in sysfs.folders(directory)
        if _NAME.fullmatch(name)
    )
    return [each for each in found if each is not None]


def _path(name: str) -> str:
    return f'{sysfs.DEV}/{CLASS}/{name}'


def nodes_of(address: str) -> list[device_files.Node]:
    """The device files of a PCI function as they are below /dev.

    :returns: empty if one is not there yet, or is that of another device
    """
    found = []
    for each in shown(files_of(address)):
        node = device_files.look(each.path)
        if node is None or node.number != each.number:
            return []
        found.append(node)
    return found


def shown(
    files: list[device_files.DeviceFile],
) -> list[device_files.DeviceFile]:
    """The same files with their paths in the host's /dev."""
    return [
        device_files.DeviceFile(device_files.shown(each.path), each.number)
        for each in files
    ]


def others() -> list[Other]:
    """The accelerators of this host that are not PCI functions."""
    directory = f'{sysfs.SYS}/class/{CLASS}'
    found = []
    for name in filter(_NAME.fullmatch, sysfs.names(directory)):
        device = sysfs.link(f'{sysfs.place(f"{directory}/{name}")}/device')
        if device is not None and not pci.is_address(device):
            found.append(
                Other(
                    os.path.basename(device), device_files.shown(_path(name))
                )
            )
    return found
