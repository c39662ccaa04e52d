# SPDX-License-Identifier: Apache-2.0

"""What a DRCHandle claims: an I/O slot of Power."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes


def claims(
    row: facts.Row, index: str, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Claim the slot, and its bus, which one instance may have to get.

    Slots that may move alone each have a part of the bus.
    """
    yield conflict.Claim(nodes.slot(index), conflict.EXCLUSIVE, row.van_uuid)
    slot = known.slot(index)
    if row.device is not None and slot is not None and slot.bus is not None:
        mode = conflict.EXCLUSIVE if slot.grouped else conflict.PART
        bus = nodes.bus_group(slot.bus)
        yield conflict.Claim(bus, mode, row.instance_uuid)
