# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.


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
import functools
import os
import sqlite3
import time
from typing import Any
from typing import TypeVar

from os_acc import exception
from os_acc import sharing

# Seconds between two attempts: at first, and at most.
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.025

# Free bytes below which the disk counts as full: sqlite needs more for its
# files beside the journal.
_LITTLE = 64 * 1024

_R = TypeVar('_R')

#: The identity of a file: device number and inode. It survives a rename.
Identity = tuple[int, int]


def connect(path: str) -> sqlite3.Connection:
    """Open an existing file. The connection may pass between threads.

    :raises sqlite3.Error: if there is no such file, or sqlite cannot open it
    """
    # mode=rw never creates the file, even if it was removed meanwhile.
    db = sqlite3.connect(
        f'file:{_quote(path)}?mode=rw',
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
    )
    db.row_factory = sqlite3.Row
    # A text that is not UTF-8 must not make the other rows unreadable.
    db.text_factory = functools.partial(
        str, encoding='utf-8', errors='surrogateescape'
    )
    db.execute('PRAGMA synchronous = FULL')
    return db


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
    if isinstance(value, str):
        return value.encode('utf-8', 'backslashreplace').decode('utf-8')
    return value


def code(err: sqlite3.Error) -> int | None:
    """Return sqlite's primary result code; None if sqlite set none."""
    extended = getattr(err, 'sqlite_errorcode', None)
    return None if extended is None else extended & 0xFF


def error(path: str, reason: str) -> exception.JournalError:
    return exception.JournalError(path=path, reason=reason)


def until_free(path: str, timeout: float, act: Callable[[], _R]) -> _R:
    """Call act again until no lock of another connection stops it.

    :param timeout: seconds
    :raises JournalBusy: if another connection held a lock until the timeout
    :raises JournalError: if sqlite reports another error
    """
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        try:
            return act()
        except sqlite3.Error as err:
            if code(err) != sqlite3.SQLITE_BUSY:
                raise error(path, str(err)) from err
            left = deadline - time.monotonic()
            if left <= 0:
                raise exception.JournalBusy(
                    path=path, seconds=timeout
                ) from err
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)


def identity(path: str) -> Identity | None:
    """Return the identity of the file at a path; None if there is no file.

    :raises JournalError: if the path cannot be examined
    """
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
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        if text := sharing.hint(folder, path, f'{path}-wal', f'{path}-shm'):
            return text
        disk = os.statvfs(folder)
        if disk.f_bavail * disk.f_frsize < _LITTLE:
            return f'. The disk of {folder} is full'
    return ''


def _quote(path: str) -> str:
    """Quote a path for a file: URI of sqlite (sqlite.org/uri.html)."""
    for char, escape in (('%', '%25'), ('?', '%3f'), ('#', '%23')):
        path = path.replace(char, escape)
    return path
