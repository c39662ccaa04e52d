# SPDX-License-Identifier: Apache-2.0

"""Why device files cannot be given out because of another VAN."""

from __future__ import annotations

from os_acc.claims import conflict
from os_acc.claims import meeting
from os_acc.claims import vans
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.refusals import reasons

Relation = meeting.Relation


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why device files cannot be given out. See claims.words."""
    where, relation, said = met.where, met.relation, met.said
    if where.shares:
        return file_refusals.FILE_SHARES.reason(
            number=where.shares, most=where.wanted.most
        )
    if where.node.kind in ('handle', 'device file'):
        alone = where.wanted != conflict.EXCLUSIVE
        return met.taken('it alone' if alone else None)
    if relation <= Relation.IN and not _is_beside(met):
        return file_refusals.FILE_FUNCTION_TAKEN.reason(**said)
    if relation is Relation.NUMBER:
        return met.number()
    if relation is Relation.MEDIUM:
        if met.other.paths:
            said['what'] = met.other.paths[0]
        return file_refusals.FILE_PART.reason(**said)
    return met.common()


def _is_beside(met: meeting.Meeting) -> bool:
    """Whether the VAN has files of something else on the same device."""
    handle = met.other.handle
    return (
        met.relation is Relation.PART
        and vans.file_in(handle) is not None
        and vans.function_in(handle) is None
    )
