# SPDX-License-Identifier: Apache-2.0
"""The queue of the commands that wait for a free device.

Each has a ticket: a file in the lock directory, which it keeps locked. The
kernel releases the lock of a process that dies, so the others see that its
ticket is no longer valid.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import fcntl
import json
import os
import re
import time
from typing import Any

from os_acc import exception
from os_acc import objects
from os_acc.state import files as state_files
from os_acc.state import sharing

_NAME = re.compile(r'os-acc-waiter-([0-9]+)')

#: Seconds between two looks at the tickets before one's own.
PAUSE = 0.1

#: Seconds of one attempt after which the next in the queue may try too: the
#: attempt has probably got a device by then, and programs it.
LONG = 10.0

#: What a command waits for while others are before it in the queue.
EARLIER = 'earlier commands wait for the same devices'

# The tickets of this process. Their files are not opened a second time:
# closing one would release its lock (fcntl(2)).
_OWN: set[str] = set()

os.register_at_fork(after_in_child=_OWN.clear)


class Ticket:
    """The place of one command in the queue.

    An earlier command goes first if each device that serves this one could
    serve it too: it asks for the same resource class and for no trait that
    this one does not ask for, or it names the same handle.

    :raises JournalError: if the lock directory cannot be used
    """

    def __init__(
        self, directory: str, requests: Sequence[objects.AcceleratorRequest]
    ) -> None:
        self._directory = os.path.realpath(directory)
        self._wants = [
            (each.handle.identity, [])
            if each.handle is not None
            else (each.resource_class, sorted(each.traits))
            for each in requests
        ]
        try:
            state_files.make_directory(self._directory)
            self._fd, new = state_files.new_file(self._directory)
            try:
                # Locked and filled before it has its name: nobody takes it
                # for one that was left behind.
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._write(None)
                self._number = self._take_number(new)
            except BaseException:
                os.close(self._fd)
                raise
            finally:
                os.unlink(new)
        except OSError as err:
            raise self._unusable(err) from err

    def _take_number(self, new: str) -> int:
        """Give a file the first number after all tickets."""
        while True:
            number = max((each for each, _ in self._tickets()), default=0) + 1
            path = self._path(number)
            _OWN.add(path)
            try:
                os.link(new, path)
                return number
            except FileExistsError:
                _OWN.discard(path)  # another command has just got it
            except BaseException:
                _OWN.discard(path)
                raise

    def close(self) -> None:
        """Leave the queue."""
        path = self._path(self._number)
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(self._fd)
        _OWN.discard(path)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Note that the command tries now to get its devices."""
        self._write(time.monotonic())
        try:
            yield
        finally:
            self._write(None)

    def is_first(self) -> bool:
        """Whether no earlier command waits for the same device."""
        try:
            earlier = [
                path
                for number, path in sorted(self._tickets(), reverse=True)
                if number < self._number
            ]
            # From the nearest one: most waiting commands look at one ticket.
            return not any(map(self._goes_first, earlier))
        except OSError as err:
            raise self._unusable(err) from err

    def _goes_first(self, path: str) -> bool:
        if path in _OWN:
            return True
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # EAGAIN or EACCES
                return self._precedes(os.read(fd, 1 << 20))
            # The process of this ticket has ended.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return False
        finally:
            os.close(fd)

    def _precedes(self, text: bytes) -> bool:
        """Whether a ticket with this text goes before this one."""
        try:
            read = json.loads(text)
            wants, since = read['wants'], read['since']
            if since is not None and time.monotonic() - since > LONG:
                return False
            return any(
                wanted == name and set(needed) <= set(traits)
                for wanted, needed in wants
                for name, traits in self._wants
            )
        except (ValueError, KeyError, TypeError):
            return True  # it is being written now

    def _write(self, since: float | None) -> None:
        """Write what the command wants, and since when it tries to get it."""
        read: dict[str, Any] = {'wants': self._wants, 'since': since}
        text = json.dumps(read).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def _tickets(self) -> Iterator[tuple[int, str]]:
        for name in os.listdir(self._directory):
            if (found := _NAME.fullmatch(name)) is not None:
                yield int(found[1]), os.path.join(self._directory, name)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f'os-acc-waiter-{number}')

    def _unusable(self, err: OSError) -> exception.JournalError:
        hint = sharing.hint(self._directory, err.filename or self._directory)
        return exception.JournalError(
            path=self._directory,
            reason=f'cannot use lock directory: {err}{hint}',
        )


class Queue:
    """Gives a command its turns. It joins the queue when that is needed.

    :param directory: the lock directory. A command that does not wait yet does
        not make it: the path may be mistyped
    :param requests: what the command asks for; empty: it waits for no device,
        and it is always its turn
    :param deadline: of time.monotonic()
    """

    def __init__(
        self,
        directory: str,
        requests: Sequence[objects.AcceleratorRequest],
        deadline: float,
    ) -> None:
        self._directory, self._requests = directory, requests
        self._deadline = deadline
        self._ticket: Ticket | None = None

    @contextlib.contextmanager
    def turn(
        self, make: bool, tell: Callable[[str], object]
    ) -> Iterator[bool]:
        """Wait until it is the turn of the command, which then tries.

        :param make: whether the lock directory may be made
        :param tell: gets a line if others go first
        :returns: False: the deadline has passed, and it is not its turn
        """
        needed = self._ticket is None and bool(self._requests)
        if needed and (make or os.path.isdir(self._directory)):
            self._ticket = Ticket(self._directory, self._requests)
        if self._ticket is None:
            yield True
            return
        announced = False
        while not self._ticket.is_first():
            left = self._deadline - time.monotonic()
            if left <= 0:
                yield False
                return
            if not announced:
                announced = True
                tell(f'Waiting for at most {left:.0f} s: {EARLIER}')
            time.sleep(min(PAUSE, left))
        with self._ticket.attempt():
            yield True

    def close(self) -> None:
        """Let the next command try."""
        if self._ticket is not None:
            self._ticket.close()
            self._ticket = None
