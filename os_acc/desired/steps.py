# SPDX-License-Identifier: Apache-2.0

"""One step towards the state that a document describes."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

from os_acc import exception

#: What a step raises if somebody is in the way. That may pass: another process
#: that holds the lock of a device ends, too.
IN_THE_WAY = (
    exception.DeviceBusy,
    exception.DeviceInUseByHost,
    exception.LockTimeout,
)


def nobody() -> list[str]:
    """Nobody is in the way of a step."""
    return []


@dataclasses.dataclass(frozen=True)
class Step:
    """A step. It changes one thing, and finishes or undoes an earlier one.

    :ivar part: of the document, such as vfs
    :ivar name: what it changes
    :ivar before: the present state
    :ivar after: the desired state
    :ivar act: does it; None: there is nothing to do. It returns False if it
        has found that nothing is to be done. It raises DeviceBusy or
        DeviceInUseByHost if somebody is in the way, before it touches anything
    :ivar users: says who would be in the way now, a clause for each
    :ivar fault: why it would fail, as far as that is known before; None:
        nothing is known
    """

    part: str
    name: str
    before: str
    after: str
    act: Callable[[], object] | None = None
    users: Callable[[], list[str]] = nobody
    fault: str | None = None


def tried(
    part: str,
    name: str,
    before: str,
    after: str,
    act: Callable[[], object],
    error: exception.ExceptionBase | None,
) -> Step:
    """Make a step for which it is known whether it would fail now.

    :param error: what it would raise; None: nothing is known
    """
    text = exception.describe(error) if error is not None else None
    if error is None or not isinstance(error, IN_THE_WAY):
        return Step(part, name, before, after, act, fault=text)
    return Step(part, name, before, after, act, lambda: [text or ''])
