# SPDX-License-Identifier: Apache-2.0

"""A card with an FPGA manager in the generated kernel of os_acc.testing."""

from __future__ import annotations

import pathlib

from os_acc.testing import kernel as kernel_module

CARD = '0000:3b:00.0'


class Card:
    """A card with an FPGA manager, which shows its state."""

    def __init__(
        self,
        kernel: kernel_module.Kernel,
        address: str = CARD,
        name: str = 'fpga0',
    ) -> None:
        self.kernel = kernel
        kernel.add_function(address, '10ee:9038', 0x120000)
        self.directory = self.manager(address, name)
        for file, text in (
            ('name', 'Fake FPGA Manager'),
            ('state', 'power off'),
            ('status', ''),
        ):
            self.set(file, text)

    def manager(self, address: str, name: str) -> pathlib.Path:
        """Add a manager, without files, below a PCI function."""
        directory = (self.kernel.pci / 'devices' / address).resolve()
        directory = directory / 'fpga_manager' / name
        directory.mkdir(parents=True)
        top = self.kernel.sys / 'class/fpga_manager'
        top.mkdir(exist_ok=True)
        (top / name).symlink_to(directory)
        return directory

    def set(self, file: str, text: str) -> None:
        (self.directory / file).write_text(f'{text}\n')
