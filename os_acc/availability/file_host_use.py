# SPDX-License-Identifier: Apache-2.0

"""What the host itself uses a device file for."""

from __future__ import annotations

import os

from os_acc.availability import host_files
from os_acc.availability import host_use
from os_acc.availability.host_signs import mounts
from os_acc.kernel import block_files
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals

Reason = reasons.Reason

# Classes of character devices that give access to disks.
_OF_DISKS = frozenset({'scsi_generic', 'bsg', 'nvme', 'nvme-generic'})


def never(node: device_files.Node, place: file_place.Place) -> Reason | None:
    """Say whether a file is one that no instance may ever have."""
    what = host_files.what(node.number, place)
    if what is None:
        return None
    return file_refusals.FILE_NEVER.say(path=node.path, what=what)


def stores_data(node: device_files.Node, place: file_place.Place) -> bool:
    """Whether a device may keep what an instance has written to it."""
    if node.number.kind == 'b' or place.subsystem in _OF_DISKS:
        return True
    return any(
        function.base_class == pci.CLASS_STORAGE
        for function in map(pci.find, place.functions)
        if function is not None
    )


def used(
    node: device_files.Node,
    place: file_place.Place,
    snapshot: host_use.Snapshot,
    as_root: bool = False,
) -> Reason | None:
    """Say what the host uses the device behind a file for.

    :param as_root: this process is root: also find a block device that the
        host has opened exclusively
    """
    if node.number.kind == 'b':
        return _block(node, place, snapshot, as_root)
    if not stores_data(node, place):
        return None
    for address in place.functions:
        function = pci.find(address)
        if function is not None and (
            use := host_use.by_host(function, snapshot)
        ):
            return use
    if place.directory is not None and place.subsystem in _OF_DISKS:
        above = os.path.dirname(place.directory)
        if place.subsystem != 'nvme-generic':
            # The disk is beside .../0:0:0:0/scsi_generic/sg0, but beside
            # .../nvme-subsys0/ng0n1 itself.
            above = os.path.dirname(above)
        for name in snapshot.below(above):
            if (use := host_use.of_block(name, snapshot)) is not None:
                return use
    return None


def _block(
    node: device_files.Node,
    place: file_place.Place,
    snapshot: host_use.Snapshot,
    as_root: bool,
) -> Reason | None:
    """What the host uses a block device, or a partition of it, for."""
    number = f'{node.number.major}:{node.number.minor}'
    mounted = snapshot.once(mounts.read).of(
        number, block_files.name_of(node.path) or ''
    )
    if mounted is not None:
        return refusals.MOUNTED.say(name=node.path, place=mounted)
    if place.directory is None:
        return None
    # The same one may be here twice, by another adapter.
    directories = [place.directory, *snapshot.same_as(place.directory)]
    names = [
        name
        for each in directories
        for name, directory in snapshot.paths.items()
        # The whole disk, its partitions, and the disk of a partition.
        if directory == each
        or directory.startswith(f'{each}/')
        or directory == os.path.dirname(each)
    ]
    for name in names:
        if (use := host_use.of_block(name, snapshot)) is not None:
            return use
        file = sysfs.read(f'{snapshot.paths[name]}/loop/backing_file')
        if file:
            return file_refusals.FILE_LOOP.say(name=name, file=file)
    if as_root:
        for name in open_files.exclusively_used(
            map(os.path.basename, directories)
        ):
            return refusals.OPEN_EXCLUSIVELY.say(name=name)
    return None
