# SPDX-License-Identifier: Apache-2.0


"""Closes all connections before a fork; both processes then open new ones.

A sqlite connection must not be used across a fork. It is not enough that the
child opens a new connection while the parent has one open: sqlite keeps the
locks of a process on a file in memory, and the child inherits this memory but
not the locks. What the child writes can then be lost
(sqlite.org/howtocorrupt.html, 2.6 and 2.2).

So before a fork, the forking thread waits until no thread uses a connection,
closes all connections, and lets no thread use one until the fork is done.
subprocess does not run these hooks unless it has a preexec_fn. It does not
need them, because its child uses no connection and closes its files.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import contextlib
import logging
import os
import threading
import time
from typing import Protocol
import weakref

from os_acc import exception

LOG = logging.getLogger(__name__)

# Seconds that a fork waits for a transaction of another thread. If it takes
# longer, the fork goes ahead and the child must not use the journal.
LONGEST_WAIT = 60.0


class Resource(Protocol):
    """An object with connections, or locks that a child cannot inherit."""

    def before_fork(self) -> None:
        """Close all connections. No thread uses one at this time."""

    def after_fork_in_child(self, abandon: bool) -> None:
        """Forget the other threads of the parent. The child has only one.

        :param abandon: True: the connections could not be closed before the
            fork; keep them open and never use them again
        """


class _Guard:
    """The threads that use connections now, and the forks under way."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.resources: weakref.WeakSet[Resource] = weakref.WeakSet()
        #: How many uses each thread has entered, by the thread's id.
        self.users: collections.Counter[int] = collections.Counter()
        self.forks = 0
        self.all_closed = True
        #: Whether this process was forked while a connection was open.
        self.spoilt = False


_guard = _Guard()


def register(resource: Resource) -> None:
    """Call a resource at each fork, as long as the resource exists."""
    with _guard.changed:
        _guard.resources.add(resource)


@contextlib.contextmanager
def in_use(path: str) -> Iterator[None]:
    """Delay forks while a connection is opened, used or closed.

    Do not wait for other threads inside the block. A thread may enter the
    block again inside.
    """
    guard = _guard
    if guard.spoilt:
        raise exception.JournalError(
            path=path,
            reason=f'process {os.getpid()} was forked while its parent was '
            'using the journal; use the journal in a new process',
        )
    me = threading.get_ident()
    with guard.changed:
        # A thread that is inside already must not wait for the fork: the fork
        # waits for this thread.
        while guard.forks and me not in guard.users:
            guard.changed.wait()
        guard.users[me] += 1
    try:
        yield
    finally:
        # If the process was forked inside, the child has another guard.
        if guard is _guard:
            with guard.changed:
                guard.users[me] -= 1
                if not guard.users[me]:
                    del guard.users[me]
                guard.changed.notify_all()


def _before() -> None:
    guard = _guard
    deadline = time.monotonic() + LONGEST_WAIT
    me = threading.get_ident()
    with guard.changed:
        guard.forks += 1
        # Python ignores an exception of this hook and forks nevertheless.
        guard.all_closed = False
        # This thread itself may be inside, for example if it forks in a signal
        # handler. It must not wait for itself.
        while guard.users.keys() - {me}:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            guard.changed.wait(left)
        if guard.users:
            return
        resources = list(guard.resources)
    for resource in resources:
        resource.before_fork()
    guard.all_closed = True


def _after_in_parent() -> None:
    guard = _guard
    with guard.changed:
        guard.forks -= 1
        guard.changed.notify_all()


def _after_in_child() -> None:
    global _guard
    old, _guard = _guard, _Guard()
    _guard.spoilt = old.spoilt or not old.all_closed
    for resource in list(old.resources):
        resource.after_fork_in_child(abandon=_guard.spoilt)
        _guard.resources.add(resource)


os.register_at_fork(
    before=_before,
    after_in_parent=_after_in_parent,
    after_in_child=_after_in_child,
)
