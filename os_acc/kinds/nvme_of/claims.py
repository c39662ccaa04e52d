# SPDX-License-Identifier: Apache-2.0

"""What a BlockHandle claims: a namespace of an NVMe-oF target."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes


def claims(row: facts.Row, wwn: str) -> Iterator[conflict.Claim]:
    """Claim the namespace."""
    namespace = nodes.namespace(wwn)
    yield conflict.Claim(namespace, conflict.EXCLUSIVE, row.van_uuid)
