# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A generated sysfs tree, and a kernel that changes it as Linux would.

For unit tests and benchmarks: all that os-acc reads is in files, all that it
writes goes through ``os_acc.devices.sysfs.write``, which this one replaces.
The real kernel's turn is in tests/lab.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import fnmatch
import os
import pathlib
import shutil
from typing import Any
import uuid

import nvme_model

from os_acc.devices import device_file
from os_acc.devices import fpga_manager
from os_acc.devices import libvirt_domains
from os_acc.devices import modules
from os_acc.devices import root_folder
from os_acc.devices import sysfs
from os_acc.devices import waiting
from os_acc.privileged import context
from os_acc.privileged import held
from os_acc.privileged import root_copy
from os_acc.privileged import rtnetlink
from os_acc.privileged.nvme import function as nvme_function

VFIO = ('vfio-pci', 'mlx5_vfio_pci')


class KernelCrash(BaseException):
    """The process ends here, as by kill -9."""


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def _write(path: str, text: str) -> None:
    """Write a file that nobody reads yet.

    Most tests build a host of about 300 files, so this makes no more system
    calls than it needs; Path.write_text() makes three times as many.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _put(path: pathlib.Path, text: str) -> None:
    """Replace a file in one step, as the kernel does."""
    folder, name = os.path.split(path)
    new = f'{folder}/.{name}.new'
    _write(new, f'{text}\n')
    os.replace(new, path)


def _set_vgpu_type(path: pathlib.Path, text: str) -> None:
    """A bad id is taken without a word, and reads back as 0."""
    there = (path.parent / 'creatable_vgpu_types').read_text()
    ids = [line.split()[0] for line in there.splitlines()]
    _put(path, text if text in ids else '0')


class Kernel:
    """A host. Its folders: sys, proc, dev, modules, libvirt, run.

    :ivar writes: (path below the root, text) of every write
    :ivar drives: the NVMe drives, each with a small namespace
    :ivar dead: the process has crashed: nothing that it does counts
    :ivar handlers: what a write to a file of such a name does, in place of
        what is built in: called with the path and the text
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.sys = root / 'sys'
        self.pci = self.sys / 'bus/pci'
        self.mdev = self.sys / 'bus/mdev/devices'
        self.writes: list[tuple[str, str]] = []
        self.resets: list[str] = []
        self.handlers: dict[str, Callable[[pathlib.Path, str], None]] = {}
        self._native: dict[str, str | None] = {}
        self._made: dict[str, dict[str, Any]] = {}
        self._off: dict[str, dict[str, Any]] = {}
        self._gone = 0
        self._groups: dict[str, int] = {}
        self._vfs: dict[str, dict[str, Any]] = {}
        self._failures: list[tuple[str, Any]] = []
        self._crash: tuple[int, bool] | None = None
        self.dead = False
        self.drives = nvme_model.Drives()
        self._pid = 4711
        self._group = 100
        self._vfio_devices = 0
        self.groups = True
        self._interface = 1  # the loopback's
        # What each VF of a PF's interface has: see rtnetlink.read_vf().
        self.ports: dict[str, list[dict[str, Any]]] = {}
        self._minor = 0
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
        self.write_file('proc/swaps', 'Filename Type Size Used Priority\n')
        self.aliases()
        self.boot()
        for driver in ('vfio-pci', 'nvme', 'e1000e', 'qat', 'nvidia'):
            self.add_driver(driver)

    def install(self, patch: Any) -> None:
        """Be the kernel of this process. patch: pytest's monkeypatch."""
        for name in ('sys', 'proc', 'dev'):
            patch.setattr(sysfs, name.upper(), str(self.root / name))
        patch.setattr(sysfs, 'LIB_MODULES', str(self.root / 'modules'))
        patch.setattr(
            modules, 'MODPROBE_FOLDERS', (str(self.root / 'modprobe.d'),)
        )
        patch.setattr(sysfs, 'write', self.write)
        patch.setattr(rtnetlink, 'read_vf', self.read_vf)
        patch.setattr(rtnetlink, 'write_vf', self.write_vf)
        patch.setattr(device_file, 'number_of', self._number_of)
        patch.setattr(
            libvirt_domains, 'STATE_FOLDER', str(self.root / 'libvirt')
        )
        patch.setattr(held, 'FOLDER', str(self.root / 'held'))
        patch.setattr(root_copy, 'FOLDER', str(self.root / 'images'))
        patch.setattr(
            fpga_manager, 'FIRMWARE_FOLDER', str(self.root / 'firmware')
        )
        patch.setattr(sysfs, 'make_folder', self.make_folder)
        patch.setattr(sysfs, 'remove_folder', self.remove_folder)
        patch.setattr(root_folder, 'PATH', str(self.root / 'run/os-acc'))
        patch.setattr(nvme_function, 'opened', self._opened)
        # No events come from files.
        patch.setattr(waiting, '_monitor', lambda subsystem: None)
        context.pctxt.set_client_mode(False)

    def write_file(self, name: str, text: str) -> None:
        path = f'{self.root}/{name}'
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write(path, text)

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

    def _opened(self, address: str) -> Any:
        """Open an NVMe drive, as VFIO does."""
        assert self.driver_of(address) in VFIO
        return self.drives.opened(address)

    def add_driver(self, name: str) -> None:
        folder = f'{self.pci}/drivers/{name}'
        os.makedirs(folder, exist_ok=True)
        for file in ('bind', 'unbind'):
            _write(f'{folder}/{file}', '')

    def add_function(
        self,
        address: str,
        ids: str = '8086:10d3',
        pci_class: int = 0x120000,
        driver: str | None = None,
        group: int | None = None,
        numa: int = -1,
        totalvfs: int = 0,
        files: dict[str, str] | None = None,
        net: str | None = None,
        block: str | None = None,
        physfn: str | None = None,
    ) -> pathlib.Path:
        """Put a PCI function into the tree.

        :param ids: vendor and product, 4 hex digits each
        :param driver: the host's own driver for it; it is bound to that
        :param group: its IOMMU group; None: one of its own; -1: none
        :param files: further files of its folder
        :param net: its network interface; block: its disk
        """
        made = dict(locals())
        del made['self']
        self._made[address] = made
        vendor, product = ids.split(':')
        path = self.sys / 'devices/pci0000:00' / address
        folder = str(path)
        os.makedirs(folder)
        os.symlink(folder, f'{self.pci}/devices/{address}')
        modalias = (
            f'pci:v{vendor.upper():0>8}d{product.upper():0>8}'
            f'sv00001AF4sd00001100bc{pci_class >> 16:02X}'
            f'sc{pci_class >> 8 & 255:02X}i{pci_class & 255:02X}'
        )
        common = {
            'vendor': f'0x{vendor}\n',
            'device': f'0x{product}\n',
            'class': f'0x{pci_class:06x}\n',
            'modalias': f'{modalias}\n',
            'numa_node': f'{numa}\n',
            'driver_override': '(null)\n',
            'remove': '',
        }
        self._add_bus(address)
        if totalvfs:
            common |= {
                'sriov_totalvfs': f'{totalvfs}\n',
                'sriov_numvfs': '0\n',
                'sriov_drivers_autoprobe': '1\n',
                'sriov_offset': '1\n',
                'sriov_stride': '1\n',
                'sriov_vf_device': f'{product}\n',
            }
            self._vfs[address] = {
                'ids': ids,
                'pci_class': pci_class,
                'driver': driver,
            }
        for name, text in (common | (files or {})).items():
            if '/' in name:
                os.makedirs(os.path.dirname(f'{folder}/{name}'), exist_ok=True)
            _write(f'{folder}/{name}', text)
        if physfn is not None:
            os.symlink(f'{self.pci}/devices/{physfn}', f'{folder}/physfn')
        if group != -1:
            self._into_group(path, group)
        self._native[address] = driver
        if net is not None:
            self._add_net(path, net)
        if block is not None:
            self._add_block(path, block)
        if driver is not None and physfn is None:
            if not (self.pci / 'drivers' / driver).exists():
                self.add_driver(driver)
            self._bind(address, driver)
        return path

    def _add_bus(self, address: str) -> None:
        bus = self.sys / 'class/pci_bus' / address.rsplit(':', 1)[0]
        if not bus.exists():
            os.makedirs(bus)
            _write(f'{bus}/rescan', '')

    def _into_group(self, path: pathlib.Path, group: int | None) -> None:
        if group is None:
            self._group += 1
            group = self._group
        folder = f'{self.sys}/kernel/iommu_groups/{group}'
        os.makedirs(f'{folder}/devices', exist_ok=True)
        os.symlink(path, f'{folder}/devices/{path.name}')
        os.symlink(folder, f'{path}/iommu_group')

    def _add_net(self, path: pathlib.Path, name: str) -> None:
        folder = f'{path}/net/{name}'
        os.makedirs(folder)
        _write(f'{folder}/flags', '0x1002\n')
        os.symlink(path, f'{folder}/device')
        self._interface += 1
        _write(f'{folder}/ifindex', f'{self._interface}\n')
        os.symlink(folder, f'{self.sys}/class/net/{name}')

    def _add_block(self, path: pathlib.Path, name: str) -> None:
        folder = f'{path}/block/{name}'
        os.makedirs(f'{folder}/holders')
        number = len(os.listdir(f'{self.sys}/class/block'))
        _write(f'{folder}/dev', f'259:{number}\n')
        os.symlink(folder, f'{self.sys}/class/block/{name}')
        _write(f'{self.root}/dev/{name}', '')

    def add_mdev_parent(
        self, path: pathlib.Path, types: dict[str, int], ports: int
    ) -> None:
        """Make a device a parent of mdevs.

        :param types: how many of its ports one of a type takes
        """
        for name, each in types.items():
            folder = f'{path}/mdev_supported_types/{name}'
            os.makedirs(f'{folder}/devices')
            for file, text in {
                'name': f'{name} label',
                'device_api': 'vfio-pci',
                'available_instances': str(ports // each),
                'create': '',
                'ports': str(each),
            }.items():
                _write(f'{folder}/{file}', f'{text}\n')
        _write(f'{path}/ports', f'{ports}\n')
        os.symlink(path, f'{self.sys}/class/mdev_bus/{path.name}')

    def add_mtty(self) -> None:
        path = self.sys / 'devices/virtual/mtty/mtty'
        path.mkdir(parents=True)
        self.add_mdev_parent(path, {'mtty-1': 1, 'mtty-2': 2}, 24)

    def hold(
        self,
        path: str | pathlib.Path,
        name: str = 'qemu',
        number: str = '',
        link: str = '',
    ) -> int:
        """A process opens a device file.

        :param number: its device number, such as 'b 7:0'; empty: that of
            VFIO's group or device
        :param link: what /proc/PID/fd shows; empty: the path
        """
        self._pid += 1
        folder = self.root / f'proc/{self._pid}'
        (folder / 'fd').mkdir(parents=True)
        (folder / 'number').mkdir()
        (folder / 'comm').write_text(f'{name}\n')
        (folder / 'fd/0').symlink_to('/dev/null')
        (folder / 'fd/7').symlink_to(link or path)
        if pathlib.Path(path).parent == self.root / 'dev/vfio':
            group = pathlib.Path(path).name
            self._show_group(group)
            shown = self.sys / 'class/vfio' / group / 'dev'
            number = number or f'c {shown.read_text()}'
        elif pathlib.Path(path).parent == self.root / 'dev/vfio/devices':
            (shown,) = self.pci.glob(
                f'devices/*/vfio-dev/{pathlib.Path(path).name}/dev'
            )
            number = number or f'c {shown.read_text()}'
        (folder / 'number/7').write_text(number)
        return self._pid

    def open_function(
        self, pid: int, address: str, shown: bool = True
    ) -> pathlib.Path:
        """A process opens a function by the file of its IOMMU group.

        :param shown: the kernel names the function (Linux 6.17)
        :returns: the descriptor; close it with unlink()
        """
        folder = self.root / f'proc/{pid}'
        number = len(list((folder / 'fd').iterdir())) + 20
        path = folder / f'fd/{number}'
        path.symlink_to('anon_inode:[vfio-device]')
        (folder / 'fdinfo').mkdir(exist_ok=True)
        there = self._file(address, '').resolve()
        line = f'vfio-device-syspath: {there}\n' if shown else ''
        (folder / f'fdinfo/{number}').write_text(f'pos:\t0\n{line}')
        return path

    @staticmethod
    def _number_of(path: str) -> device_file.Number | None:
        """In the place of device_file.number_of()."""
        folder, fd = os.path.split(path)
        try:
            with open(f'{os.path.dirname(folder)}/number/{fd}') as file:
                kind, number = file.read().split()
        except (OSError, ValueError):
            return None
        return device_file.parse(number, kind)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / f'proc/{pid}')

    def node(self, address: str) -> str:
        """The file of a function's IOMMU group."""
        return str(self.root / 'dev/vfio' / self._group_of(address))

    def _group_of(self, address: str) -> str:
        return self._file(address, 'iommu_group').readlink().name

    def _show_group(self, name: str) -> None:
        (self.root / 'dev/vfio' / name).touch()
        folder = self.sys / 'class/vfio' / name
        if not folder.exists():
            folder.mkdir()
            self._minor += 1
            _put(folder / 'dev', f'244:{self._minor}')

    def _hide_group(self, name: str) -> None:
        (self.root / 'dev/vfio' / name).unlink(missing_ok=True)
        shutil.rmtree(self.sys / 'class/vfio' / name, ignore_errors=True)

    def without_groups(self) -> None:
        """Be a kernel that is built without CONFIG_VFIO_GROUP."""
        self.groups = False
        shutil.rmtree(self.sys / 'class/vfio')

    def device_node(self, address: str) -> str:
        """The file of a function itself, for iommufd."""
        (folder,) = (self._file(address, 'vfio-dev')).iterdir()
        return str(self.root / 'dev/vfio/devices' / folder.name)

    def _show_device(self, address: str) -> None:
        self._vfio_devices += 1
        name = f'vfio{self._vfio_devices}'
        folder = self._file(address, 'vfio-dev') / name
        folder.mkdir(parents=True)
        (self.sys / 'class/vfio-dev' / name).touch()
        if not self.groups:
            (self.root / 'dev/vfio/devices' / name).touch()
            (folder / 'dev').write_text(f'510:{self._vfio_devices}\n')

    def _hide_device(self, address: str) -> None:
        for folder in self._file(address, 'vfio-dev').iterdir():
            (self.sys / 'class/vfio-dev' / folder.name).unlink()
            node = self.root / 'dev/vfio/devices' / folder.name
            node.unlink(missing_ok=True)
        shutil.rmtree(self._file(address, 'vfio-dev'))

    def fail(self, pattern: str, act: int | Callable[[], None]) -> None:
        """The next write to such a path answers with an errno, or does."""
        self._failures.append((pattern, act))

    def crash_at(self, number: int, after: bool) -> None:
        """The process ends at the number'th write from now."""
        self._crash = (number, after)

    def reboot(self) -> None:
        self._crash, self._failures = None, []
        for link in list(self.mdev.iterdir()):
            self._remove_mdev(link.name)
        for pf in self._vfs:
            self._set_numvfs(pf, 0)
            _put(self._file(pf, 'sriov_drivers_autoprobe'), '1')
        for address, native in self._native.items():
            _put(self._file(address, 'driver_override'), '(null)')
            self._unbind(address)
            if native is not None:
                self._bind(address, native)
        for pid in list((self.root / 'proc').glob('[0-9]*')):
            shutil.rmtree(pid)
        shutil.rmtree(self.root / 'run/os-acc', ignore_errors=True)
        self.boot()

    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for link in sorted((self.pci / 'devices').iterdir()):
            found[link.name] = [self.driver_of(link.name)] + [
                (link / name).read_text() if (link / name).exists() else None
                for name in (
                    'driver_override',
                    'sriov_numvfs',
                    'sriov_drivers_autoprobe',
                    'nvidia/current_vgpu_type',
                )
            ]
        for link in sorted(self.mdev.iterdir()):
            found[link.name] = [
                link.resolve().parent.name,
                (link / 'mdev_type').readlink().name,
            ]
        for pf, vfs in self.ports.items():
            for number, values in enumerate(vfs):
                found[f'{pf} VF {number}'] = dict(values)
        return found

    def driver_of(self, address: str) -> str | None:
        try:
            link = os.readlink(f'{self.pci}/devices/{address}/driver')
        except OSError:
            return None
        return os.path.basename(link)

    # What the kernel does on a write.

    def write(self, path: str, text: str) -> None:
        """In the place of sysfs.write."""

        def act() -> None:
            if not os.path.exists(path):
                fail(errno.ENOENT)
            self._act(pathlib.Path(path), text)

        self.step(str(pathlib.Path(path).relative_to(self.root)), text, act)

    def make_folder(self, path: str) -> None:
        """In the place of sysfs.make_folder."""
        self.step(
            str(pathlib.Path(path).relative_to(self.root)),
            'mkdir',
            lambda: self._make_overlay(pathlib.Path(path)),
        )

    @staticmethod
    def _make_overlay(path: pathlib.Path) -> None:
        path.mkdir()
        _put(path / 'path', '')
        _put(path / 'status', 'unapplied')

    def remove_folder(self, path: str) -> None:
        """In the place of sysfs.remove_folder."""
        self.step(
            str(pathlib.Path(path).relative_to(self.root)),
            'rmdir',
            lambda: shutil.rmtree(path),
        )

    def step(self, name: str, text: str, act: Callable[[], None]) -> None:
        """Change something, unless a failure or a crash is due."""
        if self.dead:
            raise KernelCrash
        if self._crash is not None:
            number, after = self._crash
            self._crash = (number - 1, after)
            if number == 0 and not after:
                self._die()
        for failure in self._failures:
            if fnmatch.fnmatch(name, failure[0]):
                self._failures.remove(failure)
                if callable(failure[1]):
                    failure[1]()
                else:
                    fail(failure[1])
                break
        self.writes.append((name, text))
        act()
        if self._crash is not None and self._crash == (-1, True):
            self._die()

    def _port(self, interface: int, number: int) -> tuple[str, dict[str, Any]]:
        """The PF that an interface is of, and the settings of its VF."""
        for pf, vfs in self.ports.items():
            for path in (self.pci / 'devices' / pf / 'net').glob('*/ifindex'):
                if int(path.read_text()) == interface and number < len(vfs):
                    return pf, vfs[number]
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def read_vf(self, interface: int, number: int) -> dict[str, Any]:
        """In the place of rtnetlink.read_vf."""
        return dict(self._port(interface, number)[1])

    def write_vf(
        self, interface: int, number: int, name: str, value: Any
    ) -> None:
        """In the place of rtnetlink.write_vf."""
        pf, values = self._port(interface, number)
        self.step(
            f'{pf}/vf/{number}/{name}',
            str(value),
            lambda: values.update({name: value}),
        )

    def _die(self) -> None:
        self.dead = True
        raise KernelCrash

    def revive(self) -> None:
        """A new process."""
        self.dead = False
        self.calm()

    def calm(self) -> None:
        """No crash to come."""
        self._crash = None

    def _act(self, path: pathlib.Path, text: str) -> None:
        if path.name in self.handlers:
            self.handlers[path.name](path, text)
        else:
            self.built_in(path, text)

    def built_in(self, path: pathlib.Path, text: str) -> None:
        """Do what a write to a file does without handlers."""
        acts: dict[str, Callable[[], None]] = {
            'driver_override': lambda: self._set_override(path, text),
            'drivers_probe': lambda: self._probe(text),
            'bind': lambda: self._explicit_bind(text, path.parent.name),
            'unbind': lambda: self._explicit_unbind(text, path.parent.name),
            'sriov_numvfs': lambda: self._write_numvfs(
                path.parent.name, int(text)
            ),
            'sriov_drivers_autoprobe': lambda: _put(path, text),
            'reset': lambda: self.resets.append(path.parent.name),
            'create': lambda: self._create_mdev(path.parent, text),
            'remove': lambda: self._remove(path.parent.name),
            'rescan': self.come_back,
            'current_vgpu_type': lambda: _set_vgpu_type(path, text),
        }
        acts.get(path.name, lambda: fail(errno.EACCES))()

    @staticmethod
    def _set_override(path: pathlib.Path, text: str) -> None:
        if text:
            _put(path, text.strip() or '(null)')

    def _explicit_unbind(self, address: str, driver: str) -> None:
        if self.driver_of(address) != driver:
            fail(errno.ENODEV)
        self._unbind(address)

    def _file(self, address: str, name: str) -> pathlib.Path:
        return self.pci / 'devices' / address / name

    def _override(self, address: str) -> str | None:
        text = self._file(address, 'driver_override').read_text().strip()
        return None if text == '(null)' else text

    def _allowed(self, address: str, driver: str) -> bool:
        override = self._override(address)
        if override is not None:
            return override == driver
        physfn = self._file(address, 'physfn')
        if physfn.is_symlink():
            probing = (physfn / 'sriov_drivers_autoprobe').read_text()
            if probing.strip() == '0':
                return False
        return self._native[address] == driver

    def _explicit_bind(self, address: str, driver: str) -> None:
        if self.driver_of(address) or not self._allowed(address, driver):
            fail(errno.ENODEV)
        # iommu_device_use_default_domain() in drivers/iommu/iommu.c
        if driver not in VFIO and self._is_held(self._group_of(address)):
            fail(errno.EBUSY)
        self._bind(address, driver)

    def _probe(self, address: str) -> None:
        wanted = self._override(address) or self._native[address]
        if (
            self.driver_of(address) is None
            and wanted is not None
            and (self.pci / 'drivers' / wanted).exists()
            and self._allowed(address, wanted)
        ):
            self._bind(address, wanted)

    def _bind(self, address: str, driver: str) -> None:
        folder = f'{self.pci}/drivers/{driver}'
        device = f'{self.pci}/devices/{address}'
        os.symlink(folder, f'{device}/driver')
        os.symlink(device, f'{folder}/{address}')
        if driver in VFIO:
            self._show_device(address)
            if self.groups:
                self._show_group(self._group_of(address))

    def _unbind(self, address: str) -> None:
        driver = self.driver_of(address)
        if driver is None:
            return
        self._file(address, 'driver').unlink()
        (self.pci / 'drivers' / driver / address).unlink()
        if driver in VFIO:
            self._hide_device(address)
        if driver in VFIO and not self._group_in_vfio(address):
            self._hide_group(self._group_of(address))

    def _is_held(self, group: str) -> bool:
        node = self.root / 'dev/vfio' / group
        return any(
            link.readlink() == node
            for link in (self.root / 'proc').glob('[0-9]*/fd/*')
        )

    def _group_in_vfio(self, address: str) -> bool:
        members = self._file(address, 'iommu_group') / 'devices'
        return any(
            self.driver_of(member.name) in VFIO for member in members.iterdir()
        )

    def _write_numvfs(self, pf: str, number: int) -> None:
        now = int(self._file(pf, 'sriov_numvfs').read_text())
        if number > int(self._file(pf, 'sriov_totalvfs').read_text()):
            fail(errno.ERANGE)
        if self.driver_of(pf) is None:
            fail(errno.ENOENT)
        if number == now:
            return
        if number and now:
            fail(errno.EBUSY)
        self._set_numvfs(pf, number)

    def _set_numvfs(self, pf: str, number: int) -> None:
        _put(self._file(pf, 'sriov_numvfs'), str(number))
        if (self.pci / 'devices' / pf / 'net').is_dir():
            self.ports[pf] = [
                {
                    'mac_address': '00:00:00:00:00:00',
                    'vlan': [0, 0],
                    'vlan_protocol': 0x8100,
                    'trusted': False,
                    'spoof_check': True,
                }
                for _ in range(number)
            ]
        for link in (self.pci / 'devices' / pf).glob('virtfn*'):
            self._remove_function(link.readlink().name)
            link.unlink()
        bus = pf.rsplit(':', 1)[0]
        first = int(pf[-1]) + 1
        for place in range(number):
            rid = first + place
            address = f'{bus}:{rid >> 3:02x}.{rid & 7}'
            self.add_function(address, physfn=pf, **self._vfs[pf])
            self._file(pf, f'virtfn{place}').symlink_to(
                self.pci / 'devices' / address
            )
            self._probe(address)

    def _remove_function(self, address: str) -> None:
        self._unbind(address)
        path = (self.pci / 'devices' / address).resolve()
        group = (path / 'iommu_group').resolve()
        (group / 'devices' / address).unlink()
        if not list((group / 'devices').iterdir()):
            shutil.rmtree(group)
        # Kept, so that no later folder gets its inode number: the numbers of
        # sysfs are not used again either.
        self._gone += 1
        os.makedirs(f'{self.root}/gone', exist_ok=True)
        os.rename(path, f'{self.root}/gone/{self._gone}')
        (self.pci / 'devices' / address).unlink()
        del self._native[address]

    def _remove(self, name: str) -> None:
        if name in self._native:
            self.take_off(name)
        else:
            self._remove_mdev(name)

    def take_off(self, address: str) -> None:
        """A function, which is no VF, leaves the bus, with its VFs."""
        if address in self._vfs:
            self._set_numvfs(address, 0)
        self._off[address] = self._made.pop(address)
        self._remove_function(address)

    def come_back(self) -> None:
        """The kernel finds the functions that have left the bus."""
        for values in self._off.values():
            self.add_function(**values)
        self._off.clear()

    def _create_mdev(self, kind: pathlib.Path, text: str) -> None:
        if (self.mdev / text).is_symlink():
            fail(errno.EEXIST)
        parent = kind.parent.parent
        if int((kind / 'available_instances').read_text()) < 1:
            fail(errno.EUSERS)
        path = parent / text
        path.mkdir()
        (path / 'mdev_type').symlink_to(kind)
        (path / 'remove').touch()
        self._into_group(path, None)
        (self.mdev / text).symlink_to(path)
        self._show_group((path / 'iommu_group').readlink().name)
        self._count_ports(parent, -int((kind / 'ports').read_text()))

    def _remove_mdev(self, text: str) -> None:
        path = (self.mdev / text).resolve()
        node = self.root / 'dev/vfio' / (path / 'iommu_group').readlink().name
        for link in (self.root / 'proc').glob('[0-9]*/fd/*'):
            if link.readlink() == node:
                fail(errno.EBUSY)
        ports = int((path / 'mdev_type/ports').read_text())
        parent = path.parent
        self._hide_group(node.name)
        shutil.rmtree((path / 'iommu_group').resolve())
        shutil.rmtree(path)
        (self.mdev / text).unlink()
        self._count_ports(parent, ports)

    @staticmethod
    def _count_ports(parent: pathlib.Path, change: int) -> None:
        left = int((parent / 'ports').read_text()) + change
        _put(parent / 'ports', str(left))
        for kind in (parent / 'mdev_supported_types').iterdir():
            each = int((kind / 'ports').read_text())
            _put(kind / 'available_instances', str(left // each))
