# SPDX-License-Identifier: Apache-2.0

"""What a DRCHandle claims: an I/O slot of Power."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import facts
from os_acc.claims import nodes
from os_acc.claims import resource


def claims(
    row: facts.Row, index: str, known: facts.Facts
) -> Iterator[resource.Claim]:
    """Claim the slot, and its bus, which one instance may have to get.

    Slots that may move alone have a part of the bus each.
    """
    yield resource.Claim(nodes.slot(index), resource.EXCLUSIVE, row.van_uuid)
    slot = known.slot(index)
    if row.device is not None and slot is not None and slot.bus is not None:
        mode = resource.EXCLUSIVE if slot.grouped else resource.PART
        bus = nodes.bus_group(slot.bus)
        yield resource.Claim(bus, mode, row.instance_uuid)
