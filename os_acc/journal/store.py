# SPDX-License-Identifier: Apache-2.0

"""Reads the file of a journal, and writes to it in commits."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import logging
import sqlite3
from typing import TypeVar

from os_acc import exception
from os_acc import objects
from os_acc.journal import commits
from os_acc.journal import connections
from os_acc.journal import database
from os_acc.journal import events as event_rows
from os_acc.journal import history

LOG = logging.getLogger(__name__)

_R = TypeVar('_R')


class Store:
    """The file of the journal of one state path.

    It may be used from many threads (native or green) and across forks: each
    process opens its own connections when it needs them.

    :param state_path: the journal's directory
    :param timeout: seconds to wait for another writer
    :param read_only: True: never change the rows or the file, and open the
        file only when something is read; while there is no file, the journal
        reads as empty. False: create or migrate the file, and set a damaged
        one aside
    :param program: the program or service that this process is, for events
    :raises JournalError: if the journal cannot be opened; the error says why
        and what to do
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
        self._commits = commits.Commits(self._connections)
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
            return self._commits.write(act, is_there)

        def with_events(db: sqlite3.Connection) -> _R:
            result = act(db)
            history.write(db, self._program, events)
            return result

        try:
            return self._commits.write(with_events, is_there)
        except exception.JournalBusy:
            raise
        except exception.JournalError as err:
            # Without them it may fit on a disk that is full.
            LOG.warning(
                'Written again without its %d events: %s', len(events), err
            )
            return self._commits.write(act, is_there)
