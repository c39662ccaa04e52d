# SPDX-License-Identifier: Apache-2.0

"""What a VAN claims, by its attach handle.

Only this module knows what handles there are. A handle of the drivers pci,
fpga and nvidia_vgpu is a PCI function; those of cyborg are of these kinds,
too. A TestHandle of the driver fake claims only the handle itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc import kinds
from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes
from os_acc.kernel import pci as functions
from os_acc.kinds.devfile import claims as devfile
from os_acc.kinds.drc import claims as drc
from os_acc.kinds.mdev import claims as mdev
from os_acc.kinds.nvme_of import claims as nvme_of
from os_acc.kinds.pci import claims as pci

#: The prefixes of the identities of handles that stand for devices. VANs with
#: such handles may exclude each other.
_OF_DEVICES = ('pci/', 'mdev/', 'file/', 'block/', 'drc/')


def is_of_device(handle: str) -> bool:
    """Whether a VAN with a handle may exclude one with another handle."""
    return handle.startswith(_OF_DEVICES)


def holding(row: facts.Row, known: facts.Facts) -> conflict.Holding:
    """What a VAN claims.

    If claims meet on one node, the strictest counts.
    """
    found: dict[conflict.Resource, conflict.Claim] = {}
    for each in _claims(row, known):
        other = found.get(each.node)
        if other is None or _rank(each) > _rank(other):
            found[each.node] = each
    return conflict.Holding(row.van_uuid, tuple(found.values()))


def _rank(claim: conflict.Claim) -> int:
    if claim.mode == conflict.EXCLUSIVE:
        return 2
    return int(claim.mode != conflict.PART)


def _claims(row: facts.Row, known: facts.Facts) -> Iterator[conflict.Claim]:
    kind, _, rest = row.handle.partition('/')
    name, _, share = rest.partition('/')
    yield conflict.Claim(
        nodes.handle(row.handle), conflict.EXCLUSIVE, row.van_uuid
    )
    if kind == 'pci' and functions.is_address(rest):
        yield from pci.claims(row, rest, known)
    elif kind == 'mdev':
        yield from mdev.claims(row, rest, known)
    elif kind == 'file' and (own := kind_of(name)) is not None:
        yield from kinds.module(own, 'claims').claims(row, name, known)
    elif kind == 'file':
        yield from devfile.claims(row, name, share or None, known)
    elif kind == 'block':
        yield from nvme_of.claims(row, rest)
    elif kind == 'drc':
        yield from drc.claims(row, rest, known)


def kind_of(name: str) -> str | None:
    """The kind that gives out a DeviceFileHandle of this name.

    A kind whose handles are device files of its own has a module ``names``,
    whose ``split()`` knows the names that it makes. All other names are
    devfile's: None.
    """
    for kind, names in kinds.having('names').items():
        if names.split(name) is not None:
            return kind
    return None
