# SPDX-License-Identifier: Apache-2.0

"""What an MdevHandle claims."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import facts
from os_acc.claims import functions
from os_acc.claims import nodes
from os_acc.claims import resource


def claims(
    row: facts.Row, uuid: str, known: facts.Facts
) -> Iterator[resource.Claim]:
    """Claim the device on its parent."""
    device = nodes.mdev(known, uuid, row.device)
    yield from resource.claims_of(device, resource.EXCLUSIVE, row.van_uuid)
    if row.device is not None:
        yield from functions.of_chip(
            known, row.device, row.instance_uuid, whole=False
        )
