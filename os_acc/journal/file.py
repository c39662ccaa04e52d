# SPDX-License-Identifier: Apache-2.0


"""Creates, checks, migrates, sets aside and rebuilds the journal's file.

A damaged journal is never replaced silently. A process that may change it
renames it ("sets it aside"). Whether it is renamed or not, opening it fails
with one error that says what to do, until rebuild() has made a new journal.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import glob
import logging
import os
import shlex
import sqlite3
import time
from typing import NamedTuple

from oslo_config import cfg

from os_acc import exception
from os_acc.journal import database
from os_acc.journal import forking
from os_acc.journal import schema
from os_acc.state import files as state_files
from os_acc.state import sharing

LOG = logging.getLogger(__name__)

NAME = 'journal.db'
DAMAGED = '.damaged-'
REBUILT = '.rebuilt-'

# The files that sqlite keeps beside the file of a journal.
_BESIDE = ('-wal', '-shm')


def _remedy(state_path: str) -> str:
    """Say what to do about a damaged journal.

    The command names the configuration of this process.
    """
    command = ['os-acc']
    for option in ('config_file', 'config_dir'):
        # cfg.CONF has neither before it has read the configuration.
        for path in getattr(cfg.CONF, option, None) or ():
            command += ['--' + option.replace('_', '-'), path]
    command += ['--state-path', state_path, 'recover', '--rebuild']
    return (
        f'Run "{shlex.join(command)}" to start a new journal '
        'from what can still be read. Then plug each instance again with the '
        'same requests as before (for Nova: restart nova-compute).'
    )


class Rebuilt(NamedTuple):
    """What rebuild() did.

    :ivar vans: number of rows of VANs that were copied
    :ivar programs: number of records of programmed devices that were copied
    :ivar lost: number of rows that could be read but not copied, because they
        conflict with other rows
    """

    vans: int
    programs: int
    lost: int


def path_in(state_path: str) -> str:
    """Return the path of the journal's file in its directory."""
    return os.path.join(state_path, NAME)


def prepare(state_path: str, timeout: float, create: bool) -> None:
    """Check that there is an undamaged journal.

    :param create: True: also create or migrate the journal, set its mode (see
        state_files), and set a damaged one aside; False: change nothing
    """
    path = path_in(state_path)
    with forking.in_use(path):
        found = database.identity(path)
        if found is None:
            if damaged := _damaged(path):
                raise database.error(
                    path,
                    f'it was damaged and was set aside as {damaged[-1]}. '
                    + _remedy(state_path),
                )
            if not create:
                raise exception.JournalMissing(
                    path=path, reason='it does not exist'
                )
            _create(path)
            found = database.identity(path)
        problem = _examine(
            path, timeout, lambda db: _migrate(db, path, create)
        )
        if problem is not None:
            if database.identity(path) != found:
                # Another process has set the damaged file aside meanwhile,
                # and may have rebuilt the journal.
                prepare(state_path, timeout, create)
                return
            if create:
                aside = _set_damaged_aside(path)
                problem += f'; set aside as {aside}'
            LOG.critical('Journal %s is damaged: %s', path, problem)
            raise database.error(
                path, f'it is damaged: {problem}. {_remedy(state_path)}'
            )


def _examine(
    path: str, timeout: float, go_on: Callable[[sqlite3.Connection], None]
) -> str | None:
    """Return what is wrong with the file; None if it is undamaged.

    :param go_on: called with the connection if it is undamaged
    """

    # Each statement can find the file locked, also the first: a process that
    # closes the last connection locks it for a moment.
    def act() -> str | None:
        with contextlib.ExitStack() as stack:
            try:
                db = database.connect(path)
                stack.enter_context(contextlib.closing(db))
                problem = _check(db)
            except sqlite3.DatabaseError as err:
                if database.code(err) in (
                    sqlite3.SQLITE_CORRUPT,
                    sqlite3.SQLITE_NOTADB,
                ):
                    return str(err)
                if database.code(err) != sqlite3.SQLITE_BUSY:
                    raise _cannot('open', path, err) from err
                raise
            if problem is None:
                go_on(db)
            return problem

    try:
        return database.until_free(path, timeout, act)
    except (OSError, sqlite3.Error) as err:
        raise _cannot('open', path, err) from err


def _migrate(db: sqlite3.Connection, path: str, change: bool) -> None:
    """Check the schema of an undamaged file; change: make it the newest."""
    if change:
        # sqlite gives the files beside it the mode of the journal only when
        # it makes them.
        for end in ('', *_BESIDE):
            state_files.repair(path + end)
    schema.migrate(db, path, change)
    if change and (found := database.identity(path)) is not None:
        schema.tell_from_copies(db, found[1])


def _set_damaged_aside(path: str) -> str:
    try:
        return set_aside(path, DAMAGED)
    except OSError as err:
        raise _cannot('rename', path, err) from err


def _cannot(
    verb: str, path: str, err: BaseException
) -> exception.JournalError:
    return database.error(
        path, f'cannot {verb} it: {database.said(err)}{database.hint(path)}'
    )


