# SPDX-License-Identifier: Apache-2.0

"""The block devices and network interfaces of the host at one moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
import functools
import os
from typing import Any
from typing import TypeVar

from os_acc.availability.host_signs import ways
from os_acc.kernel import sysfs

T = TypeVar('T')


class Snapshot:
    """What the signs look at. Each file is read once, when it is needed.

    All devices are by their names, and a path is a directory in sysfs.

    :ivar paths: of each block device that can be opened
    :ivar interfaces: the path of each network interface
    :ivar errors: why the ways of a block device cannot be found. Each PCI
        function that it may need then counts as used
    """

    def __init__(
        self, paths: dict[str, str], interfaces: dict[str, str]
    ) -> None:
        self.paths = paths
        self.interfaces = interfaces
        self.errors: dict[str, OSError] = {}
        self._known: dict[Callable[[Snapshot], Any], Any] = {}

    @classmethod
    def read(cls) -> Snapshot:
        """Find the block devices and interfaces."""
        block, net = f'{sysfs.SYS}/class/block', f'{sysfs.SYS}/class/net'
        found = cls(
            {}, {name: _place(f'{net}/{name}') for name in sysfs.names(net)}
        )
        for name in sysfs.names(block):
            path = f'{block}/{name}'
            try:
                path = sysfs.place(path)
                if _can_open(path):
                    found.paths[name] = path
            except OSError as err:
                found.paths[name] = path
                found.errors[name] = err
        return found

    def once(self, read: Callable[[Snapshot], T]) -> T:
        """What a function returns or raises (OSError); it is called once."""
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
        """The names of the block devices that need a device."""
        start = f'{sysfs.place(path)}/'
        return [
            name
            for name, found in self._ways.items()
            if any(way.startswith(start) for way in found)
        ]

    def same_as(self, path: str) -> list[str]:
        """The other paths of the same disk or partition."""
        found = []
        for name in self._twins(path):
            twin = self.paths[name]
            if path not in self._keys:
                disk = os.path.basename(os.path.dirname(path))
                number = os.path.basename(path).removeprefix(disk)
                twin = f'{twin}/{name}{number}'
            found.append(twin)
        return found

    def directories(self, path: str) -> list[str]:
        """The paths of a device and of the NVMe subsystems on it.

        A namespace of several paths has its character device, such as ng0n1,
        in its subsystem: nvme_cdev_add() in drivers/nvme/host/multipath.c.
        """
        found = (
            self.finder.subsystem_of(self.paths[name])
            for name in self.below(path)
        )
        return [path, *sorted({each for each in found if each})]

    def blocks_of(self, address: str) -> list[str]:
        """The names of the block devices that need a PCI function."""
        return self._blocks.get(address, [])

    def errors_of(self, address: str) -> list[OSError]:
        """Why it is unknown what needs a PCI function; usually empty."""
        blocks = self.blocks_of(address)
        return [self.errors[name] for name in blocks if name in self.errors]

    def interfaces_of(self, address: str) -> list[str]:
        """The names of the network interfaces of a PCI function."""
        return self._interfaces.get(address, [])

    @functools.cached_property
    def finder(self) -> ways.Ways:
        """Finds the ways from block devices, addresses and ports."""
        return ways.Ways(self.interfaces)

    @functools.cached_property
    def _ways(self) -> dict[str, list[str]]:
        found = {}
        for name, path in self.paths.items():
            try:
                ways_of = self.finder.of_block(path)
            except OSError as err:
                self.errors.setdefault(name, err)
                ways_of = [path]
            if name in self.errors and not any(
                map(ways.functions_in, ways_of)
            ):
                ways_of = [path, *self.finder.every()]
            found[name] = ways_of
        # The same disk by another adapter counts for both.
        return {
            name: found[name]
            + [way for other in self._twins(path) for way in found[other]]
            for name, path in self.paths.items()
        }

    def _twins(self, path: str) -> list[str]:
        """The names of other block devices that show the same disk."""
        key = self._keys.get(path) or self._keys.get(os.path.dirname(path))
        found = self._disks.get(key, []) if key else []
        return [
            name
            for name in found
            if self.paths[name] not in (path, os.path.dirname(path))
        ]

    @functools.cached_property
    def _keys(self) -> dict[str, str]:
        """What ways.identity() says of each disk, by its directory."""
        found = {}
        for name, path in self.paths.items():
            try:
                key = ways.identity(path)
            except OSError as err:
                self.errors.setdefault(name, err)
                continue
            if key is not None:
                found[path] = key
        return found

    @functools.cached_property
    def _disks(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for name, path in self.paths.items():
            if path in self._keys:
                found[self._keys[path]].append(name)
        return found

    @functools.cached_property
    def _blocks(self) -> dict[str, list[str]]:
        return _by_function(self._ways)

    @functools.cached_property
    def _interfaces(self) -> dict[str, list[str]]:
        return _by_function(
            {name: [path] for name, path in self.interfaces.items()}
        )


def _place(path: str) -> str:
    """The directory of an interface; the link to it, if that is unreadable.

    Its card then has no interface that is known, and counts as used.
    """
    try:
        return sysfs.place(path)
    except OSError:
        return path


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
