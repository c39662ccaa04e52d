# SPDX-License-Identifier: Apache-2.0

"""Processes that open device files, and VFIO's device files."""

from __future__ import annotations

import os
import pathlib
import shutil

from os_acc.kernel import device_files
from os_acc.testing import kernel_tree

put = kernel_tree.put


def _number_file(path: pathlib.Path) -> pathlib.Path:
    """The file with the number of a device file, or of a descriptor."""
    return path.parent.parent / 'number' / path.name


def _make_node(path: pathlib.Path, number: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    numbers = _number_file(path)
    numbers.parent.mkdir(exist_ok=True)
    numbers.write_text(number)


class Openers(kernel_tree.Tree):
    """What is in /dev/vfio, and which process has it open.

    :ivar groups: the kernel is built with CONFIG_VFIO_GROUP
    """

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.groups = True
        self._pid = 4711
        self._vfio_devices = 0
        self._minor = 0

    def hold(
        self,
        path: str | pathlib.Path,
        name: str = 'qemu',
        number: str = '',
        link: str = '',
        flags: int = os.O_RDWR,
    ) -> int:
        """A process opens a device file.

        :param number: its device number, such as 'b 7:0'; empty: that of
            VFIO's group or device
        :param link: what /proc/PID/fd shows; empty: the path
        :param flags: as for open(2)
        """
        self._pid += 1
        directory = self.root / f'proc/{self._pid}'
        (directory / 'fd').mkdir(parents=True)
        (directory / 'fdinfo').mkdir()
        (directory / 'fdinfo/7').write_text(f'pos:\t0\nflags:\t0{flags:o}\n')
        (directory / 'number').mkdir()
        (directory / 'comm').write_text(f'{name}\n')
        (directory / 'root').symlink_to(self.root)
        (directory / 'fd/0').symlink_to('/dev/null')
        (directory / 'fd/7').symlink_to(link or path)
        if pathlib.Path(path).parent == self.root / 'dev/vfio':
            group = pathlib.Path(path).name
            self.show_group(group)
            shown = self.sys / 'class/vfio' / group / 'dev'
            number = number or f'c {shown.read_text()}'
        elif pathlib.Path(path).parent == self.root / 'dev/vfio/devices':
            (shown,) = self.pci.glob(
                f'devices/*/vfio-dev/{pathlib.Path(path).name}/dev'
            )
            number = number or f'c {shown.read_text()}'
        (directory / 'number/7').write_text(number)
        return self._pid

    def contain(self, *nodes: tuple[str, str]) -> int:
        """A process in a container starts, and opens nothing.

        :param nodes: the path and the number of each of its device files, such
            as ('/dev/vfio/12', 'c 244:1')
        """
        pid = self.hold('/dev/null', 'sleep', 'c 1:3')
        (self.root / f'proc/{pid}/root').unlink()
        for path, number in nodes:
            _make_node(self.root / f'proc/{pid}/root{path}', number)
        return pid

    def add_node(self, path: str, number: str) -> None:
        """Make a device file. An ordinary file stands for it.

        :param path: such as '/dev/acme/q0'
        :param number: its type and its number, such as 'c 240:0'
        """
        _make_node(pathlib.Path(f'{self.root}{path}'), number)

    def remove_node(self, path: str) -> None:
        """Remove a device file, if it is there."""
        node = pathlib.Path(f'{self.root}{path}')
        for each in (node, _number_file(node)):
            each.unlink(missing_ok=True)

    def open_function(
        self, pid: int, address: str, shown: bool = True
    ) -> pathlib.Path:
        """A process opens a function by the file of its IOMMU group.

        :param shown: the kernel names the function (Linux 6.17)
        :returns: the descriptor; close it with unlink()
        """
        directory = self.root / f'proc/{pid}'
        number = len(list((directory / 'fd').iterdir())) + 20
        path = directory / f'fd/{number}'
        path.symlink_to('anon_inode:[vfio-device]')
        (directory / 'fdinfo').mkdir(exist_ok=True)
        there = self.file(address, '').resolve()
        line = f'vfio-device-syspath: {there}\n' if shown else ''
        (directory / f'fdinfo/{number}').write_text(f'pos:\t0\n{line}')
        return path

    @staticmethod
    def number_of(
        path: str, follow: bool = True
    ) -> device_files.Number | None:
        """Replaces device_file.number_of()."""
        if not follow and os.path.islink(path):
            return None
        node = pathlib.Path(path)
        if node.parent.name == 'number':
            return None
        try:
            kind, number = _number_file(node).read_text().split()
        except (OSError, ValueError):
            return None
        return device_files.parse(number, kind)

    def end(self, pid: int) -> None:
        """End a process that hold() has started."""
        shutil.rmtree(self.root / f'proc/{pid}')

    def node(self, address: str) -> str:
        """The file of a function's IOMMU group."""
        return str(self.root / 'dev/vfio' / self.group_of(address))

    def show_group(self, name: str) -> None:
        (self.root / 'dev/vfio' / name).touch()
        directory = self.sys / 'class/vfio' / name
        if not directory.exists():
            directory.mkdir()
            self._minor += 1
            put(directory / 'dev', f'244:{self._minor}')

    def hide_group(self, name: str) -> None:
        (self.root / 'dev/vfio' / name).unlink(missing_ok=True)
        shutil.rmtree(self.sys / 'class/vfio' / name, ignore_errors=True)

    def without_groups(self) -> None:
        """Be a kernel that is built without CONFIG_VFIO_GROUP."""
        self.groups = False
        shutil.rmtree(self.sys / 'class/vfio')
        shutil.rmtree(self.sys / 'class/misc/vfio')
        self.write_file('sys/class/misc/iommu/dev', '10:125\n')

    def device_node(self, address: str) -> str:
        """The file of a function itself, for iommufd."""
        (directory,) = (self.file(address, 'vfio-dev')).iterdir()
        return str(self.root / 'dev/vfio/devices' / directory.name)

    def show_device(self, address: str) -> None:
        self._vfio_devices += 1
        name = f'vfio{self._vfio_devices}'
        directory = self.file(address, 'vfio-dev') / name
        directory.mkdir(parents=True)
        (self.sys / 'class/vfio-dev' / name).touch()
        if not self.groups:
            (self.root / 'dev/vfio/devices' / name).touch()
            (directory / 'dev').write_text(f'510:{self._vfio_devices}\n')

    def hide_device(self, address: str) -> None:
        for directory in self.file(address, 'vfio-dev').iterdir():
            (self.sys / 'class/vfio-dev' / directory.name).unlink()
            node = self.root / 'dev/vfio/devices' / directory.name
            node.unlink(missing_ok=True)
        shutil.rmtree(self.file(address, 'vfio-dev'))

    def is_held(self, group: str) -> bool:
        node = self.root / 'dev/vfio' / group
        return any(
            link.readlink() == node
            for link in (self.root / 'proc').glob('[0-9]*/fd/*')
        )
