# SPDX-License-Identifier: Apache-2.0

"""Which mediated devices the parents of this host can make: see mdev."""

from __future__ import annotations

import dataclasses
import errno
import re

from os_acc.kernel import mdev
from os_acc.kernel import sysfs

_MAXIMUM = re.compile(r'\bmax_instance=(\d+)')

# What a driver may answer if it cannot make devices of a type now.
_NOT_NOW = (*mdev.EXHAUSTED, errno.EINVAL, errno.EBUSY, errno.EAGAIN)


@dataclasses.dataclass(frozen=True)
class Type:
    """An mdev type of a parent."""

    parent: str
    name: str
    label: str
    device_api: str
    # how many more can be made; only a hint, because the types of a parent
    # share its capacity
    available: int
    # how many a card can have, if the vendor's driver says so. It matters for
    # a parent that is a VF: each VF of the card shows that one more can be
    # made, until the card is full
    maximum: int | None = None


def parents() -> list[str]:
    """The devices of this host that can make mediated devices."""
    return sysfs.names(f'{sysfs.SYS}/class/mdev_bus')


def types(parent: str) -> list[Type]:
    """The mdev types of a parent; empty if the device is no parent."""
    names = sysfs.names(mdev.types_directory(parent))
    return [_type(parent, name) for name in names]


def type_of(parent: str, kind: str) -> Type:
    """Find a type. Raises as mdev.check_type()."""
    mdev.check_type(parent, kind)
    return _type(parent, kind)


def _type(parent: str, name: str) -> Type:
    path = f'{mdev.types_directory(parent)}/{name}'
    try:
        available = sysfs.read_int(f'{path}/available_instances') or 0
    except OSError as err:
        if err.errno not in _NOT_NOW:
            raise
        available = 0
    # NVIDIA's driver: 'num_heads=4, framebuffer=2048M, max_instance=24'.
    match = _MAXIMUM.search(sysfs.read(f'{path}/description') or '')
    return Type(
        parent=parent,
        name=name,
        label=sysfs.read(f'{path}/name') or name,
        device_api=sysfs.read(f'{path}/device_api') or '',
        available=available,
        maximum=int(match[1]) if match else None,
    )
