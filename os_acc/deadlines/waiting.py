# SPDX-License-Identifier: Apache-2.0

"""Waiting for the kernel: with a deadline, woken by the kernel's events."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import contextvars
import logging
import threading
import time
from typing import Any
from typing import TypeVar

from os_acc import exception

LOG = logging.getLogger(__name__)

# Seconds after which a condition is checked again without an event. Not every
# change sends an event, and a container may not receive any.
_POLL = 0.02

_T = TypeVar('_T')


class Deadline:
    """The time that the steps of one operation share.

    A step whose own time ends before that of the whole operation raises its
    own error, which says more than the error of the operation.

    :ivar seconds: for the whole operation, as given to at_most()
    """

    _SHARE = 0.9  # of the time, for the steps; the rest for raising the error

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + self._SHARE * seconds

    def left(self, share: float = 1.0) -> float:
        """How many seconds the next step may take; 0 if none are left.

        :param share: the share of the remaining time that the step gets
        """
        left = max(self._end - time.monotonic(), 0.0)
        return round(share * left, 3)


def until(
    check: Callable[[], _T | None],
    seconds: float,
    what: str,
    subsystem: str | None = None,
) -> _T:
    """Wait until a check returns something true.

    :param check: cheap, since it is called often
    :param what: what is waited for, for the error
    :param subsystem: whose kernel events wake the wait, such as 'pci' or
        'mdev'; they arrive without udevd too. None: only poll
    :returns: what the check returned
    :raises Timeout: if the check did not become true in time
    """
    if found := check():
        return found
    deadline = time.monotonic() + seconds
    monitor = _monitor(subsystem) if subsystem else None
    pause = _POLL
    # Check again: the event may have come before the monitor started.
    while not (found := check()):
        left = deadline - time.monotonic()
        if left <= 0:
            raise exception.Timeout(what=what, seconds=seconds)
        pause = min(pause * 1.5, 0.5, left)
        if monitor is not None:
            monitor.poll(timeout=pause)
        else:
            time.sleep(pause)
    return found


def _monitor(subsystem: str) -> Any:
    """Start a pyudev.Monitor of kernel events; None if that is impossible."""
    try:
        import pyudev

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), 'kernel')
        monitor.filter_by(subsystem)
        monitor.start()
    except (ImportError, OSError, ValueError) as err:
        LOG.debug('No kernel events of %s: %s', subsystem, err)
        return None
    return monitor


def at_most(act: Callable[[], _T], seconds: float, what: str) -> _T:
    """Run an act that may block in the kernel forever, such as an unbind.

    The act runs in a thread of its own, which cannot be stopped. After a
    timeout it goes on, and keeps its locks until it ends. If the act raises an
    error, this raises the same one. If another act must wait for the end of
    this one, see outliving.Turns.

    :param what: what is waited for, for the error
    :returns: what the act returned
    :raises Timeout: if it has not ended in time
    """
    result: list[_T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            result.append(act())
        except BaseException as err:
            failure.append(err)
        done.set()

    threading.Thread(
        target=contextvars.copy_context().run,
        args=(run,),
        name=f'os-acc {what}',
        daemon=True,
    ).start()
    if not done.wait(seconds):
        raise exception.Timeout(what=what, seconds=seconds)
    if failure:
        with contextlib.ExitStack() as stack:
            # Avoids a reference cycle of the traceback with this frame.
            stack.callback(failure.clear)
            raise failure[0]
    return result[0]
