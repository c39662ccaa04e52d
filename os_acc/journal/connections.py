# SPDX-License-Identifier: Apache-2.0


"""The connections of this process to one journal."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import os
import sqlite3
import threading
from typing import TypeVar

from os_acc import exception
from os_acc.journal import database
from os_acc.journal import file as journal_file
from os_acc.journal import forking

_R = TypeVar('_R')

# Idle connections that are kept for the next use.
_IDLE = 4

# Connections that a fork left open. A child must not even close a connection
# of its parent (sqlite.org/howtocorrupt.html, 2.6).
_abandoned: list[sqlite3.Connection] = []


class Connections:
    """Opens connections when they are needed, and keeps some idle ones.

    Each use has its own connection, because sqlite's write-ahead log lets
    connections read while another one writes. Before each use, the file is
    compared with the one that was opened. If another journal has been put in
    its place, the new file is checked and used from then on.
    """

    def __init__(self, state_path: str, timeout: float) -> None:
        self.path = journal_file.path_in(state_path)
        self.timeout = timeout
        self._state_path = state_path
        self._closed = False
        self._mutex = threading.Lock()
        #: Held during a write: see store.Store.
        self.writing = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        #: The file that was checked, and that the idle connections have open.
        self._checked: database.Identity | None = None
        forking.register(self)

    def create(self) -> None:
        """Create or migrate the journal, or set a damaged one aside."""
        journal_file.prepare(self._state_path, self.timeout, create=True)
        self._checked = database.identity(self.path)

    def read(self, act: Callable[[sqlite3.Connection], _R]) -> _R:
        """Call act with a connection, and return its result.

        :param act: only reads, and fetches all rows before it returns
        """

        def attempt() -> _R:
            with self.use() as db:
                return act(db)

        return database.until_free(self.path, self.timeout, attempt)

    @contextlib.contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Give a connection to one thread. Do not wait inside the block.

        A fork waits until the block ends.
        """
        pid = os.getpid()
        with forking.in_use(self.path):
            db, identity = self._take()
            try:
                yield db
            except BaseException as err:
                # Closing a connection rolls back what it has not committed.
                if os.getpid() != pid:
                    _abandoned.append(db)
                    raise
                db.close()
                if isinstance(err, sqlite3.Error | exception.JournalError):
                    # The disk may be full: whoever closes the last connection
                    # deletes the write-ahead log.
                    self._close_idle()
                raise
            with self._mutex:
                keep = (
                    not self._closed
                    and self._checked == identity
                    and len(self._idle) < _IDLE
                )
                if keep:
                    self._idle.append(db)
            if not keep:
                db.close()

    def check_place(self) -> None:
        """Check that the journal is still the file that was opened."""
        if database.identity(self.path) != self._checked:
            raise database.error(
                self.path,
                'it was renamed or replaced during a write; the last write '
                'is in the old file',
            )

    def close(self) -> None:
        """Close all connections. Every later use raises JournalError."""
        with forking.in_use(self.path):
            with self._mutex:
                self._closed = True
            self._close_idle()

    def before_fork(self) -> None:
        self._close_idle()

    def after_fork_in_child(self, abandon: bool) -> None:
        self._mutex = threading.Lock()
        self.writing = threading.Lock()
        if abandon:
            _abandoned.extend(self._idle)
            self._idle = []

    def _close_idle(self) -> None:
        with self._mutex:
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    def _take(self) -> tuple[sqlite3.Connection, database.Identity]:
        if self._closed:
            raise database.error(self.path, 'it is closed')
        identity = database.identity(self.path)
        if identity is None or identity != self._checked:
            identity = self._check()
        with self._mutex:
            if self._idle and self._checked == identity:
                return self._idle.pop(), identity
        db = database.connect(self.path)
        if database.identity(self.path) != identity:
            # The file was replaced meanwhile, so either of the two files may
            # be open.
            db.close()
            return self._take()
        return db, identity

    def _check(self) -> database.Identity:
        """Check the journal's file if it is not the one opened before."""
        self._close_idle()
        try:
            journal_file.prepare(self._state_path, self.timeout, create=False)
        except exception.JournalMissing as err:
            if self._checked is None:
                raise
            raise database.error(
                self.path,
                'it was removed while in use. Put it back, or restart the '
                'service, which then starts with an empty journal',
            ) from err
        identity = database.identity(self.path)
        if identity is None:
            raise database.error(self.path, 'it has just been removed')
        with self._mutex:
            self._checked = identity
        return identity
