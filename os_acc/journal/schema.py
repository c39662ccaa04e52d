# SPDX-License-Identifier: Apache-2.0


"""The journal's tables, and the migration of older files."""

from __future__ import annotations

import logging
import sqlite3

from os_acc.journal import database

LOG = logging.getLogger(__name__)

#: The fields of a VAN that have columns of their own. Only the columns have
#: them; the VAN's JSON does not.
VAN_COLUMNS = (
    'uuid',
    'instance_uuid',
    'state',
    'boot_id',
    'device',
    'error',
    'updated_at',
)

_HANDLE = '$."versioned_object.data".handle'
_CHANGES = '"versioned_object.changes"'


def _remove(column: str, *paths: str) -> str:
    """Return the SQL that takes values out of a column's JSON.

    A text that is no JSON stays as it is, and its row stays unreadable.
    """
    named = ', '.join(
        f"'{path}'"
        for path in (f'$.{_CHANGES}', f'{_HANDLE}.{_CHANGES}', *paths)
    )
    return (
        f'UPDATE van SET {column} = json_remove({column}, {named})'
        f' WHERE json_valid({column});'
    )


#: Removes from the JSON the fields that have columns, and the lists of changed
#: fields.
STRIP = '\n'.join(
    [
        _remove(
            'van',
            *(f'$."versioned_object.data".{name}' for name in VAN_COLUMNS),
        ),
        _remove('request'),
        _remove('instance'),
    ]
)

_NEW_UUID = """
    lower(
        hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-'
        || hex(randomblob(2)) || '-' || hex(randomblob(2)) || '-'
        || hex(randomblob(6))
    )
"""

#: Each migration raises the schema version by one. user_version in the file is
#: the number of migrations that were run.
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
    STRIP,
    """
    CREATE TABLE reserved (
        address TEXT PRIMARY KEY,
        device TEXT NOT NULL,
        since TEXT NOT NULL,
        reason TEXT NOT NULL
    );
    """,
    """
    ALTER TABLE program ADD COLUMN driver TEXT NOT NULL DEFAULT '';
    ALTER TABLE program ADD COLUMN chip TEXT;
    ALTER TABLE program ADD COLUMN address TEXT NOT NULL DEFAULT '';
    ALTER TABLE program ADD COLUMN serial TEXT;
    ALTER TABLE program ADD COLUMN handles TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE program ADD COLUMN announced INTEGER NOT NULL DEFAULT 1;
    CREATE TABLE health (
        device TEXT NOT NULL,
        cause TEXT NOT NULL,
        reason TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        since TEXT NOT NULL,
        driver TEXT NOT NULL,
        announced INTEGER NOT NULL,
        PRIMARY KEY (device, cause)
    );
    CREATE TABLE fatal_errors (
        device TEXT PRIMARY KEY,
        generation TEXT NOT NULL,
        count INTEGER NOT NULL
    );
    """,
    """
    CREATE TABLE event (
        seq INTEGER PRIMARY KEY,
        at TEXT NOT NULL,
        uid INTEGER NOT NULL,
        program TEXT NOT NULL,
        pid INTEGER NOT NULL,
        operation TEXT NOT NULL,
        step TEXT,
        result TEXT NOT NULL,
        seconds REAL,
        van_uuid TEXT,
        instance_uuid TEXT,
        instance_name TEXT,
        device TEXT,
        handle TEXT,
        extension TEXT,
        error TEXT,
        reason TEXT
    );
    CREATE TABLE measure (
        name TEXT NOT NULL,
        labels TEXT NOT NULL,
        value REAL NOT NULL,
        PRIMARY KEY (name, labels)
    );
    """,
    # Distinguishes this journal from others of the host, whatever their paths.
    f"""
    CREATE TABLE identity (
        row INTEGER PRIMARY KEY CHECK (row = 1),
        uuid TEXT NOT NULL,
        inode INTEGER
    );
    INSERT INTO identity VALUES (1, {_NEW_UUID}, NULL);
    """,
    'ALTER TABLE program ADD COLUMN cleaned INTEGER NOT NULL DEFAULT 0',
    """
    CREATE TABLE desired (
        document TEXT NOT NULL,
        settled TEXT
    );
    CREATE TABLE kept_vfs (
        pf TEXT PRIMARY KEY,
        number INTEGER NOT NULL
    );
    """,
    """
    CREATE TABLE demand (
        resource_class TEXT NOT NULL,
        traits TEXT NOT NULL,
        function_id TEXT NOT NULL,
        count INTEGER NOT NULL,
        first_at TEXT NOT NULL,
        last_at TEXT NOT NULL,
        PRIMARY KEY (resource_class, traits, function_id)
    );
    """,
]

TABLES = (
    'van',
    'program',
    'reserved',
    'health',
    'fatal_errors',
    'event',
    'measure',
    'identity',
    'desired',
    'kept_vfs',
    'demand',
)


def migrate(db: sqlite3.Connection, path: str, change: bool = True) -> None:
    """Bring the schema to the newest version, in one transaction.

    :param change: False: only check that the schema is the newest
    """
    newest = len(MIGRATIONS)
    (version,) = db.execute('PRAGMA user_version').fetchone()
    if version == newest:
        return
    if version > newest:
        raise database.error(
            path,
            f'its schema has version {version}, this os-acc knows '
            f'{newest}: a newer os-acc wrote it',
        )
    if not change:
        raise database.error(
            path,
            f'its schema has version {version}, this os-acc needs '
            f'{newest}: the service that uses the journal migrates it '
            'when the service starts',
        )
    db.execute('BEGIN IMMEDIATE')
    # Another process may have migrated it before this one could write.
    (version,) = db.execute('PRAGMA user_version').fetchone()
    for script in MIGRATIONS[version:]:
        for statement in script.split(';'):
            db.execute(statement)
    db.execute(f'PRAGMA user_version = {newest}')
    db.execute('COMMIT')
    LOG.info('Journal %s: schema is version %d', path, newest)


def tell_from_copies(db: sqlite3.Connection, inode: int) -> None:
    """Give a journal another UUID if its file is a copy of another file.

    Containers that are made from one image can have copies of a journal in it.
    """
    query = 'SELECT 1 FROM identity WHERE inode IS NOT ?'
    if db.execute(query, (inode,)).fetchone() is None:
        return
    db.execute('BEGIN IMMEDIATE')
    db.execute(
        f'UPDATE identity SET uuid = {_NEW_UUID}'
        ' WHERE inode IS NOT NULL AND inode IS NOT ?',
        (inode,),
    )
    db.execute('UPDATE identity SET inode = ?', (inode,))
    db.execute('COMMIT')
