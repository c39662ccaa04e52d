# SPDX-License-Identifier: Apache-2.0

"""Reads the compute partitions of AMD GPUs from amdgpu and KFD.

In the mode CPX, for example, a card is eight GPUs. The first one is the card's
own render node. Each other one is a render node of a platform device, such as
amdgpu_xcp_3. amdgpu makes these devices when it is loaded, as many as there
can be partitions, and keeps them in each mode: amdgpu_xcp_dev_alloc() in
drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c. Only KFD's topology says which of them
are partitions now, and of which card: kfd_topology_add_device() in
drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re

from os_acc.kernel import pci
from os_acc.kernel import sysfs

#: The mode of a card that is one GPU.
WHOLE = 'SPX'

# The mode is unknown, for example while the card is being reset.
_UNKNOWN = 'UNKNOWN'

#: All modes: amdgpu_gfx_compute_mode_desc() in amdgpu_gfx.h.
MODES = (WHOLE, 'DPX', 'TPX', 'QPX', 'CPX')

#: The file of a card that has its mode.
FILE = 'current_compute_partition'

_DEVICE = re.compile('amdgpu_xcp[._][0-9]+')
_DRM_MAJOR = 226  # Documentation/admin-guide/devices.txt


@dataclasses.dataclass(frozen=True)
class Partition:
    """A partition, or a device that can be one."""

    directory: str  # of its PCI function or platform device, in sysfs
    # the PCI address of its card; None: it is no partition now
    card: str | None = None
    name: str = ''  # its mode and number, such as 'cpx=3'; empty: as for card


@dataclasses.dataclass(frozen=True)
class _Node:
    """A GPU of KFD's topology."""

    slot: str  # the PCI address of its card, without the function
    number: int  # of the partition
    minor: int  # of its render node


def mode(card: str) -> str | None:
    """The mode of a card, such as CPX; None: it cannot have partitions."""
    try:
        return sysfs.read(f'{pci.directory(card)}/{FILE}')
    except PermissionError:  # amdgpu's answer during a reset
        return _UNKNOWN


def modes(card: str) -> list[str]:
    """The modes that a card can have now; empty: it has one only."""
    text = sysfs.read(f'{pci.directory(card)}/available_compute_partition')
    found = (text or '').replace(',', ' ').split()
    return [each for each in found if each in MODES]


def of_directory(directory: str) -> Partition | None:
    """The partition of a directory of sysfs, such as that of a render node.

    None: it is not of a card in partitions, nor of a device that can be one.
    """
    parts = directory.split('/')
    for number, each in enumerate(parts):
        if _DEVICE.fullmatch(each):
            return _of_device('/'.join(parts[: number + 1]))
    if 'drm' not in parts:
        return None
    above = parts[: parts.index('drm')]
    if not pci.is_address(above[-1]) or mode(above[-1]) in (None, WHOLE):
        return None
    return _made('/'.join(above), above[-1], 0)


def mode_in(name: str) -> str | None:
    """The mode in a text such as Partition.name; None: it is no such name."""
    first, _, number = name.partition('=')
    known = first.upper() in MODES and number.isdecimal()
    return first.upper() if known else None


def directories(card: str) -> list[str]:
    """The directories of the partitions of a card, without its own."""
    found = []
    for each in _nodes():
        if _card(each.slot) == card:
            link = f'{sysfs.SYS}/dev/char/{_DRM_MAJOR}:{each.minor}'
            there = of_directory(sysfs.place(link))
            if there and _DEVICE.fullmatch(os.path.basename(there.directory)):
                found.append(there.directory)
    return found


def _of_device(directory: str) -> Partition:
    names = sysfs.names(f'{directory}/drm')
    # A process may not see the GPUs that its device cgroup denies.
    with contextlib.suppress(PermissionError):
        for each in _nodes():
            if f'renderD{each.minor}' in names:
                return _made(directory, _card(each.slot), each.number)
    return Partition(directory)


def _made(directory: str, card: str | None, number: int) -> Partition:
    now = mode(card) if card is not None else None
    if card is None or now not in MODES:
        return Partition(directory)
    return Partition(directory, card, f'{now.lower()}={number}')


def _card(slot: str) -> str | None:
    """The PCI function of a slot whose driver shows a mode."""
    for number in range(8):
        address = f'{slot}.{number}'
        if os.path.exists(f'{pci.directory(address)}/{FILE}'):
            return address
    return None


def _nodes() -> tuple[_Node, ...]:
    topology = f'{sysfs.SYS}/class/kfd/kfd/topology'
    nodes = f'{topology}/nodes'
    # A GPU that comes changes the generation, one that goes the names.
    generation = sysfs.read(f'{topology}/generation_id')
    return _read(nodes, tuple(sysfs.names(nodes)), generation)


@functools.lru_cache(maxsize=1)
def _read(
    nodes: str, names: tuple[str, ...], generation: str | None
) -> tuple[_Node, ...]:
    """Read the GPUs of KFD's topology. It is read again when it changes."""
    found = []
    for name in names:
        text = sysfs.read(f'{nodes}/{name}/properties') or ''
        has = dict(line.split(maxsplit=1) for line in text.splitlines())
        minor = int(has.get('drm_render_minor', 0))
        if minor:  # a CPU has none
            found.append(_node(has, minor))
    return tuple(found)


def _node(has: dict[str, str], minor: int) -> _Node:
    """Read a GPU of the topology.

    location_id is the number of the PCI function: bus, device and function.
    The number of the partition is in its highest four bits, or, by other
    kernels, in the bits of the function, which is 0 for a card in partitions.
    """
    domain, place = int(has['domain']), int(has['location_id'])
    slot = f'{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}'
    return _Node(slot, place >> 28 or place & 7, minor)
