# SPDX-License-Identifier: Apache-2.0


"""Group commit: writes of several threads share one transaction.

A commit waits for the disk, which takes longer than the rest of a write. So
the first thread that writes becomes the leader: it begins a transaction, does
its own write and the writes of all threads that are waiting by then, and
commits once. A thread that arrives during the commit waits for the next one.

Each write has its own savepoint, so a write that fails does not undo the
others. All threads return when the commit is on the disk, or raise an error.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import sqlite3
import threading
import time
from typing import Any
from typing import TypeVar

from os_acc import exception
from os_acc.journal import connections
from os_acc.journal import database
from os_acc.journal import forking

_R = TypeVar('_R')


@dataclasses.dataclass(eq=False)
class _Write:
    """One thread's part of a transaction.

    :ivar done: the write is on the disk, or has failed with an error
    :ivar left: its thread has left write(), so nobody waits for it
    """

    act: Callable[[sqlite3.Connection], Any]
    is_there: Callable[[sqlite3.Connection], bool]
    done: bool = False
    left: bool = False
    result: Any = None
    error: BaseException | None = None


@dataclasses.dataclass
class _Batch:
    """The writes of one transaction.

    :ivar committing: the commit has begun, so the writes may be on the disk
    :ivar settled: each write is on the disk or has an error
    """

    writes: list[_Write] = dataclasses.field(default_factory=list)
    committing: bool = False
    settled: bool = False


class Commits:
    """Writes to one journal, from many threads.

    :param connected: the connections to the journal
    """

    def __init__(self, connected: connections.Connections) -> None:
        self._connections = connected
        self._path = connected.path
        self._timeout = connected.timeout
        self._begin()
        forking.register(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[_Write] = []
        self._leader: _Write | None = None

    def before_fork(self) -> None:
        """Do nothing: the connections close themselves."""

    def after_fork_in_child(self, abandon: bool) -> None:
        """Forget the other threads, which are not in the child."""
        self._begin()

    def write(
        self,
        act: Callable[[sqlite3.Connection], _R],
        is_there: Callable[[sqlite3.Connection], bool],
    ) -> _R:
        """Do a write. It is on the disk when this method returns.

        :param act: executes the statements. It may be called in another
            thread, and again after an interrupt, so it must change nothing
            but the journal
        :param is_there: returns whether the journal has what act writes. It
            is called if a commit reports an error but may have succeeded
        :returns: the result of act
        :raises JournalBusy: if another process was writing until the timeout
        :raises JournalError: if the write failed; the journal does not have
            it then, unless the error says that it may be on the disk
        """
        write = _Write(act, is_there)
        batch = _Batch()
        try:
            if self._is_to_lead(write):
                self._lead(write, batch)
        finally:
            self._leave(write, batch)
        if write.error is not None:
            raise write.error
        result: _R = write.result
        return result

    def _is_to_lead(self, write: _Write) -> bool:
        """Wait until a write is done (False), or has to lead (True)."""
        deadline = time.monotonic() + self._timeout
        with self._changed:
            self._waiting.append(write)
            while self._leader is not None and not write.done:
                left: float | None = deadline - time.monotonic()
                if write not in self._waiting:
                    # A leader has begun its transaction, which will end.
                    left = None
                elif left is not None and left <= 0:
                    raise exception.JournalBusy(
                        path=self._path, seconds=self._timeout
                    )
                self._changed.wait(left)
            if not write.done:
                self._leader = write
            return not write.done

    def _leave(self, own: _Write, batch: _Batch) -> None:
        """Tell the threads of a batch the results, and let another one lead.

        :param batch: the writes that own's thread did; empty if it did not
            lead
        """
        with self._changed:
            own.left = True
            for write in batch.writes:
                # If this thread was interrupted, it may not have set all
                # results. No thread may take a lost write for a done one.
                if not batch.settled and write.error is None:
                    write.error = self._interrupted()
                write.done = True
            self._waiting = [
                w for w in self._waiting if w is not own and not w.done
            ]
            if self._leader is own:
                self._leader = None
            self._changed.notify_all()

    def _interrupted(self) -> exception.JournalError:
        return database.error(
            self._path,
            'the thread that did this write was interrupted; the write may '
            'be on the disk',
        )

    def _lead(self, own: _Write, batch: _Batch) -> None:
        try:
            database.until_free(
                self._path, self._timeout, lambda: self._transact(batch)
            )
        except BaseException as err:
            self._fail(batch, own, err)
        batch.settled = True

    def _transact(self, batch: _Batch) -> None:
        """Do all writes that are waiting now, in one transaction."""
        with self._connections.use() as db:
            db.execute('BEGIN IMMEDIATE')
            with self._changed:
                batch.writes, self._waiting = self._waiting, []
            try:
                for write in batch.writes:
                    self._attempt(db, write)
                batch.committing = True
                db.execute('COMMIT')
                self._connections.check_place()
            except sqlite3.Error as err:
                raise database.error(self._path, str(err)) from err

    def _attempt(self, db: sqlite3.Connection, write: _Write) -> None:
        db.execute('SAVEPOINT one')
        try:
            write.result = write.act(db)
        except Exception as err:
            if not db.in_transaction:
                # sqlite has rolled back the whole transaction, as it may do
                # when the disk is full.
                raise
            db.execute('ROLLBACK TO one')
            write.error = err
            if isinstance(err, sqlite3.Error):
                write.error = database.error(self._path, str(err))
                write.error.__cause__ = err
        db.execute('RELEASE one')

    def _fail(self, batch: _Batch, own: _Write, err: BaseException) -> None:
        """Set the results of the writes of a transaction that failed.

        :param err: the error, or the exception that interrupted this thread
        """
        there: list[_Write] = []
        if batch.committing:
            there = self._find(batch.writes)
        again: list[_Write] = []
        for write in batch.writes:
            if write.error is not None or write in there:
                continue
            if isinstance(err, Exception):
                write.error = database.error(
                    self._path,
                    str(getattr(err, 'kwargs', {}).get('reason', err)),
                )
                write.error.__cause__ = err
            elif write is not own:
                # Only this thread is interrupted. Another thread becomes the
                # leader and does the write.
                again.append(write)
        with self._changed:
            # If a thread was interrupted while it waited, its caller may have
            # undone the write by now.
            again = [write for write in again if not write.left]
            self._waiting = again + self._waiting
            batch.writes = [w for w in batch.writes if w not in again]
        if own not in batch.writes or not isinstance(err, Exception):
            own.error = err

    def _find(self, writes: list[_Write]) -> list[_Write]:
        """Return the writes that the journal has in spite of the error."""
        try:
            return self._connections.read(
                lambda db: [write for write in writes if write.is_there(db)]
            )
        except exception.JournalError:
            return []