def _create(
    path: str, fill: Callable[[sqlite3.Connection], None] | None = None
) -> None:
    """Create the journal's file.

    The file gets another name first and is linked when it is complete, so
    that no other process sees a part of it.

    :param fill: inserts rows before the file is linked
    """
    _refuse_leftovers(path)
    directory = os.path.dirname(path)
    try:
        state_files.make_directory(directory)
        # sqlite's own files beside it get the same mode.
        fd, new = state_files.new_file(directory, NAME + state_files.NEW)
    except OSError as err:
        raise database.error(
            path,
            f'cannot create it: {err}{sharing.hint(directory)}. Create the '
            f'directory and give it to user id {os.geteuid()}, or set '
            '[os_acc] state_path',
        ) from err
    os.close(fd)
    try:
        with contextlib.closing(database.connect(new)) as db:
            db.execute('PRAGMA journal_mode = WAL')
            schema.migrate(db, new)
            if fill is not None:
                fill(db)
        with contextlib.suppress(FileExistsError):
            # If another process was faster, use its file.
            os.link(new, path)
        directory_fd = os.open(directory, os.O_RDONLY)
        os.fsync(directory_fd)
        os.close(directory_fd)
    except (OSError, sqlite3.Error) as err:
        raise _cannot('create', path, err) from err
    finally:
        os.unlink(new)


def _refuse_leftovers(path: str) -> None:
    """Check that no rows of a removed journal are beside a missing one.

    sqlite would write them into a new journal, and damage it.
    """
    for end in ('-wal', '-journal'):
        # Another process may have created the journal just now. Then the file
        # belongs to it, so look for the journal last.
        if os.path.exists(path + end) and database.identity(path) is None:
            raise database.error(
                path,
                f'it does not exist, but {path + end} of an earlier journal '
                'does. Put the earlier journal back beside it, or move '
                f'{path + end} away to start with an empty journal',
            )


def _check(db: sqlite3.Connection) -> str | None:
    """Return what is wrong with the file; None if it is undamaged."""
    found = db.execute('PRAGMA quick_check(1)').fetchone()[0]
    if found != 'ok':
        return str(found)
    version = db.execute('PRAGMA user_version').fetchone()[0]
    return 'it is empty' if version == 0 else None


def set_aside(path: str, suffix: str) -> str:
    """Rename the file, and the files that sqlite keeps beside it.

    The other files are linked first and their old names are removed last. If
    the process is killed in between, the file always has them beside it.
    """
    new = f'{path}{suffix}{time.strftime("%Y%m%dT%H%M%S")}-{os.getpid()}'
    for end in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.link(path + end, new + end)
    os.rename(path, new)
    _remove_links(path, new)
    return new


def _remove_links(path: str, aside: str) -> None:
    """Remove the old names of the files beside one that was set aside."""
    for end in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samefile(path + end, aside + end):
                os.unlink(path + end)


def rebuild(state_path: str, timeout: float) -> Rebuilt:
    """Start a new journal in place of a damaged one.

    A damaged journal that nobody has set aside yet is set aside first.

    :returns: how many rows were copied and how many were lost; rows that
        cannot be read are not counted
    """
    path = path_in(state_path)
    _leave_no_journal(path, timeout)
    damaged = _damaged(path)
    if not damaged:
        raise database.error(path, 'no damaged journal was set aside')
    kept = dict.fromkeys(schema.TABLES, 0)
    lost = 0

    def fill(db: sqlite3.Connection) -> None:
        nonlocal lost
        db.execute('BEGIN IMMEDIATE')
        for table, row in _salvage(damaged[-1], timeout):
            marks = ', '.join('?' * len(row))
            # The new file has an identity already.
            how = 'REPLACE' if table == 'identity' else 'ABORT'
            try:
                db.execute(
                    f'INSERT OR {how} INTO {table}'
                    f' ({", ".join(row.keys())})'
                    f' VALUES ({marks})',
                    tuple(row),
                )
                kept[table] += 1
            except sqlite3.Error as err:
                lost += 1
                LOG.error('A row of %s is lost: %s', damaged[-1], err)
        # It is another file, but no copy.
        db.execute('UPDATE identity SET inode = NULL')
        # The damaged file may have had an older schema.
        for statement in schema.STRIP.split(';'):
            db.execute(statement)
        db.execute('COMMIT')

    with forking.in_use(path):
        for old in damaged:
            # The process that set it aside may have been killed.
            _remove_links(path, old)
        _create(path, fill)
        for old in damaged:
            for end in (*_BESIDE, ''):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(old + end, old.replace(DAMAGED, REBUILT) + end)
    return Rebuilt(kept['van'], kept['program'], lost)


def _leave_no_journal(path: str, timeout: float) -> None:
    """Set a damaged journal aside that only readers have seen."""
    with forking.in_use(path):
        found = database.identity(path)
        if found is None:
            return
        if _examine(path, timeout, lambda db: None) is None:
            raise database.error(
                path, 'it is not damaged, so there is nothing to rebuild'
            )
        # Another process may have rebuilt it meanwhile.
        if database.identity(path) == found:
            _set_damaged_aside(path)


def _damaged(path: str) -> list[str]:
    """List the journals that were set aside, newest last.

    The files that sqlite kept beside them are left out.
    """
    return sorted(glob.glob(glob.escape(path) + DAMAGED + '*[0-9]'))


def _salvage(path: str, timeout: float) -> list[tuple[str, sqlite3.Row]]:
    """Read the rows of a damaged file, each table up to its first error."""

    def read(table: str) -> list[tuple[str, sqlite3.Row]]:
        rows: list[tuple[str, sqlite3.Row]] = []
        try:
            with contextlib.closing(database.connect(path)) as db:
                # Reading row by row keeps the rows before the damage.
                rows.extend(
                    (table, row)
                    for row in db.execute(
                        f'SELECT * FROM {table} ORDER BY rowid'
                    )
                )
        except sqlite3.Error as err:
            # A locked file is not damaged: a later attempt can read it.
            if database.code(err) == sqlite3.SQLITE_BUSY:
                raise
        return rows

    found = []
    for table in schema.TABLES:
        found += database.until_free(
            path, timeout, functools.partial(read, table)
        )
    return found
