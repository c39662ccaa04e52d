# SPDX-License-Identifier: Apache-2.0

"""The rigs of test_programming_gate.py: one for each programmer.

The chip of a rig has two PFs, and VFs of the second one, through which it is
programmed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
import hashlib
import json
import pathlib
import uuid

import cyborg_stand_in
import devices
import dfl_model
import vendor
import vendor_tools

import os_acc
from os_acc import programming
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.privileged.fpga import amd as privileged_amd
from os_acc.privileged.fpga import command as privileged
from os_acc.privileged.fpga import dfl as privileged_dfl
from os_acc.privileged.fpga import dfl_ioctl
from os_acc.spec import device_spec

SIBLING, PF = '0000:0a:00.0', '0000:0a:00.1'
VFS = ['0000:0a:00.2', '0000:0a:00.3', '0000:0a:00.4']
IDS = '8086:09c4'
# Some programmers read the function from the image, where it is a UUID.
AES = 'aaaaaaaa-1111-4222-8333-444455556666'
SHA = 'cccccccc-1111-4222-8333-444455556666'
SHELL = '862c7020-a250-3e29-bbed-b69c97bbf0ff'


class Rig(abc.ABC):
    """A chip, and what programs it.

    :cvar driver: the driver that programs it for instances
    :ivar vfs: the VFs that it has
    """

    driver = 'fpga'

    def __init__(self, kernel, directory):
        self.kernel, self.directory = kernel, directory
        self.vfs = VFS

    def at(self, place):
        """The address of a part: sibling, pf, first or last VF."""
        return {
            'sibling': SIBLING,
            'pf': PF,
            'first': self.vfs[0],
            'last': self.vfs[-1],
        }[place]

    def add_card(self, ids=(IDS, IDS), drivers=('dfl-pci', 'dfl-pci')):
        """Add the chip with its VFs."""
        self.kernel.add_function(
            SIBLING, ids[0], 0x120000, drivers[0], net='fpga0'
        )
        self.kernel.add_function(PF, ids[1], 0x120000, drivers[1], totalvfs=3)
        self.make_vfs()

    def make_vfs(self):
        path = f'{self.kernel.pci}/devices/{PF}/sriov_numvfs'
        self.kernel.write(path, '3')

    def reboot(self):
        self.kernel.reboot()
        self.make_vfs()

    def configure(self, **values):
        """Let os-acc program the chip with values of device_spec."""
        devices.spec(
            {'address': PF, 'resource_class': 'FPGA', **values},
            {'address': SIBLING},
        )
        self.allow(self.directory)
        os_acc.initialize()

    def allow(self, directory):
        os_acc.CONF.set_override(
            'allowed_folders', [str(directory)], 'os_acc_bitstreams'
        )

    def two_pfs(self, first, second):
        """Add another chip, with two PFs and no VFs.

        :returns: the PF that it is programmed through, and the other one
        """
        self.add_pfs(first, second)
        (spec, _) = map(json.loads, os_acc.CONF.os_acc.device_spec)
        spec.pop('num_vfs')
        devices.spec({**spec, 'address': first}, {'address': second})
        return first, second

    def add_pfs(self, *addresses):
        for address in addresses:
            self.kernel.add_function(address, IDS, 0x120000, 'dfl-pci')

    def image(self, name: str, content: bytes) -> str:
        path = pathlib.Path(self.directory / name)
        vendor.put(path, content)
        return str(path)

    def bitstream(self, function: str) -> str:
        """Make a bitstream with a function; returns its path."""
        return self.image(f'{function}.bin', function.encode())

    def program(self, function, **values):
        path = self.bitstream(function)
        return os_acc.program_device(PF, path, function, **values)

    @abc.abstractmethod
    def count(self) -> int:
        """How often it was programmed."""


class RootRig(Rig):
    """A chip that a privileged half of os-acc programs."""

    @abc.abstractmethod
    def inside(self) -> str | None:
        """The function that it has."""

    @abc.abstractmethod
    def as_root(self, path: str) -> list[Callable[[], None]]:
        """The calls of the privileged half; the first one only checks."""


class BoardRig(Rig):
    """Any programmer, in a slot of a driver that does not program."""

    class Board(programming.Programmer):
        done = 0

        def program(self, file, function_id, report):
            self.done += 1
            return device_spec.PARTIAL

    def __init__(self, kernel, tmp_path, monkeypatch):
        super().__init__(kernel, tmp_path)
        self.add_card()
        devices.spec({'address': '*'})
        os_acc.initialize()
        self.board = self.Board(PF)

    def program(self, function):
        found = chip.of(pci.get(PF))
        return programming.Slot(
            os_acc._get().extensions.drivers['pci'],
            PF,
            programmer=self.board,
            chip=found,
            functions=found.functions,
        ).program(programming.Wanted(function, function))

    def count(self):
        return self.board.done


class CommandRig(RootRig):
    #: What runs while it is programmed.
    working = (privileged, 'run')

    def __init__(self, kernel, tmp_path, monkeypatch, kind='single'):
        super().__init__(kernel, tmp_path)
        self.add_card()
        self.tool = vendor.Vendor(tmp_path / 'vendor')
        self.tool.configure(kind, address=PF)
        spec = json.loads(os_acc.CONF.os_acc.device_spec[0])
        devices.spec(spec, {'address': SIBLING})
        os_acc.initialize()

    def add_second(self, address):
        """Add a card with a tool of its own, since a tool knows one card."""
        self.kernel.add_function(address, IDS, 0x120000, 'dfl-pci', totalvfs=3)
        tool = vendor.Vendor(self.directory / 'second')
        first = self.tool.spec(programming='single', address=PF)
        second = tool.spec(programming='single', address=address)
        devices.spec(first, second)
        return tool

    def bitstream(self, function):
        return self.tool.bitstream(function)

    def count(self):
        return len(self.tool.calls())

    def inside(self):
        return self.tool.function()

    def as_root(self, path):
        return [
            lambda: privileged.check(PF, '', path),
            lambda: privileged.program(PF, '', path, '0' * 64, None, 5.0),
            lambda: privileged.clear(PF, '', 5.0),
        ]


class DflRig(RootRig):
    """A card with one port as a whole, or with three ports as regions."""

    working = (dfl_ioctl, 'program')

    def __init__(self, kernel, tmp_path, monkeypatch, kind='single'):
        super().__init__(kernel, tmp_path)
        self.patch = monkeypatch
        kernel.add_function(SIBLING, IDS, 0x120000, 'dfl-pci', net='fpga0')
        ports = 1 if kind == 'single' else 3
        self.vfs = VFS[:ports]
        self.card = dfl_model.Card(kernel, ports, PF)
        self.card.install(monkeypatch)
        self.make_vfs()
        self.configure(programmer='dfl', programming=kind, num_vfs=ports)

    def make_vfs(self):
        self.card.make_vfs(len(self.vfs))

    def reboot(self):
        self.card.reboot()
        self.make_vfs()

    def add_pfs(self, first, second):
        self.card = dfl_model.Card(self.kernel, 1, first)
        self.card.install(self.patch)
        self.kernel.add_function(second, IDS, 0x120000, 'dfl-pci')

    def bitstream(self, function):
        return self.image(f'{function}.gbs', dfl_model.image(function))

    def count(self):
        return [name for name, _ in self.card.calls].count('program')

    def inside(self):
        return str(uuid.UUID(self.card.functions[0]))

    def as_root(self, path):
        digest = _digest(path)
        return [
            lambda: privileged_dfl.check(PF, '', path, 5.0),
            lambda: privileged_dfl.program(PF, '', path, digest, None, 5.0),
        ]


class AMDRig(RootRig):
    """The first PF is the management function, the second the user one."""

    def __init__(self, kernel, tmp_path, monkeypatch):
        super().__init__(kernel, tmp_path)
        self.add_card(('10ee:5004', '10ee:5005'), ('xclmgmt', 'xocl'))
        self._show_shell(SIBLING)
        self.tools = vendor_tools.Tools(tmp_path / 'xrt', SIBLING, PF)
        path = str(self.tools.directory)
        os_acc.CONF.set_override('xrt_path', path, 'os_acc')
        self.configure(programmer='amd', num_vfs=3)

    def _show_shell(self, address):
        path = self.kernel.pci / 'devices' / address / 'interface_uuids'
        path.write_text(f'{SHELL}\n')

    def two_pfs(self, first, second):
        own, other = super().two_pfs(second, first)
        (self.tools.host / 'cards').write_text(f'{first} {second}')
        self._show_shell(first)
        return own, other

    def add_pfs(self, own, other):
        for address, ids, driver in (
            (other, '10ee:5004', 'xclmgmt'),
            (own, '10ee:5005', 'xocl'),
        ):
            self.kernel.add_function(address, ids, 0x120000, driver)

    def bitstream(self, function):
        content = vendor_tools.xclbin(function, SHELL)
        return self.image(f'{function}.xclbin', content)

    def count(self):
        return len(self.tools.calls())

    def inside(self):
        found = self.tools.inside(SIBLING)
        return found and found.rpartition(b'logic of ')[2].decode()

    def as_root(self, path):
        digest = _digest(path)
        return [
            lambda: privileged_amd.check(PF, path),
            lambda: privileged_amd.program(PF, path, digest, 5.0),
        ]


class CyborgRig(Rig):
    driver = 'cyborg'

    def __init__(self, kernel, tmp_path, monkeypatch):
        super().__init__(kernel, tmp_path)
        self.add_card()
        devices.spec({'address': '*'})
        self.host = cyborg_stand_in.Host(tmp_path / 'stand-in', kernel)
        path = str(cyborg_stand_in.STAND_IN)
        monkeypatch.setenv('PYTHONPATH', path)
        monkeypatch.setenv('STAND_IN', str(self.host.directory))
        monkeypatch.setenv('STAND_IN_SYS', str(kernel.sys))
        slot = cyborg_stand_in.slot
        self.host.find(
            cyborg_stand_in.device(
                'fpga', PF, *(['PCI', slot(vf)] for vf in VFS)
            )
        )
        self.allow(tmp_path)
        os_acc.initialize()
        cyborg_stand_in.option('enabled_drivers', ['fpga'])

    def two_pfs(self, first, second):
        self.add_pfs(first, second)
        slot = cyborg_stand_in.slot(first)
        self.host.find(cyborg_stand_in.device('fpga', first, ['PCI', slot]))
        return first, second

    def count(self):
        return len(self.host.calls())


def _digest(path: str) -> str:
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


#: The rigs of drivers that program for instances.
DRIVEN = {
    'command': CommandRig,
    'dfl': DflRig,
    'amd': AMDRig,
    'cyborg': CyborgRig,
}
RIGS = {'any': BoardRig, **DRIVEN}
#: The rigs with a privileged half in os-acc.
WITH_ROOT = [name for name in DRIVEN if name != 'cyborg']
