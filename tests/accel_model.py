# SPDX-License-Identifier: Apache-2.0

"""The class accel of the generated kernel: see kernel.Kernel.

A driver that is bound to a function makes a device file below /dev/accel, and
removes it when it is unbound. Each time, the file has another number: the
worst that drivers/accel/drm_accel.c allows.
"""

from __future__ import annotations

import pathlib
from typing import Any

import device_nodes

from os_acc.testing import kernel as kernel_module

MAJOR = 261


class Accel:
    """The accelerators of a host.

    :param kernel: the kernel
    :param nodes: its device files
    :ivar broken: the addresses of functions whose driver makes no file
    :ivar next_numbers: the numbers of the files of functions, by the address,
        when they are shown again
    """

    def __init__(
        self, kernel: kernel_module.Kernel, nodes: device_nodes.Nodes
    ) -> None:
        self.kernel, self.nodes = kernel, nodes
        self.broken: set[str] = set()
        self.next_numbers: dict[str, int] = {}
        self._drivers: dict[str, str] = {}
        self._shown: dict[str, int] = {}
        self._minors = 0
        for name in ('bind', 'unbind', 'drivers_probe'):
            kernel.handlers[name] = self._bind

    def add(
        self,
        address: str,
        driver: str = 'intel_vpu',
        ids: str = '8086:7d1d',
        **made: Any,
    ) -> None:
        """Put a function into the tree that has an accelerator."""
        self.kernel.add_function(address, ids, 0x120000, driver, **made)
        self._drivers[address] = driver
        self.sync()

    def add_platform(self, device: str) -> str:
        """Put an accelerator into the tree that is no PCI function.

        :returns: the path of its device file
        """
        return self._make(f'platform/{device}', self._minor())

    def sync(self) -> None:
        """Show the accelerators whose drivers are bound, and only them."""
        for address, driver in self._drivers.items():
            there = (self.kernel.pci / 'devices' / address).exists()
            bound = there and self.kernel.driver_of(address) == driver
            if bound and address in self.broken:
                bound = False
            if bound and address not in self._shown:
                number = self.next_numbers.pop(address, None)
                self._shown[address] = (
                    self._minor() if number is None else number
                )
                directory = f'{self.kernel.bus}/{address}'
                self._make(directory, self._shown[address])
            elif not bound:
                self.hide(address)

    def hide(self, address: str) -> None:
        """The driver lets go of a function."""
        number = self._shown.pop(address, None)
        if number is None:
            return
        directory = self.kernel.sys / 'devices' / self.kernel.bus / address
        self.nodes.remove(f'accel/accel{number}')
        (directory / 'accel').rmdir()
        (self.kernel.sys / f'class/accel/accel{number}').unlink()

    def leave(self, address: str) -> None:
        """A function leaves the bus."""
        self.hide(address)
        self.kernel.take_off(address)

    def come_back(self) -> None:
        """The functions that have left the bus come back."""
        self.kernel.come_back()
        self.sync()

    def reboot(self) -> None:
        """Boot the host."""
        for address in list(self._shown):
            self.hide(address)
        self._minors += 16
        self.kernel.reboot()
        self.sync()

    def path(self, address: str) -> str:
        return f'/dev/accel/accel{self._shown[address]}'

    def number(self, address: str) -> str:
        """Type and number of the file of a function, such as 'c 261:0'."""
        return f'c {MAJOR}:{self._shown[address]}'

    def of(self, address: str) -> tuple[int, int, int]:
        """User, group and mode of the file of a function."""
        return self.nodes.of(self.path(address).removeprefix('/dev/'))

    def set(self, address: str, *values: int) -> None:
        """Somebody else changes user, group and mode of the file."""
        self.nodes.set(self.path(address).removeprefix('/dev/'), *values)

    def hold(self, address: str, name: str = 'python3') -> int:
        """A process opens the file of a function."""
        return self.kernel.hold(self.path(address), name, self.number(address))

    def snapshot(self) -> dict[str, Any]:
        """Driver, owner and mode of each, without the numbers of the files."""
        return {
            address: (self.kernel.driver_of(address), self.of(address))
            for address in self._shown
        }

    def _minor(self) -> int:
        self._minors += 1
        return self._minors - 1

    def _make(self, device: str, number: int) -> str:
        name = f'accel{number}'
        there = f'{device}/accel/{name}'
        self.nodes.add(f'accel/{name}', f'c {MAJOR}:{number}', there, 'accel')
        directory = self.kernel.sys / 'devices' / there
        (directory / 'uevent').write_text(f'DEVNAME=accel/{name}\n')
        (directory / 'device').symlink_to(directory.parent.parent)
        above = self.kernel.sys / 'class/accel'
        above.mkdir(exist_ok=True)
        (above / name).symlink_to(directory)
        return f'/dev/accel/{name}'

    def _bind(self, path: pathlib.Path, text: str) -> None:
        try:
            self.kernel.built_in(path, text)
        finally:
            self.sync()
