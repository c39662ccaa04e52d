# SPDX-License-Identifier: Apache-2.0

"""PCI functions, their drivers and VFs, and mediated devices."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from typing import Any

from os_acc.testing import kernel_openers
from os_acc.testing import kernel_tree

VFIO = ('vfio-pci', 'mlx5_vfio_pci')
fail = kernel_tree.fail
put = kernel_tree.put
write_text = kernel_tree.write_text


class Functions(kernel_openers.Openers):
    """The PCI bus.

    :ivar native: the host's own driver of each function
    :ivar vfs: how the VFs of each PF are made
    :ivar ports: what each VF of a PF's interface has: see rtnetlink.read_vf()
    :ivar bus: the directory below sys/devices of the functions that are made
        from now on, such as pci0000:00/0000:00:01.0 for those behind a bridge
    """

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.native: dict[str, str | None] = {}
        self.vfs: dict[str, dict[str, Any]] = {}
        self.ports: dict[str, list[dict[str, Any]]] = {}
        self.bus = 'pci0000:00'
        self._made: dict[str, dict[str, Any]] = {}
        self._off: dict[str, dict[str, Any]] = {}
        self._gone = 0
        self._interface = 1  # the loopback's

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
        :param files: further files of its directory: their texts by their
            paths, such as 'queues/q0/level'. Kernel.handlers makes them
            writable
        :param net: the name of its network interface
        :param block: the name of its disk
        """
        made = dict(locals())
        del made['self']
        self._made[address] = made
        vendor, product = ids.split(':')
        path = self.sys / 'devices' / self.bus / address
        directory = str(path)
        os.makedirs(directory)
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
        self.add_bus(address)
        if totalvfs:
            common |= {
                'sriov_totalvfs': f'{totalvfs}\n',
                'sriov_numvfs': '0\n',
                'sriov_drivers_autoprobe': '1\n',
                'sriov_offset': '1\n',
                'sriov_stride': '1\n',
                'sriov_vf_device': f'{product}\n',
            }
            self.vfs[address] = {
                'ids': ids,
                'pci_class': pci_class,
                'driver': driver,
            }
        for name, text in (common | (files or {})).items():
            if '/' in name:
                os.makedirs(
                    os.path.dirname(f'{directory}/{name}'), exist_ok=True
                )
            write_text(f'{directory}/{name}', text)
        if physfn is not None:
            os.symlink(f'{self.pci}/devices/{physfn}', f'{directory}/physfn')
        # Now, because another process must not find it without its files.
        os.symlink(directory, f'{self.pci}/devices/{address}')
        if group != -1:
            self.into_group(path, group)
        self.native[address] = driver
        if net is not None:
            self.add_net(path, net)
        if block is not None:
            self._add_block(path, block)
        if driver is not None and physfn is None:
            if not (self.pci / 'drivers' / driver).exists():
                self.add_driver(driver)
            self.bind(address, driver)
        return path

    def add_net(self, path: pathlib.Path, name: str) -> None:
        directory = f'{path}/net/{name}'
        os.makedirs(directory)
        write_text(f'{directory}/flags', '0x1002\n')
        os.symlink(path, f'{directory}/device')
        self._interface += 1
        write_text(f'{directory}/ifindex', f'{self._interface}\n')
        os.symlink(directory, f'{self.sys}/class/net/{name}')

    def leave_namespace(self, name: str) -> None:
        """Move a network interface to another network namespace.

        Its directory is no longer shown, but the one above it is.
        """
        link = self.sys / 'class/net' / name
        directory = link.resolve()
        link.unlink()
        shutil.rmtree(directory)

    def _add_block(self, path: pathlib.Path, name: str) -> None:
        directory = f'{path}/block/{name}'
        os.makedirs(f'{directory}/holders')
        number = len(os.listdir(f'{self.sys}/class/block'))
        write_text(f'{directory}/dev', f'259:{number}\n')
        os.symlink(directory, f'{self.sys}/class/block/{name}')
        write_text(f'{self.root}/dev/{name}', '')

    def _override(self, address: str) -> str | None:
        text = self.file(address, 'driver_override').read_text().strip()
        return None if text == '(null)' else text

    def allowed(self, address: str, driver: str) -> bool:
        override = self._override(address)
        if override is not None:
            return override == driver
        physfn = self.file(address, 'physfn')
        if physfn.is_symlink():
            probing = (physfn / 'sriov_drivers_autoprobe').read_text()
            if probing.strip() == '0':
                return False
        return self.native[address] == driver

    @staticmethod
    def set_override(path: pathlib.Path, text: str) -> None:
        if text:
            put(path, text.strip() or '(null)')

    def explicit_bind(self, address: str, driver: str) -> None:
        if self.driver_of(address) or not self.allowed(address, driver):
            fail(errno.ENODEV)
        # iommu_device_use_default_domain() in drivers/iommu/iommu.c
        if driver not in VFIO and self.is_held(self.group_of(address)):
            fail(errno.EBUSY)
        self.bind(address, driver)

    def explicit_unbind(self, address: str, driver: str) -> None:
        if self.driver_of(address) != driver:
            fail(errno.ENODEV)
        self.unbind(address)

    def probe(self, address: str) -> None:
        wanted = self._override(address) or self.native[address]
        if (
            self.driver_of(address) is None
            and wanted is not None
            and (self.pci / 'drivers' / wanted).exists()
            and self.allowed(address, wanted)
        ):
            self.bind(address, wanted)

    def bind(self, address: str, driver: str) -> None:
        directory = f'{self.pci}/drivers/{driver}'
        device = f'{self.pci}/devices/{address}'
        os.symlink(directory, f'{device}/driver')
        os.symlink(device, f'{directory}/{address}')
        if driver in VFIO:
            self.show_device(address)
            if self.groups:
                self.show_group(self.group_of(address))

    def unbind(self, address: str) -> None:
        driver = self.driver_of(address)
        if driver is None:
            return
        self.file(address, 'driver').unlink()
        (self.pci / 'drivers' / driver / address).unlink()
        if driver in VFIO:
            self.hide_device(address)
            if not self._group_in_vfio(address):
                self.hide_group(self.group_of(address))

    def _group_in_vfio(self, address: str) -> bool:
        members = self.file(address, 'iommu_group') / 'devices'
        return any(
            self.driver_of(member.name) in VFIO for member in members.iterdir()
        )

    def write_numvfs(self, pf: str, number: int) -> None:
        now = int(self.file(pf, 'sriov_numvfs').read_text())
        if number > int(self.file(pf, 'sriov_totalvfs').read_text()):
            fail(errno.ERANGE)
        if self.driver_of(pf) is None:
            fail(errno.ENOENT)
        if number == now:
            return
        if number and now:
            fail(errno.EBUSY)
        self.set_numvfs(pf, number)

    def set_numvfs(self, pf: str, number: int) -> None:
        put(self.file(pf, 'sriov_numvfs'), str(number))
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
            self.remove_function(link.readlink().name)
            link.unlink()
        for place in range(number):
            address = self._vf_address(pf, place)
            self.add_function(address, physfn=pf, **self.vfs[pf])
            self.file(pf, f'virtfn{place}').symlink_to(
                self.pci / 'devices' / address
            )
            self.probe(address)

    def _vf_address(self, pf: str, place: int) -> str:
        """Where a VF is: pci_iov_virtfn_bus() in drivers/pci/iov.c."""
        offset, stride = (
            int(self.file(pf, f'sriov_{name}').read_text())
            for name in ('offset', 'stride')
        )
        domain, bus, rest = pf.split(':')
        slot, function = rest.split('.')
        own = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
        rid = own + offset + stride * place
        return (
            f'{domain}:{rid >> 8 & 0xFF:02x}:{rid >> 3 & 0x1F:02x}.{rid & 7}'
        )

    def remove_function(self, address: str) -> None:
        self.unbind(address)
        path = (self.pci / 'devices' / address).resolve()
        group = (path / 'iommu_group').resolve()
        (group / 'devices' / address).unlink()
        if not list((group / 'devices').iterdir()):
            shutil.rmtree(group)
        # Kept, so that no later directory gets its inode number: the numbers
        # of sysfs are not reused either.
        self._gone += 1
        os.makedirs(f'{self.root}/gone', exist_ok=True)
        os.rename(path, f'{self.root}/gone/{self._gone}')
        (self.pci / 'devices' / address).unlink()
        del self.native[address]

    def take_off(self, address: str) -> None:
        """A function that is not a VF leaves the bus, with its VFs."""
        if address in self.vfs:
            self.set_numvfs(address, 0)
        self._off[address] = self._made.pop(address)
        self.remove_function(address)

    def come_back(self) -> None:
        """The kernel finds the functions that have left the bus.

        They are as add_function() has made them.
        """
        for values in self._off.values():
            self.add_function(**values)
        self._off.clear()


class Mdevs(Functions):
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
