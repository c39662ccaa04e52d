# SPDX-License-Identifier: Apache-2.0

"""Waiting until nobody has a device open any more, as root."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.refusals import refusals


def wait(
    device: str, users: Callable[[], Sequence[str]], seconds: float
) -> None:
    """Wait until nobody has a device open.

    :param device: the device, for the error
    :param users: finds who has it open: a clause for each
    :param seconds: how long to wait; 0: look once
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
            reason=refusals.opened(found).text,
        ) from err
