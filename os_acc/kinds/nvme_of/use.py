# SPDX-License-Identifier: Apache-2.0

"""What this host has, or does, with a namespace of an NVMe-oF target.

The privileged half asks once a namespace is connected.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.kernel import device_files
from os_acc.kernel import nvme_of
from os_acc.kernel import open_files
from os_acc.kernel import sysfs
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.kinds.nvme_of import refusals as nvme_of_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals

Category = availability.Category
Obstacle = availability.Obstacle
Reason = reasons.Reason


def label(wwn: str) -> str:
    """A namespace, for messages."""
    return f'namespace {wwn}'


def on_host(
    wwn: str,
    target: spec_nvme_of.Target | None,
    snapshot: host_use.Snapshot | None = None,
) -> Iterator[Obstacle]:
    """Say what this host has, or does, with a namespace.

    :param target: where it is to come from; None if that is unknown
    """
    for reason in _on_host(wwn, target, snapshot):
        yield Obstacle.of(label(wwn), reason)


def _on_host(
    wwn: str,
    target: spec_nvme_of.Target | None,
    snapshot: host_use.Snapshot | None,
) -> Iterator[Reason]:
    found = nvme_of.blocks(wwn)
    for block in found:
        for each in block.controllers():
            if each.is_local:
                yield nvme_of_refusals.LOCAL.reason(
                    name=block.name,
                    controller=each.name,
                    transport=each.transport or 'unknown transport',
                )
            elif target is not None and each.nqn != target.nqn:
                yield nvme_of_refusals.OTHER_TARGET.reason(
                    name=block.name, nqn=each.nqn
                )
    if len(found) > 1:
        names = ', '.join(block.name for block in found)
        yield nvme_of_refusals.TWICE.reason(names=names)
    for block in found:
        snapshot = snapshot or host_use.Snapshot.read()
        for name in parts(block, snapshot):
            if (use := host_use.of_block(name, snapshot)) is not None:
                yield use


def parts(block: nvme_of.Block, snapshot: host_use.Snapshot) -> list[str]:
    """The names of a block device and of its partitions."""
    names = [block.name, *snapshot.below(block.path)]
    # Both may have vanished meanwhile.
    return [name for name in names if name in snapshot.paths]


def users(wwn: str, reachable: bool = True) -> list[str]:
    """Find who has a namespace open, as only root can see.

    :returns: a clause for each process, and for each block device that
        somebody has opened exclusively
    """
    snapshot = host_use.Snapshot.read()
    names = [
        name
        for block in nvme_of.blocks(wwn)
        for name in parts(block, snapshot)
    ]
    return users_of(names, snapshot, reachable)


def users_of(
    names: list[str], snapshot: host_use.Snapshot, reachable: bool = True
) -> list[str]:
    """Find who has block devices open. See users().

    :param reachable: whether their target can be reached. If not, only who
        has opened one for writing counts, as a guest does. udev reads what a
        guest has closed. Without the target, this lasts until the kernel
        fails it after fast_io_fail_timeout, or until the connection ends.
        Meanwhile another open may wait, so none is tried
    """
    files = [
        device_files.read(f'{sysfs.DEV}/{name}', snapshot.paths[name], 'b')
        for name in names
    ]
    there = [file for file in files if file is not None]
    if not reachable:
        return open_files.users_of(there, writers=True)
    return [
        *open_files.users_of(there),
        *(
            refusals.OPEN_EXCLUSIVELY.reason(name=name).text
            for name in open_files.exclusively_used(names)
        ),
    ]
