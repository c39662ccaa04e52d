# SPDX-License-Identifier: Apache-2.0

"""Waiting until nobody has a device open any more, as root."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from os_acc import exception
from os_acc.deadlines import waiting


def wait(
    device: str,
    users: Callable[[], Sequence[str]],
    seconds: float,
    text: Callable[[Sequence[str]], str] = '; '.join,
) -> None:
    """Wait until nobody has a device open.

    :param device: the device, for the error
    :param users: finds who has it open: a clause for each
    :param seconds: how long to wait; 0: look once
    :param text: makes the reason of the error of these clauses
    :raises DeviceBusy: if somebody still has it open
    """
    found: list[str] = []

    def closed() -> bool:
        found[:] = users()
        return not found

    try:
        waiting.until(closed, seconds, device)
    except exception.Timeout as err:
        raise exception.DeviceBusy(
            device=f'{device} (after {seconds:g} s)',
            reason=text(found),
        ) from err
