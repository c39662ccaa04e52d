# SPDX-License-Identifier: Apache-2.0

"""Reads the file of a journal, and writes to it in commits."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import logging
import sqlite3
import time
from typing import TypeVar

from os_acc import exception
from os_acc import objects
from os_acc.journal import connections
from os_acc.journal import database
from os_acc.journal import events as event_rows

LOG = logging.getLogger(__name__)

_R = TypeVar('_R')


class Store:
    """The file of the journal of one state path.

    It may be used from many threads (native or green) and across forks: each
    process opens its own connections when it needs them.

    :param read_only: True: never change the rows or the file, and open the
        file only when something is read; while there is no file, the journal
        reads as empty. False: create or migrate the file, and set a damaged
        one aside
    """

    def __init__(
        self,
        state_path: str,
        timeout: float,
        read_only: bool = False,
        program: str = '',
    ) -> None:
        objects.register_all()
        self.read_only = read_only
        self._program = program
        self._connections = connections.Connections(state_path, timeout)
        self.path = self._connections.path
        if not read_only:
            self._connections.create()

    def close(self) -> None:
        """Close the connections. Every later call raises JournalError."""
        self._connections.close()

    def exists(self) -> bool:
        """Return whether there is a journal."""
        return database.identity(self.path) is not None

    def _select(
        self, act: Callable[[sqlite3.Connection], list[_R]]
    ) -> list[_R]:
        try:
            return self._connections.read(act)
        except exception.JournalMissing:
            if not self.read_only:
                raise
            return []

    def _commit(
        self,
        act: Callable[[sqlite3.Connection], _R],
        is_there: Callable[[sqlite3.Connection], bool],
        events: Sequence[event_rows.Event] = (),
    ) -> _R:
        """Write to the journal.

        :param events: written by the same commit, if that is possible
        """
        if self.read_only:
            raise database.error(self.path, 'it was opened for reading only')
        if not events:
            return self._in_transaction(act, is_there)

        def with_events(db: sqlite3.Connection) -> _R:
            result = act(db)
            event_rows.write_events(db, self._program, events)
            return result

        try:
            return self._in_transaction(with_events, is_there)
        except exception.JournalBusy:
            raise
        except exception.JournalError as err:
            if not isinstance(err.__cause__, sqlite3.Error):
                raise
            # Without them it may fit on a disk that is full.
            LOG.warning(
                'Written again without its %d events: %s', len(events), err
            )
            return self._in_transaction(act, is_there)

    def _in_transaction(
        self,
        act: Callable[[sqlite3.Connection], _R],
        is_there: Callable[[sqlite3.Connection], bool],
    ) -> _R:
        """Do a write. It is on the disk when this method returns.

        sqlite lets one connection write at a time, and lets those who wait try
        again after pauses. Threads of one process need no pauses: they wait
        for a mutex.

        :param act: executes the statements. It may be called again, so it
            must change nothing but the journal
        :param is_there: returns whether the journal has what act writes. It
            is called if a commit reports an error but may have succeeded
        :raises JournalError: if the write failed; the journal does not have
            it then
        """
        start = time.monotonic()
        timeout = self._connections.timeout
        # A child that is forked meanwhile has another one.
        mutex = self._connections.writing
        if not mutex.acquire(timeout=timeout):
            raise exception.JournalBusy(path=self.path, seconds=timeout)
        try:
            return database.until_free(
                self.path,
                timeout,
                lambda: self._transact(act, is_there),
                start,
            )
        finally:
            mutex.release()

    def _transact(
        self,
        act: Callable[[sqlite3.Connection], _R],
        is_there: Callable[[sqlite3.Connection], bool],
    ) -> _R:
        committing = False
        try:
            with self._connections.use() as db:
                db.execute('BEGIN IMMEDIATE')
                try:
                    result = act(db)
                    committing = True
                    db.execute('COMMIT')
                    self._connections.check_place()
                except sqlite3.Error as err:
                    raise database.error(
                        self.path, database.said(err)
                    ) from err
        except exception.JournalError:
            if not (committing and self._is_there(is_there)):
                raise
        return result

    def _is_there(
        self, is_there: Callable[[sqlite3.Connection], bool]
    ) -> bool:
        """Whether the journal has a write in spite of an error."""
        try:
            return bool(self._connections.read(lambda db: [is_there(db)])[0])
        except exception.JournalError:
            return False
