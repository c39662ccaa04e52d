# SPDX-License-Identifier: Apache-2.0


"""Writes to the journal: one thread of this process at a time."""

from __future__ import annotations

from collections.abc import Callable
import sqlite3
import threading
import time
from typing import TypeVar

from os_acc import exception
from os_acc.journal import connections
from os_acc.journal import database
from os_acc.journal import forking

_R = TypeVar('_R')


class Commits:
    """Writes to one journal, from many threads.

    sqlite lets one connection write at a time, and lets those who wait try
    again after pauses. Threads of one process need no pauses: they wait for a
    mutex.

    :param connected: the connections to the journal
    """

    def __init__(self, connected: connections.Connections) -> None:
        self._connections = connected
        self._path = connected.path
        self._timeout = connected.timeout
        self._mutex = threading.Lock()
        forking.register(self)

    def before_fork(self) -> None:
        """Do nothing: the connections close themselves."""

    def after_fork_in_child(self, abandon: bool) -> None:
        """Forget the other threads, which are not in the child."""
        self._mutex = threading.Lock()

    def write(
        self,
        act: Callable[[sqlite3.Connection], _R],
        is_there: Callable[[sqlite3.Connection], bool],
    ) -> _R:
        """Do a write. It is on the disk when this method returns.

        :param act: executes the statements. It may be called again, so it
            must change nothing but the journal
        :param is_there: returns whether the journal has what act writes. It
            is called if a commit reports an error but may have succeeded
        :returns: the result of act
        :raises JournalBusy: if others were writing until the timeout
        :raises JournalError: if the write failed; the journal does not have
            it then
        """
        start = time.monotonic()
        mutex = self._mutex  # a child that is forked meanwhile has another
        if not mutex.acquire(timeout=self._timeout):
            raise exception.JournalBusy(path=self._path, seconds=self._timeout)
        try:
            return database.until_free(
                self._path,
                self._timeout,
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
                        self._path, database.said(err)
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
