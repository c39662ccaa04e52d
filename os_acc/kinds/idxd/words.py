# SPDX-License-Identifier: Apache-2.0

"""Why a work queue cannot be given out because of another VAN."""

from __future__ import annotations

from os_acc.claims import meeting
from os_acc.claims import vans
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.idxd import refusals as idxd_refusals
from os_acc.refusals import reasons

Relation = meeting.Relation


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why a work queue cannot be given out. See claims.words."""
    other = met.other
    if met.relation is Relation.IN:
        return met.taken('it')
    if met.relation is Relation.NUMBER:
        return met.number()
    queue = idxd_names.of_file(vans.file_in(other.handle) or '')
    if queue is not None:
        return idxd_refusals.FILE_GIVEN.reason(
            who=f'instance {met.said["instance"]} (VAN {other.van_uuid})',
            number=queue[1],
        )
    return met.common()
