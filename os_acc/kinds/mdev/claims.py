# SPDX-License-Identifier: Apache-2.0

"""What an MdevHandle claims."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes


def claims(
    row: facts.Row, uuid: str, known: facts.Facts
) -> Iterator[conflict.Claim]:
    """Claim the device on its parent."""
    device = nodes.mdev(known, uuid, row.device)
    yield from conflict.claims_of(device, conflict.EXCLUSIVE, row.van_uuid)
    if row.device is not None:
        yield from nodes.of_chip(
            known, row.device, row.instance_uuid, whole=False
        )
