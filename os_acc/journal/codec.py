# SPDX-License-Identifier: Apache-2.0


"""Writes and reads the contents of a journal row.

The fields of a VAN in schema.VAN_COLUMNS are stored in columns only. All other
fields, and those that a newer os-acc added, are in the VAN's JSON. The column
handle has the identity of the VAN's handle or, while the VAN has none, of the
handle that the request names. The unique index on this column prevents that
two guests get the same device.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import dataclasses
import json
import logging
import sqlite3
from typing import Any
from typing import TypeVar

from oslo_utils import timeutils

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.bitstreams import reference as bitstream_reference
from os_acc.journal import database
from os_acc.journal import rows as rows_module
from os_acc.journal import schema

LOG = logging.getLogger(__name__)

_R = TypeVar('_R')

#: The columns that to_holder() needs.
HOLDER_COLUMNS = (
    'handle',
    'device',
    'uuid',
    'instance_uuid',
    'state',
    'instance',
)

_DATA = 'versioned_object.data'


@dataclasses.dataclass
class Entry:
    """A row: a VAN, and what is needed to finish or undo its plug.

    :ivar live: whether the VAN was last plugged or unplugged with live=True
    :ivar attached: the plugin may have done the instance half, and has not
        undone it
    :ivar started: the driver may have done a part of the device half
    """

    van: objects.VAN
    request: objects.AcceleratorRequest
    instance_info: objects.InstanceInfo
    live: bool
    attached: bool = False
    started: bool = True

    @property
    def called(self) -> str:
        """The name of the instance in texts. See Holder."""
        info = self.instance_info
        return str(info.host_service or info.uuid)

    @property
    def names_function(self) -> bool:
        """Whether the request names a function or a bitstream to program."""
        return (
            self.request.function_id is not None
            or self.request.bitstream is not None
        )


@dataclasses.dataclass(frozen=True)
class Holder:
    """The VAN that has a handle or a device.

    Only the columns are read, so this also works for unreadable rows.

    :ivar handle: identity of the handle; None if the VAN has none yet
    :ivar device: address of the parent device; None if not known yet
    :ivar van_uuid: UUID of the VAN
    :ivar instance_uuid: UUID of the VAN's instance
    :ivar state: state of the VAN
    :ivar called: the name of the instance in texts: of a service of the host
        its name, of any other one its UUID
    """

    handle: str | None
    device: str | None
    van_uuid: str
    instance_uuid: str
    state: str
    called: str


@dataclasses.dataclass(frozen=True)
class UnreadableRow(Holder):
    """A row that cannot be read. Its VAN keeps its handle and device.

    :ivar reason: why the row cannot be read
    """

    reason: str


def van_columns(van: objects.VAN) -> dict[str, Any]:
    """Return the columns of a VAN, by the name of the column."""
    row = {name: getattr(van, name) for name in schema.VAN_COLUMNS}
    changed = van.updated_at or timeutils.utcnow(with_timezone=True)
    row['updated_at'] = changed.isoformat()
    row['van'] = _text(van.stored(without=schema.VAN_COLUMNS))
    if van.handle is not None:
        # Without a handle, the column keeps the handle of the request.
        row['handle'] = van.handle.identity
    return row


def new_rows(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return the columns of new rows, by the name of the column."""
    found = []
    for entry in entries:
        claim = entry.request.handle
        found.append(
            {
                'handle': claim.identity if claim is not None else None,
                **van_columns(entry.van),
                'attached': entry.attached,
                'live': entry.live,
                'request': _request(entry.request),
                'instance': _text(entry.instance_info.stored()),
            }
        )
    return found


def _request(request: objects.AcceleratorRequest) -> str:
    primitive = request.stored()
    if primitive[_DATA].get('bitstream') is not None:
        # A URL may contain a password, or a token in its query.
        primitive[_DATA]['bitstream'] = bitstream_reference.masked(
            primitive[_DATA]['bitstream']
        )
    return _text(primitive)


def to_van(row: sqlite3.Row) -> objects.VAN:
    """Read the VAN of a row.

    The column of its handle is not read, but others see by it what it has.
    """
    if not isinstance(row['handle'], str | None):
        raise ValueError(f'its handle is damaged: {row["handle"]!r:.100}')
    primitive = json.loads(row['van'])
    data = primitive[_DATA]
    for name in schema.VAN_COLUMNS:
        data[name] = row[name]
    return objects.VAN.obj_from_primitive(primitive)


def to_request(row: sqlite3.Row) -> objects.AcceleratorRequest:
    """Read the request of a row."""
    return objects.AcceleratorRequest.obj_from_primitive(
        json.loads(row['request'])
    )


def to_entry(row: sqlite3.Row) -> Entry:
    """Read all of a row."""
    return Entry(
        van=to_van(row),
        request=to_request(row),
        instance_info=objects.InstanceInfo.obj_from_primitive(
            json.loads(row['instance'])
        ),
        live=bool(row['live']),
        attached=bool(row['attached']),
    )


def to_holder(row: sqlite3.Row) -> Holder:
    """Read the columns of a row."""
    return Holder(**_holder_values(row))


def holders(path: str, rows: list[sqlite3.Row]) -> list[Holder]:
    """Read who has what.

    :raises JournalError: if a handle or a device is no text, because nobody
        knows then what the VAN has
    """
    for row in rows:
        for name in ('handle', 'device'):
            if not isinstance(row[name], str | None):
                raise database.error(
                    path,
                    f'VAN {row["uuid"]} of instance {row["instance_uuid"]} '
                    f'cannot be read: its {name} is damaged',
                )
    return [to_holder(row) for row in rows]


def readable(
    rows: list[sqlite3.Row], decode: Callable[[sqlite3.Row], _R]
) -> list[_R]:
    """Read those rows that can be read, and log the others.

    A damaged text, or a handle class of another package, can raise any error.
    """
    found = []
    for row in rows:
        try:
            found.append(decode(row))
        except Exception as err:
            log.about(LOG, row['instance_uuid'], row['uuid']).warning(
                'the row in the journal cannot be read and is skipped: %s',
                exception.describe(err),
            )
    return found


def unreadable(rows: list[sqlite3.Row]) -> list[UnreadableRow]:
    """List the rows that cannot be read, with the reasons."""
    found = []
    for row in rows:
        try:
            to_entry(row)
        except Exception as err:
            found.append(
                UnreadableRow(
                    **_holder_values(row), reason=exception.describe(err)
                )
            )
    return found


def read(
    path: str, row: sqlite3.Row, decode: Callable[[sqlite3.Row], _R]
) -> _R:
    """Read a row that must be readable."""
    try:
        return decode(row)
    except Exception as err:
        raise database.error(
            path,
            f'VAN {row["uuid"]} of instance {row["instance_uuid"]} cannot be '
            'read (did a newer os-acc write it, or was the package of its '
            f'handle class removed?): {exception.describe(err)}',
        ) from err


def _holder_values(row: sqlite3.Row) -> dict[str, Any]:
    return {
        'handle': _as_text(row['handle']),
        'device': _as_text(row['device']),
        'van_uuid': row['uuid'],
        'instance_uuid': row['instance_uuid'],
        'state': row['state'],
        'called': rows_module.called(row),
    }


def _as_text(value: Any) -> str | None:
    """A column of text; of a damaged one, what Python calls its value."""
    return value if isinstance(value, str | None) else repr(value)


def _text(obj_primitive: dict[str, Any]) -> str:
    return json.dumps(obj_primitive, separators=(',', ':'))
