# SPDX-License-Identifier: Apache-2.0

"""Locks on instances and devices, between threads and processes.

The lock of an instance is taken before the lock of a device, never while a
device's lock is held. The lock on its move is taken before both. The kernel
releases the locks of a process that dies.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from contextlib import AbstractContextManager
import fcntl
import hashlib
import os
import threading
import time
import urllib.parse

from oslo_concurrency import lockutils

from os_acc import exception
from os_acc.state import files as state_files
from os_acc.state import sharing

# The longest name used in a file name, in characters. NAME_MAX is 255.
_LONGEST = 200

# In the name of a file: every version of os-acc must use the same.
_DOCUMENT = 'all, to apply a document'
_DOCUMENT_IS_USED = 'another os-acc apply or os-acc pools --keep to end'

# Seconds between two attempts to lock a file.
_PAUSE = 0.01

# An fcntl lock belongs to the process. Two threads of it would both get the
# lock, and the first one to close the file would release it for both. So each
# thread takes a semaphore first.
_THREADS = lockutils.Semaphores()

# The thread (green or native) that holds a lock, by the path of its file.
_HOLDERS: dict[str, int] = {}


def _after_fork() -> None:
    # Other threads of the parent may have held locks. They do not exist in the
    # child, so they cannot release them.
    global _THREADS, _HOLDERS
    _THREADS = lockutils.Semaphores()
    _HOLDERS = {}


os.register_at_fork(after_in_child=_after_fork)


class Locks:
    """The locks of one lock directory.

    :param path: the directory; created when first needed
    """

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        # Two spellings of one directory must lead to the same locks.
        self._real = os.path.realpath(path)

    def instance(
        self, uuid: str, wait: bool = True
    ) -> AbstractContextManager[None]:
        """Hold the lock of an instance.

        :param wait: False: raise Timeout at once if the lock is held
        :raises LockTimeout: if somebody else held the lock until the timeout
        :raises LockHeld: if this thread already holds it, and wait is True
        """
        return self._hold('instance', uuid, self.timeout if wait else 0)

    def device(
        self, address: str, timeout: float | None = None
    ) -> AbstractContextManager[None]:
        """Hold the lock of a device.

        :param timeout: seconds to wait; 0: do not wait; None: lock_timeout
        """
        seconds = self.timeout if timeout is None else timeout
        return self._hold('device', address, seconds)

    def move(self, uuid: str) -> AbstractContextManager[None]:
        """Hold the lock on the whole move of an instance from this host.

        Nobody waits for it: a move can take longer than any timeout. It is
        taken before the lock of the instance, which each step takes.

        :raises LockTimeout: at once, if somebody else moves the instance
        """
        return self._hold('move', uuid, 0)

    def document(
        self, timeout: float | None = None
    ) -> AbstractContextManager[None]:
        """Hold the lock on this host's document, and on what it sets up."""
        seconds = self.timeout if timeout is None else timeout
        return self._hold('device', _DOCUMENT, seconds, _DOCUMENT_IS_USED)

    @contextlib.contextmanager
    def _hold(
        self, kind: str, name: str, timeout: float, what: str | None = None
    ) -> Iterator[None]:
        """Hold a lock."""
        quoted = urllib.parse.quote(name, safe=':')
        if len(quoted) > _LONGEST:
            quoted = hashlib.sha256(name.encode()).hexdigest()
        deadline = time.monotonic() + timeout
        path = os.path.join(self._real, f'os-acc-{kind}-{quoted}')
        failed = exception.LockTimeout(
            what=what or f'the lock of {kind} {name}', seconds=timeout
        )
        if timeout and _HOLDERS.get(path) == threading.get_ident():
            raise exception.LockHeld(kind=kind, name=name)
        threads = _THREADS.get(path)
        held = False
        try:
            # This is inside the try, because an interruption between the two
            # would leave the lock held forever.
            held = threads.acquire(timeout=timeout)
            if not held:
                raise failed
            _HOLDERS[path] = threading.get_ident()
            fd = self._lock_file(path, deadline)
            if fd is None:
                raise failed
            try:
                yield
            finally:
                # The file is removed, so that files do not pile up. It is
                # removed while locked: a thread that waits for this file
                # then sees in _is_current() that the path has another file
                # or none, and tries again.
                try:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                finally:
                    os.close(fd)
        finally:
            if held:
                _HOLDERS.pop(path, None)
                threads.release()

    def _lock_file(self, path: str, deadline: float) -> int | None:
        """Lock a file.

        :returns: its descriptor; None if the deadline has passed
        """
        try:
            while True:
                fd = self._open(path)
                keep = False
                try:
                    gotten = _wait_for(fd, deadline)
                    keep = gotten and _is_current(fd, path)
                finally:
                    # Closing a file drops all locks that the process has on
                    # it (fcntl(2)). A file that is left open could drop the
                    # lock of a later holder when it is closed.
                    if not keep:
                        os.close(fd)
                if keep:
                    return fd
                if not gotten:
                    return None
        except OSError as err:
            raise exception.JournalError(
                path=self.path,
                reason=f'cannot use lock directory: {err}'
                f'{sharing.hint(self._real, path)}',
            ) from err

    def _open(self, path: str) -> int:
        try:
            return state_files.open_file(path)
        except FileNotFoundError:
            state_files.make_directory(self._real)
            return state_files.open_file(path)


def _wait_for(fd: int, deadline: float) -> bool:
    """Lock an open file; returns False if the deadline has passed."""
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES
            left = deadline - time.monotonic()
            if left <= 0:
                return False
        time.sleep(min(_PAUSE, left))


def _is_current(fd: int, path: str) -> bool:
    """Say whether a path still names the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
