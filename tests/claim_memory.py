# SPDX-License-Identifier: Apache-2.0

"""Remembers what is read of a generated host that does not change."""

from __future__ import annotations

import functools
from typing import Any

from os_acc.availability import host_use
from os_acc.kernel import chip
from os_acc.kernel import file_place
from os_acc.kernel import idxd
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kernel import sysfs

_READS: tuple[tuple[Any, str], ...] = (
    (sysfs, 'read'),
    (sysfs, 'link'),
    (sysfs, 'target'),
    (sysfs, 'place'),
    (sysfs, 'names'),
    (sysfs, 'folders'),
    (pci, 'find'),
    (pci, 'driver_of'),
    (pci, 'group_members'),
    (chip, 'parents'),
    (file_place, 'of'),
    (idxd, 'find'),
    (idxd, 'queue_at'),
    (host_use, 'by_host'),
    (mdev, 'devices'),
    (pci.Function, 'behind'),
    (pci.Function, 'above'),
)


def remember(patch: Any) -> None:
    """Let each reading function give the same answer again.

    :param patch: pytest's monkeypatch
    """
    for owner, name in _READS:
        found = vars(owner)[name]
        if isinstance(found, property):
            patch.setattr(owner, name, property(_once(found.fget)))
        else:
            patch.setattr(owner, name, _once(found))


def _once(call: Any) -> Any:
    known: dict[Any, Any] = {}

    @functools.wraps(call)
    def ask(*args: Any, **kwargs: Any) -> Any:
        # A function of the PCI bus cannot be hashed, its address can.
        key = tuple(getattr(each, 'address', each) for each in args[:1])
        if key not in known:
            known[key] = call(*args, **kwargs)
        return known[key]

    return ask
