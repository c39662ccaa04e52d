# SPDX-License-Identifier: Apache-2.0

"""Mediated devices, and the devices that make them."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil

from os_acc.testing import kernel_functions
from os_acc.testing import kernel_tree

fail = kernel_tree.fail
put = kernel_tree.put
write_text = kernel_tree.write_text


class Mdevs(kernel_functions.Functions):
    """The parents of mediated devices, and the mediated devices."""

    def add_mdev_parent(
        self, path: pathlib.Path, types: dict[str, int], ports: int
    ) -> None:
        """Make a device a parent of mdevs.

        :param types: how many of its ports one of a type takes
        """
        for name, each in types.items():
            directory = f'{path}/mdev_supported_types/{name}'
            os.makedirs(f'{directory}/devices')
            for file, text in {
                'name': f'{name} label',
                'device_api': 'vfio-pci',
                'available_instances': str(ports // each),
                'create': '',
                'ports': str(each),
            }.items():
                write_text(f'{directory}/{file}', f'{text}\n')
        write_text(f'{path}/ports', f'{ports}\n')
        os.symlink(path, f'{self.sys}/class/mdev_bus/{path.name}')

    def add_mtty(self) -> None:
        path = self.sys / 'devices/virtual/mtty/mtty'
        path.mkdir(parents=True)
        self.add_mdev_parent(path, {'mtty-1': 1, 'mtty-2': 2}, 24)

    def create_mdev(self, kind: pathlib.Path, text: str) -> None:
        if (self.mdev / text).is_symlink():
            fail(errno.EEXIST)
        parent = kind.parent.parent
        if int((kind / 'available_instances').read_text()) < 1:
            fail(errno.EUSERS)
        path = parent / text
        path.mkdir()
        (path / 'mdev_type').symlink_to(kind)
        (path / 'remove').touch()
        self.into_group(path, None)
        (self.mdev / text).symlink_to(path)
        self.show_group((path / 'iommu_group').readlink().name)
        self._count_ports(parent, -int((kind / 'ports').read_text()))

    def remove_mdev(self, text: str) -> None:
        path = (self.mdev / text).resolve()
        node = self.root / 'dev/vfio' / (path / 'iommu_group').readlink().name
        for link in (self.root / 'proc').glob('[0-9]*/fd/*'):
            if link.readlink() == node:
                fail(errno.EBUSY)
        ports = int((path / 'mdev_type/ports').read_text())
        parent = path.parent
        self.hide_group(node.name)
        shutil.rmtree((path / 'iommu_group').resolve())
        shutil.rmtree(path)
        (self.mdev / text).unlink()
        self._count_ports(parent, ports)

    @staticmethod
    def _count_ports(parent: pathlib.Path, change: int) -> None:
        left = int((parent / 'ports').read_text()) + change
        put(parent / 'ports', str(left))
        for kind in (parent / 'mdev_supported_types').iterdir():
            each = int((kind / 'ports').read_text())
            put(kind / 'available_instances', str(left // each))
