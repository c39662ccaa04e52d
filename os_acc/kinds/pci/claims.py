# SPDX-License-Identifier: Apache-2.0

"""What a PCIHandle claims: a PF, a VF, also one with a vGPU type."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes


def claims(
    row: facts.Row, address: str, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Claim the whole function, its IOMMU group and its place in an FPGA."""
    yield from nodes.of_whole(known, address, conflict.EXCLUSIVE, row.van_uuid)
    if row.device is None:
        return
    function = nodes.function(known, address, row.device)
    yield from conflict.claims_of(function, conflict.EXCLUSIVE, row.van_uuid)
    yield from nodes.of_group(
        known, address, conflict.EXCLUSIVE, row.instance_uuid
    )
    yield from nodes.of_chip(
        known, address, row.instance_uuid, whole=True, pf=row.device
    )
    yield from _card(address, row.device, row.instance_uuid, known)


def _card(
    address: str, device: str, instance: str, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Claim the card of a function, if another function manages the card.

    Cyborg reports the user function of a Xilinx card below the management
    function. One instance may have both.

    :param device: the management function, if it has one
    """
    there = known.function(address)
    if there is None or there.parent != address:
        return
    yield conflict.Claim(nodes.card(address), conflict.EXCLUSIVE, instance)
    if device != address:
        yield conflict.Claim(nodes.card(device), conflict.PART, instance)
