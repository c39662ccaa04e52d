# SPDX-License-Identifier: Apache-2.0

"""What an accelerator of the class accel claims: the whole function.

The host's driver stays bound to it. So a VAN that has other functions of its
IOMMU group as device files, too, is not excluded; a VAN that has one through
VFIO is.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes
from os_acc.kinds.npu import names as npu_names


def claims(
    row: facts.Row, name: str, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Claim the function, what is behind its files, and their numbers."""
    address = npu_names.parse(name)
    instance = row.instance_uuid
    # A VAN that only asks for it excludes VFIO, as one that asks for a file
    # does.
    mode = conflict.SHARED if row.device is None else conflict.EXCLUSIVE
    yield from nodes.of_whole(known, address, mode, row.van_uuid)
    if row.device is None:
        return
    function = nodes.function(known, address)
    yield from conflict.claims_of(function, conflict.EXCLUSIVE, row.van_uuid)
    yield from nodes.of_group(known, address, conflict.SHARED, instance)
    yield from nodes.of_chip(known, address, instance, whole=True)
    for each in row.numbers:
        yield conflict.Claim(nodes.number(each), conflict.EXCLUSIVE, name)
    behind = known.files(name, row.numbers).union(row.noted)
    for each in behind.places:
        yield conflict.Claim(nodes.place(each), conflict.EXCLUSIVE, name)
