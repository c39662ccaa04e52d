# SPDX-License-Identifier: Apache-2.0

"""Finds the containers that have the device of a CDI spec, as root."""

from __future__ import annotations

import dataclasses
from typing import Any

from os_acc.containers import spec as container_spec
from os_acc.containers import use as container_use
from os_acc.kernel import device_files
from os_acc.privileged import device_users
from os_acc.privileged import undo_log


def wait(van: str, known: undo_log.ContainerSpec, seconds: float) -> None:
    """Wait until no container has a device of a spec."""
    device_users.until_closed(
        f'VAN {van}',
        lambda: find(van, known),
        seconds,
        lambda users: f'{users[0]}; stop the container first',
    )


def find(van: str, known: undo_log.ContainerSpec) -> list[str]:
    """The processes in containers that have the device of a spec.

    A device file that another VAN may have too does not tell which of the two
    has it, so it does not count: see may_share(). If another VAN has the
    number although it must not, both wait for the container.
    """
    shared = set()
    for each in undo_log.container_specs.names():
        other = undo_log.container_specs.read(each) if each != van else None
        if other is not None and may_share(known, other):
            shared |= numbers(other)
    nodes = [
        container_spec.Node(path, device_files.Number(*number))
        for path, *number in known.nodes
        if tuple(number) not in shared
    ]
    noted = undo_log.container_specs.read(van)
    users = container_use.users_of(nodes, noted.containers if noted else ())
    if nodes and noted is not None and noted.nodes == known.nodes:
        _note_containers(van, noted, {each.container for each in users})
    return [each.reason for each in users]


def numbers(known: undo_log.ContainerSpec) -> set[tuple[Any, ...]]:
    """Type, major and minor number of each device file of a spec."""
    return {tuple(node[1:]) for node in known.nodes}


def may_share(
    one: undo_log.ContainerSpec, other: undo_log.ContainerSpec
) -> bool:
    """Whether two VANs may have a device file with one number.

    They may if they are of one instance, as with two functions of one IOMMU
    group, or if both have a share of one accelerator.
    """
    return one.instance == other.instance or (
        _shared(one) != '' and _shared(one) == _shared(other)
    )


def _shared(known: undo_log.ContainerSpec) -> str:
    """The accelerator that a VAN has a share of; empty if there is none."""
    kind, _, rest = known.handle.partition('/')
    name, _, share = rest.partition('/')
    return name if kind == 'file' and share else ''


def _note_containers(
    van: str, noted: undo_log.ContainerSpec, found: set[str]
) -> None:
    """Note the containers that have a VAN's device now.

    They replace those noted before: each of these that has not ended is found
    again. A VAN may be released meanwhile.
    """
    containers = sorted(found - {''})
    if noted.containers != containers and (
        noted == undo_log.container_specs.read(van)
    ):
        undo_log.container_specs.write(
            van, dataclasses.replace(noted, containers=containers)
        )
