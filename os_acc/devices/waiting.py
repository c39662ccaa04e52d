# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Waiting for the kernel: by its events, never without a deadline."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import logging
import threading
import time
from typing import Any
from typing import TypeVar

from os_acc import exception

LOG = logging.getLogger(__name__)

# Looked at again after so many seconds even without an event: not all that
# changes sends one, and a container may not get any.
_POLL = 0.02

_T = TypeVar('_T')


def until(
    check: Callable[[], _T | None],
    seconds: float,
    what: str,
    subsystem: str | None = None,
) -> _T:
    """Wait until a check returns something true.

    :param check: cheap; called often
    :param seconds: how long at most
    :param what: for the error: what was waited for
    :param subsystem: wake up by the kernel's events of it ('pci', 'mdev');
        they come without udevd too. None: only look again and again
    :returns: what the check returned
    :raises Timeout: it never did
    """
    if found := check():
        return found
    deadline = time.monotonic() + seconds
    monitor = _monitor(subsystem) if subsystem else None
    pause = _POLL
    # The event may have come before there was a monitor.
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
    """A pyudev.Monitor of the kernel's events, or None where none can be."""
    try:
        import pyudev

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), 'kernel')
        monitor.filter_by(subsystem)
        monitor.start()
    except (ImportError, OSError, ValueError) as err:
        LOG.debug('no kernel events of %s: %s', subsystem, err)
        return None
    return monitor


def at_most(act: Callable[[], _T], seconds: float, what: str) -> _T:
    """Do what may block in the kernel for ever, such as an unbind.

    It cannot be stopped, only left: it may still come to its end later, and
    until then holds what it locked.

    :param what: for the error: what it was that blocked
    :raises Timeout: it is still at it
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

    threading.Thread(target=run, name=f'os-acc {what}', daemon=True).start()
    if not done.wait(seconds):
        raise exception.Timeout(what=what, seconds=seconds)
    if failure:
        with contextlib.ExitStack() as stack:
            # No cycle of the traceback with this frame.
            stack.callback(failure.clear)
            raise failure[0]
    return result[0]
