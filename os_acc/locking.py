# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Locks on instances and devices, between threads and processes.

The lock of an instance is taken before the lock of a device, never while a
device's lock is held. The kernel releases the locks of a process that dies.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import hashlib
import os
import threading
import time
import urllib.parse

from oslo_concurrency import lockutils

from os_acc import exception

# The longest name used in a file name, in characters. NAME_MAX is 255.
_LONGEST = 200

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
    """The locks of one lock folder.

    :param path: the folder; created when first needed
    :param timeout: seconds to wait for a lock
    """

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        # Two spellings of one folder must lead to the same locks.
        self._real = os.path.realpath(path)

    @contextlib.contextmanager
    def instance(self, uuid: str, wait: bool = True) -> Iterator[None]:
        """Hold the lock of an instance.

        :param wait: False: raise Timeout at once if the lock is held
        :raises Timeout: if somebody else held the lock until the timeout
        :raises LockHeld: if this thread already holds it, and wait is True
        :raises JournalError: if the lock folder cannot be used
        """
        with self._hold('instance', uuid, self.timeout if wait else 0):
            yield

    @contextlib.contextmanager
    def device(
        self, address: str, timeout: float | None = None
    ) -> Iterator[None]:
        """Hold the lock of a device.

        :param timeout: seconds to wait; 0: do not wait; None: lock_timeout
        :raises Timeout, LockHeld, JournalError: as instance()
        """
        seconds = self.timeout if timeout is None else timeout
        with self._hold('device', address, seconds):
            yield

    @contextlib.contextmanager
    def _hold(self, kind: str, name: str, timeout: float) -> Iterator[None]:
        quoted = urllib.parse.quote(name, safe=':')
        if len(quoted) > _LONGEST:
            quoted = hashlib.sha256(name.encode()).hexdigest()
        file_name = f'os-acc-{kind}-{quoted}'
        deadline = time.monotonic() + timeout
        path = os.path.join(self._real, file_name)
        failed = exception.Timeout(
            what=f'the lock of {kind} {name}', seconds=timeout
        )
        if timeout and _HOLDERS.get(path) == threading.get_ident():
            raise exception.LockHeld(kind=kind, name=name)
        threads = _THREADS.get(path)
        held = False
        try:
            # This is inside the try, because an interruption between the two
            # would leave the lock held for ever.
            held = threads.acquire(timeout=timeout)
            if not held:
                raise failed
            _HOLDERS[path] = threading.get_ident()
            lock = self._lock_file(file_name, deadline)
            if lock is None:
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
                        os.unlink(lock.path)
                finally:
                    lock.release()
        finally:
            if held:
                _HOLDERS.pop(path, None)
                threads.release()

    def _lock_file(
        self, file_name: str, deadline: float
    ) -> lockutils.InterProcessLock | None:
        while True:
            lock = lockutils.external_lock(file_name, lock_path=self.path)
            left = max(deadline - time.monotonic(), 0)
            keep = False
            try:
                gotten = lock.acquire(
                    blocking=left > 0, delay=0.005, timeout=left
                )
                keep = gotten and self._is_current(lock)
            except (OSError, threading.ThreadError) as err:
                # fasteners raises ThreadError if fcntl fails.
                raise exception.JournalError(
                    path=self.path, reason=f'cannot use lock folder: {err}'
                ) from err
            finally:
                # Closing a file drops all locks that the process has on it
                # (fcntl(2)). An open file that is left to the garbage
                # collector could drop the lock of a later holder.
                if not keep and lock.lockfile is not None:
                    lock.lockfile.close()
            if keep:
                return lock
            if not gotten:
                return None

    @staticmethod
    def _is_current(lock: lockutils.InterProcessLock) -> bool:
        try:
            there = os.stat(lock.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(lock.lockfile.fileno()))
