# SPDX-License-Identifier: Apache-2.0

"""AMD GPUs with compute partitions, in the generated kernel.

What the files say, and when a write is refused, follows amdgpu_gfx.c,
amdgpu_xcp.c and aqua_vanjaram.c of drivers/gpu/drm/amd/amdgpu, and
kfd_topology.c of drivers/gpu/drm/amd/amdkfd, of Linux 6.12.
"""

from __future__ import annotations

import errno
import os
import pathlib
import shutil

import device_nodes

import os_acc
from os_acc.kernel import device_files

PARTS = {'SPX': 1, 'DPX': 2, 'QPX': 4, 'CPX': 8}
MOST = 8
CLASS = 'CUSTOM_GPU'
#: Offers all of them, by device_spec.
ENTRY = {
    'devices': '/dev/dri/renderD*',
    'with': ['/dev/kfd', '/dev/dri/card*'],
    'resource_class': CLASS,
}
FILES = ('current_compute_partition', 'available_compute_partition')


class Nodes(device_nodes.Nodes):
    """Device files that kernel.add_node() makes."""

    def __init__(self, kernel) -> None:
        super().__init__(kernel)
        self.kernel = kernel

    def add(self, name, number, directory='', subsystem='', mode=0o600):
        self.kernel.add_node(f'/dev/{name}', number)
        path = self.kernel.sys / 'devices' / directory
        self.show(device_files.parse(number[2:], number[0]), path, subsystem)
        return path


class Cards:
    """The cards of a host.

    :param kernel: its kernel
    :param nodes: its device files: an object with add() and render(), as
        device_nodes.Nodes
    :ivar computing: whether KFD has a process: no mode can be set then
    :ivar ignores: whether the driver accepts each mode, and does nothing
    :ivar high: the number of a partition is in the high bits of location_id
    """

    def __init__(self, kernel, nodes) -> None:
        self.kernel, self.nodes = kernel, nodes
        self.minors: dict[str, list[int]] = {}
        self.computing = self.ignores = self.high = False
        self._generation = 0
        kernel.handlers[FILES[0]] = self._write
        self.nodes.add('kfd', 'c 235:0', 'virtual/kfd/kfd', 'kfd')
        kernel.write_file('sys/class/kfd/kfd/dev', '235:0\n')

    def add(self, card: str) -> None:
        """A card, and the platform devices that amdgpu makes for it."""
        self.kernel.add_function(
            card,
            '1002:74a1',
            0x120000,
            'amdgpu',
            files={
                FILES[0]: 'SPX\n',
                FILES[1]: ', '.join(PARTS) + '\n',
                'drm/version': 'drm 1.1.0\n',
            },
        )
        first = 128 + MOST * len(self.minors)
        self.nodes.render(card, first)
        self.minors[card] = [*range(first, first + MOST)]
        for minor in self.minors[card][1:]:
            number = minor - 128 - len(self.minors)
            there = f'platform/amdgpu_xcp_{number}/drm'
            for name, at in (('renderD', minor), ('card', minor - 128)):
                name = f'{name}{at}'
                self.nodes.add(
                    f'dri/{name}', f'c 226:{at}', f'{there}/{name}', 'drm'
                )
        for directory in self.kernel.sys.glob('devices/**/drm/*[0-9]'):
            text = f'DEVNAME=dri/{directory.name}\n'
            (directory / 'uevent').write_text(text)
        self.show()

    def mode(self, card: str) -> str:
        return self._file(card).read_text().strip()

    def set(self, card: str, mode: str) -> None:
        """Set a mode as somebody else does, not through os-acc."""
        self._file(card).write_text(f'{mode}\n')
        self.show()

    def reboot(self) -> None:
        self.kernel.reboot()
        self.start()

    def start(self) -> None:
        """The cards after a reboot."""
        for card in self.minors:
            self.set(card, 'SPX')

    def show(self) -> None:
        """KFD's topology: a node for each GPU, and one for the CPUs."""
        topology = pathlib.Path(self.kernel.sys / 'class/kfd/kfd/topology')
        shutil.rmtree(topology, ignore_errors=True)
        self._generation += 1
        (topology / 'nodes/0').mkdir(parents=True)
        (topology / 'generation_id').write_text(f'{self._generation}\n')
        (topology / 'nodes/0/properties').write_text(
            'cpu_cores_count 64\nlocation_id 0\ndomain 0\ndrm_render_minor 0\n'
        )
        number = 0
        for card, minors in self.minors.items():
            domain, bus, rest = card.split(':')
            place = int(bus, 16) << 8 | int(rest[:2], 16) << 3
            for part in range(PARTS.get(self.mode(card), 1)):
                number += 1
                node = topology / f'nodes/{number}'
                node.mkdir()
                location = place | part << (28 if self.high else 0)
                (node / 'properties').write_text(
                    f'cpu_cores_count 0\nlocation_id {location}\n'
                    f'domain {int(domain, 16)}\n'
                    f'drm_render_minor {minors[part]}\n'
                )

    def _file(self, card: str) -> pathlib.Path:
        return pathlib.Path(self.kernel.pci / 'devices' / card / FILES[0])

    def _write(self, path: pathlib.Path, text: str) -> None:
        possible = (path.parent / FILES[1]).read_text()
        if text not in possible.replace(',', ' ').split():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if self.computing:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if not self.ignores:
            self.set(path.parent.name, text)


def installed(kernel, monkeypatch, *cards: str) -> Cards:
    """Make cards on a generated kernel, which os_acc finds.

    :param cards: their PCI addresses
    """
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    kernel.add_driver('amdgpu')
    nodes = device_nodes.Nodes(kernel)
    nodes.install(monkeypatch)
    made = Cards(kernel, nodes)
    for each in cards:
        made.add(each)
    os_acc.initialize(reset=True)
    return made
