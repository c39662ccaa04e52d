# SPDX-License-Identifier: Apache-2.0

"""The names of the regions of a device, as an operator gives them."""

from __future__ import annotations

from collections.abc import Sequence

from os_acc import exception
from os_acc.journal import programs


def check(subject: str, region: str | None, regions: Sequence[str]) -> str:
    """Check the region that an operator has named.

    :param region: None or programs.WHOLE for the device as a whole
    """
    named = region or programs.WHOLE
    if named in regions:
        return named
    raise exception.InvalidRequest(
        subject=subject,
        field='region',
        value=region,
        expected='no region: the device is programmed as a whole'
        if list(regions) == [programs.WHOLE]
        else f'one of {", ".join(regions)}',
    )
