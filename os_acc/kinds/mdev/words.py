# SPDX-License-Identifier: Apache-2.0

"""Why a mediated device cannot be given out because of another VAN."""

from __future__ import annotations

from os_acc.claims import meeting
from os_acc.refusals import reasons

Relation = meeting.Relation


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why a device cannot be given out. See claims.words."""
    if met.relation is Relation.SAME:
        return met.taken()
    return met.taken('it') if met.relation is Relation.IN else met.common()
