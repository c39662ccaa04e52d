# SPDX-License-Identifier: Apache-2.0

"""What a BlockHandle claims: a namespace of an NVMe-oF target."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.claims import facts
from os_acc.claims import identities
from os_acc.claims import meeting
from os_acc.claims import nodes
from os_acc.claims import resource
from os_acc.refusals import reasons


def claims(row: facts.Row, wwn: str) -> Iterator[resource.Claim]:
    """Claim the namespace."""
    namespace = nodes.namespace(wwn)
    yield resource.Claim(namespace, resource.EXCLUSIVE, row.van_uuid)


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why a namespace cannot be given out. See of_handle.why()."""
    is_file = identities.file_in(met.other.handle) is not None
    return met.taken(None if is_file else 'it')
