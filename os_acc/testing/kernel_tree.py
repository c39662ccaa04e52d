# SPDX-License-Identifier: Apache-2.0

"""The directories and files of a generated kernel."""

from __future__ import annotations

import os
import pathlib
import uuid


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def write_text(path: str, text: str) -> None:
    """Write a file that nobody reads yet.

    Most tests build a host of about 300 files, so this makes no more system
    calls than it needs; Path.write_text() makes three times as many.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def put(path: pathlib.Path, text: str) -> None:
    """Replace a file in one step, as the kernel does."""
    directory, name = os.path.split(path)
    new = f'{directory}/.{name}.new'
    write_text(new, f'{text}\n')
    os.replace(new, path)


class Tree:
    """The directories below the root: sys, proc, dev, modules, libvirt,
    run."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.sys = root / 'sys'
        self.pci = self.sys / 'bus/pci'
        self.mdev = self.sys / 'bus/mdev/devices'
        self._group = 100
        for name in (
            'sys/bus/pci/devices',
            'sys/bus/pci/drivers',
            'sys/bus/mdev/devices',
            'sys/class/mdev_bus',
            'sys/class/block',
            'sys/class/net',
            'sys/class/vfio',
            'sys/class/vfio-dev',
            'sys/kernel/iommu_groups',
            'proc/self',
            'proc/sys/kernel/random',
            'dev/vfio/devices',
            'libvirt',
            'run',
        ):
            os.makedirs(f'{root}/{name}')
        self.write_file('sys/bus/pci/drivers_probe', '')
        self.write_file('proc/self/mountinfo', '')
        self.write_file('proc/iomem', '00001000-0009fbff : System RAM\n')
        # What every user of VFIO opens besides its device.
        self.write_file('sys/class/misc/vfio/dev', '10:196\n')
        os.makedirs(f'{root}/proc/1')
        os.symlink(root, f'{root}/proc/1/root')
        self.write_file('proc/swaps', 'Filename Type Size Used Priority\n')
        self.aliases()
        self.boot()

    def write_file(self, name: str, text: str) -> None:
        path = f'{self.root}/{name}'
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_text(path, text)

    def boot(self) -> None:
        self.write_file('proc/sys/kernel/random/boot_id', f'{uuid.uuid4()}\n')

    def aliases(self, *lines: str) -> None:
        """The lines of modules.alias."""
        path = f'modules/{os.uname().release}/modules.alias'
        self.write_file(path, ''.join(f'alias {line}\n' for line in lines))

    def modules(self, *paths: str) -> None:
        """The modules of modules.dep."""
        path = f'modules/{os.uname().release}/modules.dep'
        self.write_file(path, ''.join(f'{each}:\n' for each in paths))

    def add_driver(self, name: str) -> None:
        """Add a PCI driver of the kernel. It has no function yet."""
        directory = f'{self.pci}/drivers/{name}'
        os.makedirs(directory, exist_ok=True)
        for file in ('bind', 'unbind'):
            write_text(f'{directory}/{file}', '')
        module = f'{directory}/module'
        if not os.path.islink(module):
            os.symlink(f'{self.sys}/module/{name}', module)

    def driver_of(self, address: str) -> str | None:
        try:
            link = os.readlink(f'{self.pci}/devices/{address}/driver')
        except OSError:
            return None
        return os.path.basename(link)

    # What the kernel does on a write.

    def file(self, address: str, name: str) -> pathlib.Path:
        return self.pci / 'devices' / address / name

    def group_of(self, address: str) -> str:
        return self.file(address, 'iommu_group').readlink().name

    def into_group(self, path: pathlib.Path, group: int | None) -> None:
        if group is None:
            self._group += 1
            group = self._group
        directory = f'{self.sys}/kernel/iommu_groups/{group}'
        os.makedirs(f'{directory}/devices', exist_ok=True)
        os.symlink(path, f'{directory}/devices/{path.name}')
        os.symlink(directory, f'{path}/iommu_group')

    def add_bus(self, address: str) -> None:
        bus = self.sys / 'class/pci_bus' / address.rsplit(':', 1)[0]
        if not bus.exists():
            os.makedirs(bus)
            write_text(f'{bus}/rescan', '')
