# SPDX-License-Identifier: Apache-2.0

"""A finding: what ``os-acc doctor`` reports about one subject."""

from __future__ import annotations

import dataclasses

OK, WARNING, ERROR = 'ok', 'warning', 'error'


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found about one subject.

    :ivar subject: what was checked, such as 'IOMMU' or 'PCI function
        0000:3b:00.0'
    :ivar verdict: OK; WARNING: some requests will fail, or the operator should
        know about it; ERROR: the subject cannot work
    :ivar text: what was found
    :ivar advice: what to do about it; empty if there is nothing to do
    """

    subject: str
    verdict: str
    text: str
    advice: str = ''
