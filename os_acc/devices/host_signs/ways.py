# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""On which devices a block device depends.

Most block devices are below their devices in sysfs. These are not: namespaces
with several NVMe controllers, NVMe over Fabrics, and disks of iSCSI.
"""

from __future__ import annotations

from os_acc.devices import pci
from os_acc.devices import sysfs


def functions_in(path: str) -> list[str]:
    """The addresses of the PCI functions in a path of sysfs.

    Bridges are among them, and a VMD endpoint that has a PCI domain of its
    own: drivers/pci/controller/vmd.c.
    """
    return [part for part in path.split('/') if pci.is_address(part)]


class Ways:
    """Finds the ways to block devices.

    :param interfaces: the directory in sysfs of each network interface
    """

    def __init__(self, interfaces: dict[str, str]) -> None:
        self._interfaces = interfaces
        folder = f'{sysfs.SYS}/class/nvme-subsystem'
        self._subsystems = {
            sysfs.place(f'{folder}/{name}'): f'{folder}/{name}'
            for name in sysfs.names(folder)
        }

    def of_block(self, name: str, path: str) -> list[str]:
        """The paths in sysfs of all that a block device depends on.

        :param name: of the block device
        :param path: its directory in sysfs
        """
        found = [path]
        for subsystem, link in self._subsystems.items():
            if path.startswith(f'{subsystem}/'):
                found += [
                    sysfs.place(f'{link}/{entry}') + '/'
                    for entry in sysfs.names(link)
                    if entry.startswith('nvme')
                ]
        return found
