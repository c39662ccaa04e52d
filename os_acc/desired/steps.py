# SPDX-License-Identifier: Apache-2.0

"""One step towards the state that a document describes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses

from os_acc import exception

#: What a step raises if somebody is in the way. That may pass: another process
#: that holds the lock of a device ends, too.
IN_THE_WAY = (
    exception.DeviceBusy,
    exception.DeviceInUseByHost,
    exception.LockTimeout,
)

#: The name of a step for what else is in a part: see all_found().
OTHERS = 'everything else'


def nobody() -> list[str]:
    """Nobody is in the way of a step."""
    return []


def certainly() -> bool:
    """A step changes something."""
    return True


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
    :ivar changes: whether act would change something. If not, it only forgets
        what os-acc knew
    """

    part: str
    name: str
    before: str
    after: str
    act: Callable[[], object] | None = None
    users: Callable[[], list[str]] = nobody
    fault: str | None = None
    changes: Callable[[], bool] = certainly


def tried(
    part: str,
    name: str,
    before: str,
    after: str,
    act: Callable[[], object],
    error: Exception | None,
) -> Step:
    """Make a step for which it is known whether it would fail now.

    :param error: what it would raise; None: nothing is known
    """
    text = exception.describe(error) if error is not None else None
    if error is None or not isinstance(error, IN_THE_WAY):
        return Step(part, name, before, after, act, fault=text)
    return Step(part, name, before, after, act, lambda: [text or ''])


def hopeless(
    part: str, name: str, before: str, after: str, error: Exception
) -> Step:
    """Make a step that touches nothing, because of an error."""

    def act() -> None:
        raise error

    return tried(part, name, before, after, act, error)


def all_found(part: str, found: Iterable[Step]) -> Iterator[Step]:
    """Find the steps of a part.

    An error ends them with a step that fails for it. So the other parts are
    done.

    :param found: the steps; the next one can raise
    """
    try:
        yield from found
    except Exception as err:
        yield hopeless(part, OTHERS, 'unknown', 'as the document says', err)
