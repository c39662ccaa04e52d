# SPDX-License-Identifier: Apache-2.0

"""A card with an FPGA manager in the generated kernel of os_acc.testing."""

from __future__ import annotations

import os
import pathlib
import struct
from typing import Any

from os_acc.testing import kernel as kernel_module

CARD = '0000:3b:00.0'
REGION = '/fpga-region@1'


class Card:
    """A card with an FPGA manager, in a kernel that can program it.

    :param values: as of Kernel.add_function()
    :ivar images: what the kernel has loaded
    :ivar flags: the flags that it was loaded with
    :ivar fails: what the kernel does with the next image: an errno, or a state
        of the manager
    """

    def __init__(
        self,
        kernel: kernel_module.Kernel,
        address: str = CARD,
        name: str = 'fpga0',
        **values: Any,
    ) -> None:
        self.kernel, self.name = kernel, name
        kernel.add_function(address, '10ee:9038', 0x120000, **values)
        self.folder = self.device(address, 'fpga_manager', name)
        for file, text in (
            ('name', 'Fake FPGA Manager'),
            ('state', 'power off'),
            ('status', ''),
        ):
            self.set(file, text)
        self.images: list[bytes] = []
        self.flags: list[str] = []
        self.fails: int | str | None = None
        self.names: list[str] = []
        kernel.handlers.update(
            flags=lambda path, text: self.flags.append(text),
            firmware=lambda path, text: self.load(text),
            path=self.apply,
        )
        (kernel.root / 'firmware').mkdir(exist_ok=True)

    def device(self, address: str, kind: str, name: str) -> pathlib.Path:
        """A device of a class below a PCI function."""
        folder = (self.kernel.pci / 'devices' / address).resolve()
        folder = folder / kind / name
        folder.mkdir(parents=True)
        top = self.kernel.sys / 'class' / kind
        top.mkdir(exist_ok=True)
        (top / name).symlink_to(folder)
        return folder

    def set(self, file: str, text: str) -> None:
        (self.folder / file).write_text(f'{text}\n')

    def with_firmware(self) -> None:
        """Be a kernel of Xilinx."""
        for file in ('firmware', 'flags'):
            self.set(file, '')

    def with_overlays(self, regions: int = 1) -> pathlib.Path:
        """Be a kernel with device-tree overlays."""
        for number in range(regions):
            node = self.device(CARD, 'fpga_region', f'region{number}')
            (node / 'of_node').symlink_to(
                f'../../../../firmware/devicetree/base{REGION}'
            )
        path = self.kernel.sys / 'kernel/config/device-tree/overlays'
        path.mkdir(parents=True)
        return path

    def load(self, name: str) -> None:
        self.names.append(name)
        if isinstance(self.fails, int):
            self.set('state', 'write error')
            raise OSError(self.fails, os.strerror(self.fails))
        path = self.kernel.root / 'firmware' / name
        self.images.append(path.read_bytes())
        self.set('state', self.fails or 'operating')

    def apply(self, path: pathlib.Path, name: str) -> None:
        content = (self.kernel.root / 'firmware' / name).read_bytes()
        found = properties(content)
        assert found['target-path'] == REGION.encode() + b'\0'
        self.flags.append('1' if 'partial-fpga-config' in found else '0')
        self.load(found['firmware-name'].rstrip(b'\0').decode())
        (path.parent / 'status').write_text('applied\n')


def properties(content: bytes) -> dict[str, bytes]:
    """The properties in a flattened device tree, whatever their node."""
    head = struct.unpack_from('>10I', content)
    assert (head[0], head[1], head[5]) == (0xD00DFEED, len(content), 17)
    strings = content[head[3] :]
    assert (head[3] + head[8], head[2] + head[9]) == (len(content), head[3])
    found, place, depth = {}, head[2], 0
    while True:
        (token,) = struct.unpack_from('>I', content, place)
        place += 4
        if token == 1:
            depth += 1
            place = content.index(b'\0', place) + 1
        elif token == 2:
            depth -= 1
        elif token == 3:
            length, name = struct.unpack_from('>2I', content, place)
            place += 8
            name = strings[name : strings.index(b'\0', name)].decode()
            found[name] = content[place : place + length]
            place += length
        else:
            assert token == 9 and depth == 0 and place == head[3]
            return found
        place += -place % 4
