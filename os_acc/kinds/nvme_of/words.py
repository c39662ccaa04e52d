# SPDX-License-Identifier: Apache-2.0

"""Why a namespace cannot be given out because of another VAN."""

from __future__ import annotations

from os_acc.claims import meeting
from os_acc.claims import vans
from os_acc.refusals import reasons


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why a namespace cannot be given out. See claims.words."""
    is_file = vans.file_in(met.other.handle) is not None
    return met.taken(None if is_file else 'it')
