# SPDX-License-Identifier: Apache-2.0

"""Why a handle cannot be given out because of another VAN, in words.

Root does not need them: it names the note that is in the way.
"""

from __future__ import annotations

from os_acc import kinds
from os_acc.claims import meeting
from os_acc.claims import of_handle
from os_acc.kernel import pci as functions
from os_acc.kinds.devfile import words as devfile
from os_acc.kinds.mdev import words as mdev
from os_acc.kinds.nvme_of import words as nvme_of
from os_acc.kinds.pci import words as pci
from os_acc.refusals import reasons


def why(met: meeting.Meeting) -> reasons.Reason:
    """Say why a handle cannot be given out because of another VAN."""
    kind, _, rest = met.wanted.handle.partition('/')
    if kind == 'pci' and functions.is_address(rest):
        return pci.why(met)
    if kind == 'mdev':
        return mdev.why(met)
    if kind == 'file':
        own = of_handle.kind_of(rest.partition('/')[0])
        of_kind = devfile if own is None else kinds.module(own, 'words')
        found: reasons.Reason = of_kind.why(met)
        return found
    return nvme_of.why(met) if kind == 'block' else met.common()
