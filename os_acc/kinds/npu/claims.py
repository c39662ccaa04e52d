# SPDX-License-Identifier: Apache-2.0

"""What an accelerator of the class accel claims: the whole function.

The host's driver stays bound to it, so what has other functions of its IOMMU
group by device files, too, is not excluded; what has one by VFIO is.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import facts
from os_acc.claims import functions
from os_acc.claims import nodes
from os_acc.claims import resource
from os_acc.kinds.npu import names as npu_names


def claims(
    row: facts.Row, name: str, known: facts.Facts
) -> Iterator[resource.Claim]:
    """Claim the function, what is behind its files, and their numbers."""
    address = npu_names.parse(name)
    instance = row.instance_uuid
    # Who only asks for it keeps it from VFIO, as who asks for a file does.
    mode = resource.SHARED if row.device is None else resource.EXCLUSIVE
    yield from functions.of_whole(known, address, mode, row.van_uuid)
    if row.device is None:
        return
    function = nodes.function(known, address)
    yield from resource.claims_of(function, resource.EXCLUSIVE, row.van_uuid)
    yield from functions.of_group(known, address, resource.SHARED, instance)
    yield from functions.of_chip(known, address, instance, whole=True)
    for each in row.numbers:
        yield resource.Claim(nodes.number(each), resource.EXCLUSIVE, name)
    behind = known.files(name, row.numbers).along(row.noted)
    for each in behind.places:
        yield resource.Claim(nodes.place(each), resource.EXCLUSIVE, name)
