# SPDX-License-Identifier: Apache-2.0

"""Why a PCI function cannot be given out because of another VAN."""

from __future__ import annotations

from os_acc.claims import meeting
from os_acc.claims import vans
from os_acc.refusals import reasons
from os_acc.refusals import report_refusals

Relation = meeting.Relation


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why a function cannot be given out. See claims.words."""
    named = vans.function_in(met.other.handle)
    texts = {
        Relation.SAME: 'it',
        Relation.PART: met.other.handle,
        Relation.ABOVE: f'{named}, which it is behind',
        Relation.BEHIND: f'{named}, which is behind it',
    }
    if met.relation in texts:
        return met.taken(texts[met.relation])
    if met.relation is Relation.IN:
        return report_refusals.PF_TAKEN.reason(holder=met.taken('it').text)
    return met.common()
