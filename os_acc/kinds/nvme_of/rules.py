# SPDX-License-Identifier: Apache-2.0

"""May a namespace of an NVMe-oF target be taken now, and if not, why?

Discovery, selection, admission, the privileged half and os-acc doctor all ask
obstacles(). A namespace that is not connected can be taken as far as this host
knows; once it is connected, the privileged half asks again.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.claims import vans
from os_acc.kernel import device_file
from os_acc.kernel import nvme_of
from os_acc.kernel import open_files
from os_acc.kernel import sysfs
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.kinds.nvme_of import refusals as nvme_of_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import device_spec

Kind = availability.Kind
Obstacle = availability.Obstacle
Reason = reasons.Reason


def obstacles(
    wwn: str,
    spec: device_spec.Spec | None,
    holders: vans.Vans | None = None,
    snapshot: host_use.Snapshot | None = None,
) -> Iterator[Obstacle]:
    """Say why a namespace cannot be taken.

    :param wwn: its world wide name
    :param spec: the entry of device_spec for it; None if there is none
    :param holders: what the journal knows, and who wants the namespace
    :param snapshot: pass one when asking about many namespaces
    :returns: all obstacles, the most important one first
    """
    if holders is None:
        holders = vans.Vans()
    holder = holders.of_handle(f'block/{wwn}')
    # A VAN that has had it since before keeps it, whatever device_spec says.
    has = (
        holder is not None
        and holder.van_uuid == holders.taker.van_uuid
        and holder.device is not None
    )
    for reason in _reasons(wwn, spec, holders, has):
        yield Obstacle.of(label(wwn), reason)
    target = None if spec is None else spec.nvme_of
    yield from on_host(wwn, target, snapshot)


def label(wwn: str) -> str:
    """A namespace, for messages."""
    return f'namespace {wwn}'


def _reasons(
    wwn: str,
    spec: device_spec.Spec | None,
    holders: vans.Vans,
    has: bool,
) -> Iterator[Reason]:
    if spec is None and not has:
        yield nvme_of_refusals.NOT_NAMED.say()
    for each in holders.in_the_way(f'block/{wwn}', wwn):
        yield each.reason
    if not has and (why := holders.unhealthy.of_device(wwn)) is not None:
        yield why


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
                yield nvme_of_refusals.LOCAL.say(
                    name=block.name,
                    controller=each.name,
                    transport=each.transport or 'unknown transport',
                )
            elif target is not None and each.nqn != target.nqn:
                yield nvme_of_refusals.OTHER_TARGET.say(
                    name=block.name, nqn=each.nqn
                )
    if len(found) > 1:
        names = ', '.join(block.name for block in found)
        yield nvme_of_refusals.TWICE.say(names=names)
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

    :param reachable: see users_of()
    :returns: a clause for each process, and for each block device that
        somebody has opened exclusively
    :raises PrivilegeError: see open_files
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
        device_file.read(f'{sysfs.DEV}/{name}', snapshot.paths[name], 'b')
        for name in names
    ]
    there = [file for file in files if file is not None]
    if not reachable:
        return open_files.users_of(there, writers=True)
    return [
        *open_files.users_of(there),
        *(
            refusals.OPEN_EXCLUSIVELY.say(name=name).text
            for name in open_files.exclusively_used(names)
        ),
    ]
