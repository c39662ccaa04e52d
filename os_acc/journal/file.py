# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The journal's file: made whole, checked, migrated, set aside, rebuilt.

A damaged journal is never replaced on the quiet: it is set aside under
another name, and as long as such a file lies there without a journal beside
it, opening fails and says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import glob
import logging
import os
import sqlite3
import tempfile
import time

from os_acc import exception

LOG = logging.getLogger(__name__)

NAME = 'journal.db'
DAMAGED = '.damaged-'
REBUILT = '.rebuilt-'

#: Each brings the schema one version further; user_version counts them.
MIGRATIONS = [
    """
    CREATE TABLE van (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        uuid TEXT NOT NULL UNIQUE,
        instance_uuid TEXT NOT NULL,
        state TEXT NOT NULL,
        attached INTEGER NOT NULL,
        live INTEGER NOT NULL,
        boot_id TEXT NOT NULL,
        handle TEXT UNIQUE,
        device TEXT,
        error TEXT,
        updated_at TEXT NOT NULL,
        van TEXT NOT NULL,
        request TEXT NOT NULL,
        instance TEXT NOT NULL
    );
    CREATE INDEX van_instance ON van (instance_uuid);
    CREATE INDEX van_device ON van (device);
    """,
    """
    CREATE TABLE program (
        device TEXT NOT NULL,
        region TEXT NOT NULL,
        function_id TEXT,
        digest TEXT,
        state TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        error TEXT,
        updated_at TEXT NOT NULL,
        PRIMARY KEY (device, region)
    );
    """,
]

TABLES = ('van', 'program')

# Bytes: less than sqlite needs for its files beside the journal.
_LITTLE = 64 * 1024

_WAY_OUT = (
    'Run "os-acc --state-path {} recover --rebuild" to start a new one from '
    'what can still be read; then plug each instance again as before '
    '(nova-compute: restart it), which takes up what is still there.'
)


def error(path: str, reason: str) -> exception.JournalError:
    return exception.JournalError(path=path, reason=reason)


def code(err: sqlite3.Error) -> int | None:
    """sqlite's primary result code; None for an error of Python's module."""
    extended = getattr(err, 'sqlite_errorcode', None)
    return None if extended is None else extended & 0xFF


def connect(path: str, timeout: float) -> sqlite3.Connection:
    """Open an existing file for use by many threads under one mutex.

    :param timeout: seconds to wait for another writer
    """
    # mode=rw: never makes a file, whatever happened to it meanwhile.
    db = sqlite3.connect(
        f'file:{_quote(path)}?mode=rw',
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
    )
    db.row_factory = sqlite3.Row
    db.execute('PRAGMA synchronous = FULL')
    return db


def prepare(state_path: str, timeout: float, create: bool) -> str:
    """See to it that there is a sound journal.

    :param state_path: its folder
    :param create: make what is missing, set a damaged file aside
    :returns: the path of the file
    :raises JournalError: there is none to be had
    """
    path = os.path.join(state_path, NAME)
    if not _is_there(path):
        if damaged := _damaged(path):
            raise error(
                path,
                f'it was damaged and is set aside as {damaged[-1]}. '
                + _WAY_OUT.format(state_path),
            )
        if not create:
            raise exception.JournalMissing(path=path, reason='there is none')
        _create(path, timeout)
    try:
        problem = _check(path, timeout)
        if problem is None:
            if create:
                os.chmod(path, 0o600)
            _migrate(path, timeout, create)
    except (OSError, sqlite3.Error) as err:
        raise error(path, f'cannot open it: {err}{_hint(path)}') from err
    if problem is not None:
        if create:
            aside = set_aside(path, DAMAGED)
            problem += f'; set aside as {aside}. '
            problem += _WAY_OUT.format(state_path)
        LOG.critical('Journal %s is damaged: %s', path, problem)
        raise error(path, f'it is damaged: {problem}')
    return path


def _is_there(path: str) -> bool:
    """As os.path.exists, but what cannot be looked at is not absent.

    :raises JournalError: it cannot be looked at
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as err:
        raise error(path, f'cannot open it: {err}{_hint(path)}') from err
    return True


def _hint(path: str) -> str:
    """What sqlite's texts do not tell: whose it is, whether there is space."""
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        for place in (folder, path):
            if os.path.exists(place) and not os.access(
                place, os.R_OK | os.W_OK
            ):
                return (
                    f'. {place} belongs to user id {os.stat(place).st_uid}, '
                    f'and user id {os.geteuid()} may not read and write it'
                )
        disk = os.statvfs(folder)
        if disk.f_bavail * disk.f_frsize < _LITTLE:
            return f'. The disk of {folder} is full'
    return ''


