# SPDX-License-Identifier: Apache-2.0

"""A process that ends in the middle of its work, as by kill -9.

A process ends by an exception that nothing catches for long: from then on,
each change that the process tries raises it again, also in other threads and
in the undo. So the hardware and the journal stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import os
import signal
import sys
import threading
from typing import Any

from os_acc.journal import store

#: The name of van.save() among Mortal.changes.
SAVE = 'save of the VAN'
#: The name of every other write to the journal.
COMMIT = 'write to the journal'

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events of the interpreter that change a file system: the position of
# the path among the arguments, and that of the descriptor of its directory.
# See the table of audit events in the documentation of Python.
_FILE_EVENTS = {
    'os.chmod': (0, 2),
    'os.chown': (0, 3),
    'os.link': (1, 3),
    'os.mkdir': (0, 2),
    'os.remove': (0, 1),
    'os.rename': (1, 3),
    'os.rmdir': (0, 1),
    'os.symlink': (1, 2),
    'os.truncate': (0, None),
    'shutil.rmtree': (0, None),
}


class Crash(BaseException):
    """The process ends here, as by kill -9."""


class Mortal:
    """Counts the changes that a process makes, and ends it at one of them.

    :ivar changes: the name of each change since clear()
    :ivar dead: the process has ended: nothing that it does counts
    :ivar by_signal: end the process itself by SIGKILL, and not by Crash
    """

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.dead = False
        self.by_signal = False
        self._end: tuple[int, bool] | None = None
        self._lock = threading.Lock()
        self._inside = threading.local()

    def crash_at(self, number: int, after: bool = False) -> None:
        """End the process at a change.

        :param number: 0 is the next change
        :param after: False: before the change; True: after it
        """
        self._end = (number, after)

    def calm(self) -> None:
        """Forget crash_at()."""
        self._end = None

    def revive(self) -> None:
        """Be a new process, which has changed nothing yet."""
        self.dead = False
        self.changes.clear()
        self.calm()

    @contextlib.contextmanager
    def change(self, name: str) -> Iterator[None]:
        """Count a change, and make it in this block.

        A change within a change of the same thread does not count.

        :raises Crash: if the process ends at this change, or has ended
        """
        if getattr(self._inside, 'change', False):
            yield
            return
        after = self._begin(name)
        self._inside.change = True
        try:
            yield
        finally:
            self._inside.change = False
        if after:
            self.die()

    def check(self) -> None:
        """Let only a living process go on.

        :raises Crash: if the process has ended
        """
        if self.dead:
            raise Crash

    def die(self) -> None:
        """End the process.

        :raises Crash: always, unless by_signal is true
        """
        self.dead = True
        if self.by_signal:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Crash

    def _begin(self, name: str) -> bool:
        """Count a change.

        :returns: whether the process ends after it
        """
        with self._lock:
            self.check()
            end = self._end
            if end is not None:
                self._end = (end[0] - 1, end[1])
            if end == (0, False):
                self.die()
            self.changes.append(name)
            return end == (0, True)


def watch_calls(
    patch: Any, mortal: Mortal, owner: Any, name: str, label: str = ''
) -> None:
    """Make each call of a function a change.

    :param patch: pytest's monkeypatch
    :param owner: the module or class that has the function
    :param label: the name of the change; empty: that of the function
    """
    original: Callable[..., Any] = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        with mortal.change(label or name):
            return original(*args, **kwargs)

    patch.setattr(owner, name, watched)


def spare_the_journal(patch: Any, mortal: Mortal) -> None:
    """Let a process that has ended write nothing to a journal."""
    original = store.Store._in_transaction

    def write(*args: Any) -> Any:
        mortal.check()
        return original(*args)

    patch.setattr(store.Store, '_in_transaction', write)


class _Listener:
    """Notices the files that this process changes, while a test asks.

    An audit hook of the interpreter cannot be removed, so there is one, and
    it is silent if no test asks.
    """

    def __init__(self) -> None:
        self._installed = False
        self._tell: Callable[[str], None] | None = None

    @contextlib.contextmanager
    def telling(self, tell: Callable[[str], None]) -> Iterator[None]:
        if not self._installed:
            sys.addaudithook(self._hear)
            self._installed = True
        before, self._tell = self._tell, tell
        try:
            yield
        finally:
            self._tell = before

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self._tell is None:
            return
        if event == 'open':
            # The event does not tell a descriptor of the directory.
            (path, _, flags), place_of_fd = args, None
            if not flags & _WRITING:
                return
        elif event in _FILE_EVENTS:
            place, place_of_fd = _FILE_EVENTS[event]
            path = args[place]
        else:
            return
        if not isinstance(path, str | bytes | os.PathLike):
            return
        found = os.fsdecode(path)
        if place_of_fd is not None and args[place_of_fd] != -1:
            directory = os.readlink(f'/proc/self/fd/{args[place_of_fd]}')
            found = os.path.join(directory, found)
        # What is there is not made, and what is not there is not removed.
        absent = {'os.mkdir': True, 'os.remove': False, 'os.rmdir': False}
        if absent.get(event) in (None, not os.path.lexists(found)):
            self._tell(found)


_LISTENER = _Listener()


@contextlib.contextmanager
def watch_files(
    mortal: Mortal, directory: str, besides: str
) -> Iterator[None]:
    """Make each change of a file below a directory a change of the process.

    A file is changed if it is opened for writing, made, renamed or removed. A
    file that is opened by a descriptor of its directory does not count, but
    its renaming does.

    :param besides: a directory whose files do not count
    """

    def tell(path: str) -> None:
        path = os.path.abspath(path)
        if path.startswith(f'{directory}/') and not path.startswith(besides):
            with mortal.change(os.path.relpath(path, directory)):
                pass

    with _LISTENER.telling(tell):
        yield
