# SPDX-License-Identifier: Apache-2.0

"""What a BlockHandle claims: a namespace of an NVMe-oF target."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import facts
from os_acc.claims import nodes
from os_acc.claims import resource


def claims(row: facts.Row, wwn: str) -> Iterator[resource.Claim]:
    """Claim the namespace."""
    namespace = nodes.namespace(wwn)
    yield resource.Claim(namespace, resource.EXCLUSIVE, row.van_uuid)
