# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.


"""A fork closes all connections first, and both processes open new ones.

A sqlite connection must not cross a fork. Nor does a new connection help the
child while its parent had one: sqlite keeps a process's locks on a file in
memory, and the child inherits that memory without the locks, so what it
writes can be lost (sqlite.org/howtocorrupt.html, 2.6 and 2.2).

So before a fork the forking thread waits until no thread uses a connection,
closes all of them, and lets no thread begin until the fork is done.
subprocess does not run these hooks unless it has a preexec_fn, and needs
none: its child uses no connection and closes its files.
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
    """What has connections, and locks that the child cannot inherit."""

    def before_fork(self) -> None:
        """Close all connections; no thread uses one now."""

    def after_fork_in_child(self, abandon: bool) -> None:
        """Forget the other threads of the parent, which are not here.

        :param abandon: the connections could not be closed: keep them open
            and never touch them again
        """


class _Guard:
    """Who uses connections now, and whether a fork is under way."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.resources: weakref.WeakSet[Resource] = weakref.WeakSet()
        #: Thread, and how many uses it has entered.
        self.users: collections.Counter[int] = collections.Counter()
        self.forks = 0
        self.all_closed = True
        #: This process was forked while a connection was open.
        self.spoilt = False


_guard = _Guard()


def register(resource: Resource) -> None:
    """Have a resource told of forks, as long as it lives."""
    with _guard.changed:
        _guard.resources.add(resource)


@contextlib.contextmanager
def in_use(path: str) -> Iterator[None]:
    """Hold off forks while a connection is used, or opened and closed.

    Do not wait for anybody inside. A thread may enter again inside.

    :param path: the journal's, for the error
    :raises JournalError: if this process was forked from one that could not
        close its connections
    """
    guard = _guard
    if guard.spoilt:
        raise exception.JournalError(
            path=path,
            reason=f'process {os.getpid()} was forked while its parent was '
            'writing; use it in a new process',
        )
    me = threading.get_ident()
    with guard.changed:
        # A thread that is inside already would stop the fork for ever.
        while guard.forks and me not in guard.users:
            guard.changed.wait()
        guard.users[me] += 1
    try:
        yield
    finally:
        # In the child of a fork inside, the guard is another one.
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
        # This thread itself may be inside, for example in a signal handler:
        # waiting for it would never end.
        while guard.users.keys() - {me}:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            guard.changed.wait(left)
        guard.all_closed = not guard.users
        resources = list(guard.resources)
    if guard.all_closed:
        for resource in resources:
            resource.before_fork()


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
