# SPDX-License-Identifier: Apache-2.0


"""The journal's use of sqlite3: connect, wait, and report errors.

No connection waits inside sqlite, because sqlite's busy timeout sleeps in C
and so stops all green threads of the process. until_free() waits in Python
instead.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import json
import os
import sqlite3
import time
from typing import Any
from typing import TypeVar

from os_acc import exception
from os_acc.state import files as state_files
from os_acc.state import sharing

# Seconds between two attempts: at first, and at most.
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.025

# Seconds to wait until another process has set the mode of sqlite's files.
_MODE_TIMEOUT = 1.0

# Free bytes below which the disk counts as full: sqlite needs more for its
# files beside the journal.
_LITTLE = 64 * 1024

_R = TypeVar('_R')

#: The identity of a file: device number and inode. It survives a rename.
Identity = tuple[int, int]


def connect(path: str) -> sqlite3.Connection:
    """Open an existing file. The connection may pass between threads."""
    _make_shm(path)
    # mode=rw never creates the file, even if it was removed meanwhile.
    # No cache of statements: a traceback that is taken while the connection is
    # made, by a __del__ or a signal handler, keeps the cache. Then close()
    # leaves the connection open (sqlite3_close_v2), and the next one of this
    # process fails with SQLITE_IOERR_SHORT_READ.
    db = sqlite3.connect(
        f'file:{_quote(path)}?mode=rw',
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=0,
    )
    db.row_factory = sqlite3.Row
    # A text that is not UTF-8 must not make the other rows unreadable.
    db.text_factory = functools.partial(
        str, encoding='utf-8', errors='surrogateescape'
    )
    db.execute('PRAGMA synchronous = FULL')
    return db


def _make_shm(path: str) -> None:
    """Make the file for sqlite's shared memory, if the directory is shared.

    sqlite makes it with the mode of the journal less the umask, and corrects
    the mode a moment later (os_unix.c, robust_open). If another user opens the
    file in between, all connections of that process can only read.
    """
    with contextlib.suppress(OSError):
        directory = os.path.dirname(path)
        if state_files.group_of(directory) is not None and os.path.exists(
            path
        ):
            state_files.make_file(f'{path}-shm')


def execute(
    db: sqlite3.Connection,
    statement: str,
    values: Mapping[str, Any] | Sequence[Any] = (),
) -> sqlite3.Cursor:
    """Execute a statement, after storable() has changed its values."""
    if isinstance(values, Mapping):
        return db.execute(
            statement, {name: storable(v) for name, v in values.items()}
        )
    return db.execute(statement, [storable(value) for value in values])


def storable(value: Any) -> Any:
    r"""Replace characters that UTF-8 cannot encode by escapes like \udc80.

    Python puts a lone surrogate in place of a byte that it cannot decode
    (PEP 383), for example in the name of a file in an error's text.
    """
    if isinstance(value, str) and not value.isascii():
        return value.encode('utf-8', 'backslashreplace').decode('utf-8')
    return value


def columns_of(record: Any) -> dict[str, Any]:
    """The columns of a dataclass that is a row; a tuple becomes JSON."""
    return {
        name: json.dumps(value) if isinstance(value, tuple) else value
        for name, value in vars(record).items()
    }


def read_all(
    db: sqlite3.Connection, table: str, cls: type[_R], order: str
) -> list[_R]:
    """Read a table that has the fields of a dataclass as columns.

    A newer os-acc may have added columns while this process runs.
    """
    record: Any = cls
    names = ', '.join(each.name for each in dataclasses.fields(record))
    rows = execute(db, f'SELECT {names} FROM {table} ORDER BY {order}')
    return [cls(*row) for row in rows]


def put(
    db: sqlite3.Connection,
    table: str,
    columns: Mapping[str, Any],
    conflict: str = 'REPLACE',
) -> None:
    """Write a row in place of the one with the same key.

    :param conflict: IGNORE: leave that one as it is
    """
    marks = ', '.join(f':{name}' for name in columns)
    execute(
        db,
        f'INSERT OR {conflict} INTO {table} ({", ".join(columns)})'
        f' VALUES ({marks})',
        columns,
    )


def has(
    db: sqlite3.Connection, table: str, columns: Mapping[str, Any]
) -> bool:
    """Whether a table has a row with these values."""
    where = ' AND '.join(f'{name} IS :{name}' for name in columns)
    found = execute(db, f'SELECT 1 FROM {table} WHERE {where}', columns)
    return found.fetchone() is not None


def delete(
    db: sqlite3.Connection, table: str, columns: Mapping[str, Any]
) -> bool:
    """Delete the rows with these values; returns whether there were any."""
    where = ' AND '.join(f'{name} IS :{name}' for name in columns)
    done = execute(db, f'DELETE FROM {table} WHERE {where}', columns)
    return done.rowcount > 0


def code(err: sqlite3.Error) -> int | None:
    """Return sqlite's primary result code; None if sqlite set none."""
    extended = getattr(err, 'sqlite_errorcode', None)
    return None if extended is None else extended & 0xFF


