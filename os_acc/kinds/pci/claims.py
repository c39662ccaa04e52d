# SPDX-License-Identifier: Apache-2.0

"""What a PCIHandle claims: a PF, a VF, also one with a vGPU type."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import facts
from os_acc.claims import functions
from os_acc.claims import nodes
from os_acc.claims import resource


def claims(
    row: facts.Row, address: str, known: facts.Facts
) -> Iterator[resource.Claim]:
    """Claim the whole function, its IOMMU group and its place in an FPGA."""
    yield from functions.of_whole(
        known, address, resource.EXCLUSIVE, row.van_uuid
    )
    if row.device is None:
        return
    function = nodes.function(known, address, row.device)
    yield from resource.claims_of(function, resource.EXCLUSIVE, row.van_uuid)
    yield from functions.of_group(
        known, address, resource.EXCLUSIVE, row.instance_uuid
    )
    yield from functions.of_chip(
        known, address, row.instance_uuid, whole=True, pf=row.device
    )
    yield from _card(row, address, known)


def _card(
    row: facts.Row, address: str, known: facts.Facts
) -> Iterator[resource.Claim]:
    """Claim the card of a function, if another function manages the card.

    Cyborg reports the user function of a Xilinx card below the management
    function. One instance may have both.
    """
    there = known.function(address)
    if there is None or there.parent != address:
        return
    yield resource.Claim(
        nodes.card(address), resource.EXCLUSIVE, row.instance_uuid
    )
    if row.device is not None and row.device != address:
        yield resource.Claim(
            nodes.card(row.device), resource.PART, row.instance_uuid
        )
