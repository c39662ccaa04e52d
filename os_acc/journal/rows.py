# SPDX-License-Identifier: Apache-2.0


"""The SQL for the rows of VANs. Callers begin and commit transactions."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import sqlite3
from typing import Any

from os_acc import exception
from os_acc.journal import database
from os_acc.objects import van as van_states
from os_acc.state import instance_names

#: What selects a VAN's row: the UUIDs of the VAN and of its instance.
VanKey = tuple[str, str]
_KEY = ('uuid', 'instance_uuid')

# Where the JSON of the instance has its process.
_PROCESS = 'json_extract(instance, \'$."versioned_object.data".process\')'

# The most placeholders in one statement. SQLITE_MAX_VARIABLE_NUMBER is 999 in
# sqlite before 3.32.
_MOST = 500


def select(
    db: sqlite3.Connection,
    where: str = '1',
    *values: str,
    columns: Sequence[str] = ('*',),
) -> list[sqlite3.Row]:
    """Read rows in the order in which they were added."""
    return database.execute(
        db,
        f'SELECT {", ".join(columns)} FROM van WHERE {where} ORDER BY seq',
        values,
    ).fetchall()


def unsettled(db: sqlite3.Connection, boot_id: str) -> list[str]:
    """List the instances with half-done VANs, or VANs of another boot."""
    rows = database.execute(
        db,
        'SELECT instance_uuid, min(seq) FROM van'
        ' WHERE state <> ? OR boot_id <> ?'
        ' GROUP BY instance_uuid ORDER BY 2',
        (van_states.PLUGGED, boot_id),
    )
    return [row['instance_uuid'] for row in rows]


def identity(db: sqlite3.Connection) -> list[str]:
    """Read the UUID of the journal: one, or none from a damaged file."""
    rows = database.execute(db, 'SELECT uuid FROM identity')
    return [row['uuid'] for row in rows]


def instances(db: sqlite3.Connection) -> list[str]:
    """List the instances that have VANs, the oldest first."""
    rows = database.execute(
        db,
        'SELECT instance_uuid FROM van GROUP BY instance_uuid'
        ' ORDER BY min(seq)',
    )
    return [row['instance_uuid'] for row in rows]


def kept(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """List the instances that are processes: UUID and process."""
    rows = database.execute(
        db,
        f'SELECT DISTINCT instance_uuid, {_PROCESS} AS process FROM van'
        f' WHERE CASE WHEN json_valid(instance) THEN {_PROCESS} END'
        ' IS NOT NULL ORDER BY instance_uuid',
    )
    return [(row['instance_uuid'], str(row['process'])) for row in rows]


def insert(db: sqlite3.Connection, row: Mapping[str, Any]) -> None:
    """Add a row.

    :raises DeviceBusy: if another row has the same handle or VAN UUID
    """
    names = ', '.join(row)
    marks = ', '.join(f':{name}' for name in row)
    try:
        database.execute(
            db, f'INSERT INTO van ({names}) VALUES ({marks})', row
        )
    except sqlite3.IntegrityError as err:
        raise _busy(db, row) from err


def update(db: sqlite3.Connection, path: str, row: Mapping[str, Any]) -> None:
    """Change columns of a row.

    :param row: the new values; uuid and instance_uuid select the row
    """
    try:
        done = _set(db, row, [name for name in row if name not in _KEY])
    except sqlite3.IntegrityError as err:
        raise _busy(db, row) from err
    if done.rowcount != 1:
        raise database.error(path, f'it no longer has VAN {row["uuid"]}')


def _set(
    db: sqlite3.Connection, row: Mapping[str, Any], names: Iterable[str]
) -> sqlite3.Cursor:
    """Change columns of the row that uuid and instance_uuid select."""
    sets = ', '.join(f'{name} = :{name}' for name in names)
    return database.execute(
        db,
        f'UPDATE van SET {sets} WHERE uuid = :uuid'
        ' AND instance_uuid = :instance_uuid',
        row,
    )


def change(db: sqlite3.Connection, van: VanKey, **columns: Any) -> None:
    """Change columns of a VAN's row, if there is one.

    If the VAN belongs to another instance by now, its row stays as it is.
    """
    uuid, instance_uuid = van
    _set(
        db,
        {**columns, 'uuid': uuid, 'instance_uuid': instance_uuid},
        columns,
    )


def delete(db: sqlite3.Connection, released: Iterable[VanKey]) -> None:
    """Delete rows.

    If the VAN belongs to another instance by now, its row stays.
    """
    db.executemany(
        'DELETE FROM van WHERE uuid = ? AND instance_uuid = ?', released
    )


def find(db: sqlite3.Connection, uuids: Sequence[str]) -> list[sqlite3.Row]:
    """Read uuid, instance_uuid and updated_at of the VANs that have a row."""
    found: list[sqlite3.Row] = []
    for start in range(0, len(uuids), _MOST):
        part = uuids[start : start + _MOST]
        marks = ', '.join('?' * len(part))
        found += db.execute(
            'SELECT uuid, instance_uuid, updated_at FROM van'
            f' WHERE uuid IN ({marks})',
            part,
        )
    return found


def called(row: sqlite3.Row) -> str:
    """Return the name in texts of the instance of a row.

    :returns: the name of a service of the host, such as host:ovs; the UUID of
        any other instance, or if the row is unreadable
    """
    uuid: str = row['instance_uuid']
    with contextlib.suppress(Exception):
        # Most instances are guests, which need no decoding.
        if f'"{instance_names.HOST}' in row['instance']:
            name = json.loads(row['instance'])['versioned_object.data']['name']
            return instance_names.host_service(uuid, name) or uuid
    return uuid


def _busy(
    db: sqlite3.Connection, row: Mapping[str, Any]
) -> exception.DeviceBusy:
    # Prefer the row that has the handle. If there is none, the VAN's UUID is
    # the reason for the conflict.
    other = db.execute(
        'SELECT uuid, instance_uuid, instance, state FROM van'
        ' WHERE handle = :handle OR uuid = :uuid ORDER BY uuid = :uuid',
        {'handle': row.get('handle'), 'uuid': row['uuid']},
    ).fetchone()
    own = other['uuid'] == row['uuid']
    return exception.DeviceBusy(
        device=f'VAN {row["uuid"]}' if own else row['handle'],
        holder=f'instance {called(other)} (VAN {other["uuid"]},'
        f' {other["state"]})',
    )