def _create(
    path: str, timeout: float, fill: Callable[[str], None] | None = None
) -> None:
    """Make the file under another name and link it: there whole, or not.

    :param fill: puts rows into it, before it is linked
    """
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # mkstemp gives it 0600; sqlite's own files beside it follow suit.
        fd, new = tempfile.mkstemp(prefix=NAME + '.new-', dir=folder)
    except OSError as err:
        raise error(
            path,
            f'cannot make it: {err}. Make the folder and give it to user id '
            f'{os.geteuid()}, or set [os_acc] state_path',
        ) from err
    os.close(fd)
    try:
        db = connect(new, timeout)
        db.execute('PRAGMA journal_mode = WAL')
        db.close()
        _migrate(new, timeout)
        if fill is not None:
            fill(new)
        with contextlib.suppress(FileExistsError):
            # Another process may have made one meanwhile: then that is it.
            os.link(new, path)
        folder_fd = os.open(folder, os.O_RDONLY)
        os.fsync(folder_fd)
        os.close(folder_fd)
    except (OSError, sqlite3.Error) as err:
        raise error(path, f'cannot make it: {err}{_hint(path)}') from err
    finally:
        os.unlink(new)


def _check(path: str, timeout: float) -> str | None:
    """Say what is wrong with the file, or None."""
    try:
        with contextlib.closing(connect(path, timeout)) as db:
            found = db.execute('PRAGMA quick_check(1)').fetchone()[0]
            if found != 'ok':
                return str(found)
            version = db.execute('PRAGMA user_version').fetchone()[0]
            if version == 0:
                return 'it is empty'
    except sqlite3.DatabaseError as err:
        if code(err) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return str(err)
        raise
    return None


def _migrate(path: str, timeout: float, change: bool = True) -> None:
    """Bring the schema to the newest version, in one transaction.

    :param change: False: only see that it is the newest
    """
    with contextlib.closing(connect(path, timeout)) as db:
        newest = len(MIGRATIONS)
        (version,) = db.execute('PRAGMA user_version').fetchone()
        if version == newest:
            return
        if version > newest:
            raise error(
                path,
                f'its schema has version {version}, this os-acc knows '
                f'{newest}: a newer os-acc wrote it',
            )
        if not change:
            raise error(
                path,
                f'its schema has version {version}, this os-acc wants '
                f'{newest}: the service that uses it migrates it when it '
                'starts',
            )
        db.execute('BEGIN IMMEDIATE')
        (version,) = db.execute('PRAGMA user_version').fetchone()
        for script in MIGRATIONS[version:]:
            for statement in script.split(';'):
                db.execute(statement)
        db.execute(f'PRAGMA user_version = {newest}')
        db.execute('COMMIT')
        LOG.info('Journal %s: schema is version %d', path, newest)


def set_aside(path: str, suffix: str) -> str:
    """Rename the file, and what sqlite keeps beside it.

    :returns: the new name
    """
    new = f'{path}{suffix}{time.strftime("%Y%m%dT%H%M%S")}-{os.getpid()}'
    for end in ('-wal', '-shm', ''):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + end, new + end)
    return new


def rebuild(state_path: str, timeout: float) -> tuple[int, int]:
    """Start a new journal in place of one that was set aside as damaged.

    :returns: how many rows could be read from the damaged file and were
        taken over, and how many of them clash; what cannot be read cannot be
        counted
    :raises JournalError: there is a journal, or nothing was set aside
    """
    path = os.path.join(state_path, NAME)
    damaged = _damaged(path)
    if os.path.exists(path):
        raise error(path, 'it is there; nothing to rebuild')
    if not damaged:
        raise error(path, 'no damaged journal was set aside')
    kept = lost = 0

    def fill(new: str) -> None:
        nonlocal kept, lost
        with contextlib.closing(connect(new, timeout)) as db:
            db.execute('BEGIN IMMEDIATE')
            for table, row in _salvage(damaged[-1], timeout):
                marks = ', '.join('?' * len(row))
                try:
                    db.execute(
                        f'INSERT INTO {table} ({", ".join(row.keys())})'
                        f' VALUES ({marks})',
                        tuple(row),
                    )
                    kept += 1
                except sqlite3.Error as err:
                    lost += 1
                    LOG.error('A row of %s is lost: %s', damaged[-1], err)
            db.execute('COMMIT')

    _create(path, timeout, fill)
    for old in damaged:
        for end in ('-wal', '-shm', ''):
            with contextlib.suppress(FileNotFoundError):
                os.rename(old + end, old.replace(DAMAGED, REBUILT) + end)
    return kept, lost


def _damaged(path: str) -> list[str]:
    """What was set aside, the newest last; without sqlite's own files."""
    return sorted(glob.glob(glob.escape(path) + DAMAGED + '*[0-9]'))


def _salvage(path: str, timeout: float) -> list[tuple[str, sqlite3.Row]]:
    """The rows of a damaged file, up to where it cannot be read."""
    rows: list[tuple[str, sqlite3.Row]] = []
    for table in TABLES:
        with contextlib.suppress(sqlite3.Error):
            with contextlib.closing(connect(path, timeout)) as db:
                # Row by row: what comes before the damage is worth having.
                rows.extend(
                    (table, row)
                    for row in db.execute(
                        f'SELECT * FROM {table} ORDER BY rowid'
                    )
                )
    return rows


def _quote(path: str) -> str:
    """For a file: URI of sqlite (sqlite.org/uri.html)."""
    for char, code in (('%', '%25'), ('?', '%3f'), ('#', '%23')):
        path = path.replace(char, code)
    return path
