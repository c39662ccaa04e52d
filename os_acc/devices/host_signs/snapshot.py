# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The block devices and network interfaces of the host at one moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
import functools
from typing import Any
from typing import TypeVar

from os_acc.devices import sysfs
from os_acc.devices.host_signs import ways

T = TypeVar('T')


class Snapshot:
    """What the signs look at. Each file is read once, when it is needed.

    :ivar paths: the directory in sysfs of each block device that can be
        opened, by its name
    :ivar interfaces: the directory in sysfs of each network interface, by its
        name
    """

    def __init__(
        self, paths: dict[str, str], interfaces: dict[str, str]
    ) -> None:
        self.paths = paths
        self.interfaces = interfaces
        self._known: dict[Callable[[Snapshot], Any], Any] = {}

    @classmethod
    def read(cls) -> Snapshot:
        block, net = f'{sysfs.SYS}/class/block', f'{sysfs.SYS}/class/net'
        paths = {
            name: sysfs.place(f'{block}/{name}') for name in sysfs.names(block)
        }
        return cls(
            {name: path for name, path in paths.items() if _can_open(path)},
            {name: sysfs.place(f'{net}/{name}') for name in sysfs.names(net)},
        )

    def once(self, read: Callable[[Snapshot], T]) -> T:
        """What a function reads of the host; it is called only once.

        :raises OSError: what the function raises, at each call
        """
        if read not in self._known:
            try:
                self._known[read] = read(self)
            except OSError as err:
                self._known[read] = err
        found = self._known[read]
        if isinstance(found, OSError):
            raise found
        return found  # type: ignore[no-any-return]

    def below(self, path: str) -> list[str]:
        """The names of the block devices that need a device.

        :param path: the device's directory in sysfs
        """
        start = f'{sysfs.place(path)}/'
        return [
            name
            for name, found in self._ways.items()
            if any(way.startswith(start) for way in found)
        ]

    def blocks_of(self, address: str) -> list[str]:
        """The names of the block devices that need a PCI function."""
        return self._blocks.get(address, [])

    def interfaces_of(self, address: str) -> list[str]:
        """The names of the network interfaces of a PCI function."""
        return self._interfaces.get(address, [])

    @functools.cached_property
    def finder(self) -> ways.Ways:
        """Finds the ways from block devices, addresses and ports."""
        return ways.Ways(self.interfaces)

    @functools.cached_property
    def _ways(self) -> dict[str, list[str]]:
        return {
            name: self.finder.of_block(path)
            for name, path in self.paths.items()
        }

    @functools.cached_property
    def _blocks(self) -> dict[str, list[str]]:
        return _by_function(self._ways)

    @functools.cached_property
    def _interfaces(self) -> dict[str, list[str]]:
        return _by_function(
            {name: [path] for name, path in self.interfaces.items()}
        )


def _can_open(path: str) -> bool:
    """Whether a block device has a file in /dev.

    A path to a namespace with several paths is hidden and has no number:
    GENHD_FL_HIDDEN, device_add_disk() in block/genhd.c since Linux 4.15.
    """
    return (
        sysfs.read(f'{path}/dev') is not None
        and sysfs.read(f'{path}/hidden') != '1'
    )


def _by_function(found: dict[str, list[str]]) -> dict[str, list[str]]:
    by_address = defaultdict(list)
    for name, paths in found.items():
        for address in {
            each for path in paths for each in ways.functions_in(path)
        }:
            by_address[address].append(name)
    return by_address