def said(err: BaseException) -> str:
    """Return the text of an error, of sqlite's with the name of its code.

    The text says only 'disk I/O error' for each of about thirty causes, which
    the name tells apart, such as SQLITE_IOERR_FSYNC (sqlite.org/rescode.html).
    """
    extended = getattr(err, 'sqlite_errorcode', None)
    if extended is None or extended == extended & 0xFF:
        return str(err)
    name = getattr(err, 'sqlite_errorname', extended)
    return f'{err} ({name})'


def error(path: str, reason: str) -> exception.JournalError:
    return exception.JournalError(path=path, reason=reason)


def until_free(
    path: str,
    timeout: float,
    act: Callable[[], _R],
    since: float | None = None,
) -> _R:
    """Call act again until no lock of another connection stops it.

    In a shared directory it also waits a moment if this process has found
    files of sqlite before another process has set their mode: see _make_shm().

    :param since: when they began, of time.monotonic(); None: now
    """
    start = time.monotonic() if since is None else since
    pause = _FIRST_PAUSE
    while True:
        try:
            return act()
        except sqlite3.Error as err:
            busy = code(err) == sqlite3.SQLITE_BUSY
            if not busy and not _may_pass(path, err):
                raise error(path, f'{said(err)}{hint(path)}') from err
            most = timeout if busy else min(timeout, _MODE_TIMEOUT)
            left = start + most - time.monotonic()
            if left <= 0 and busy:
                raise exception.JournalBusy(
                    path=path, seconds=timeout
                ) from err
            if left <= 0:
                raise error(path, f'{said(err)}{hint(path)}') from err
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _may_pass(path: str, err: sqlite3.Error) -> bool:
    """Say whether an error may come from a file without its mode yet."""
    if code(err) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        return False
    try:
        return state_files.group_of(os.path.dirname(path)) is not None
    except OSError:
        return False


def identity(path: str) -> Identity | None:
    """Return the identity of the file at a path; None if there is no file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        raise error(path, f'cannot open it: {err}{hint(path)}') from err
    return found.st_dev, found.st_ino


def hint(path: str) -> str:
    """Explain an error of sqlite: wrong user, or full disk.

    sqlite's own texts do not say this.

    :returns: a sentence to append to the error; empty if neither applies
    """
    directory = os.path.dirname(path)
    with contextlib.suppress(OSError):
        if text := sharing.hint(directory, path, f'{path}-wal', f'{path}-shm'):
            return text
        if why := full(directory):
            return f'. {why[0].upper()}{why[1:]}'
    return ''


def full(directory: str) -> str | None:
    """Say that the disk of a directory is full; None if it is not."""
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize < _LITTLE:
        return f'the disk of {directory} is full'
    return None


def _quote(path: str) -> str:
    """Quote a path for a file: URI of sqlite (sqlite.org/uri.html)."""
    for char, escape in (('%', '%25'), ('?', '%3f'), ('#', '%23')):
        path = path.replace(char, escape)
    return path
