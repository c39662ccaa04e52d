# SPDX-License-Identifier: Apache-2.0

"""Why an NPU cannot be given out because of another VAN."""

from __future__ import annotations

from os_acc.claims import meeting
from os_acc.refusals import reasons

Relation = meeting.Relation


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why an accelerator cannot be given out. See claims.words."""
    if met.relation is Relation.NUMBER:
        return met.number()
    return met.taken('it') if met.relation is Relation.SAME else met.common()
