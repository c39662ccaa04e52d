# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""This host's VANs, on disk: what kill -9, a full disk and a reboot leave.

One sqlite3 file in WAL mode with full sync: a commit is on the disk when it
returns, readers do not wait for another process that writes. A row has,
beside the VAN, what another process needs to finish or undo it: the request,
the instance and whether it was live. The unique index on the handle is what
keeps one device out of two guests, between processes too.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import json
import os
import sqlite3
import threading
from typing import Any
from typing import TypeVar
import weakref

from oslo_utils import timeutils
from oslo_versionedobjects import exception as ovo_exception

from os_acc import exception
from os_acc import objects
from os_acc.journal import file as journal_file
from os_acc.journal import programs as records
from os_acc.objects import base
from os_acc.objects import van as van_states

#: The journals that this process has open, or had when it was forked.
_OPEN: weakref.WeakSet[Journal] = weakref.WeakSet()

_R = TypeVar('_R')
_T = TypeVar('_T', bound=base.VersionedObject)


@dataclasses.dataclass
class Entry:
    """A row: a VAN and what it takes to finish or undo it.

    :ivar live: whether it was (un)plugged with live=True
    :ivar attached: the plugin may have acted on it and not undone that
    :ivar started: the driver may have acted on it
    """

    van: objects.VAN
    request: objects.AcceleratorRequest
    instance_info: objects.InstanceInfo
    live: bool
    attached: bool = False
    started: bool = True

    @property
    def names_function(self) -> bool:
        """Whether its request says what must be programmed."""
        return (
            self.request.function_id is not None
            or self.request.bitstream is not None
        )


class Journal:
    """The journal of one state path. Safe from many threads.

    :param state_path: the folder
    :param timeout: seconds to wait for another writer
    :param create: make the file where there is none yet, and set a damaged
        one aside; False: for looking only
    :raises JournalError: it cannot be opened; says why and what to do
    """

    def __init__(
        self, state_path: str, timeout: float, create: bool = True
    ) -> None:
        objects.register_all()
        self._mutex = threading.Lock()
        self._timeout = timeout
        for opened in _OPEN:
            opened._refuse_fork()
        self.path = journal_file.prepare(state_path, timeout, create)
        self._pid = os.getpid()
        self._db = journal_file.connect(self.path, timeout)
        _OPEN.add(self)

    def close(self) -> None:
        self._refuse_fork()
        with self._mutex:
            self._db.close()
            _OPEN.discard(self)

    def entries(self, instance_uuid: str | None = None) -> list[Entry]:
        """The rows of an instance, or all, in the order of their making."""
        if instance_uuid is None:
            rows = self._rows('1')
        else:
            rows = self._rows('instance_uuid = ?', instance_uuid)
        return [self._read(row, _entry) for row in rows]

    def vans_on(self, device: str | None) -> objects.VANList:
        """The VANs on a device (None: on any), in every state."""
        if device is None:
            rows = self._rows('1')
        else:
            rows = self._rows('device = ?', device)
        return objects.VANList(objects=[self._read(row, _van) for row in rows])

    def requests_of(
        self, instance_uuid: str
    ) -> list[objects.AcceleratorRequest]:
        """What was asked for an instance that has, or gets, VANs."""
        rows = self._rows('instance_uuid = ?', instance_uuid)
        return [self._read(row, _request) for row in rows]

    def unsettled(self, boot_id: str) -> list[str]:
        """UUIDs of the instances that recover() has to look at."""
        with self._using() as db:
            rows = db.execute(
                'SELECT instance_uuid, min(seq) FROM van'
                ' WHERE state <> ? OR boot_id <> ?'
                ' GROUP BY instance_uuid ORDER BY 2',
                (van_states.PLUGGED, boot_id),
            ).fetchall()
        return [row['instance_uuid'] for row in rows]

    def add(self, entries: Iterable[Entry]) -> None:
        """Write the intent: new rows, all or none.

        :raises DeviceBusy: a handle or a VAN's uuid is another row's
        """
        with self._writing() as db:
            for entry in entries:
                claim = entry.request.handle
                row = {
                    'handle': claim.identity if claim is not None else None,
                    **_van_columns(entry.van),
                    'uuid': entry.van.uuid,
                    'instance_uuid': entry.van.instance_uuid,
                    'attached': entry.attached,
                    'live': entry.live,
                    'request': _dump(entry.request),
                    'instance': _dump(entry.instance_info),
                }
                names = ', '.join(row)
                marks = ', '.join(f':{name}' for name in row)
                try:
                    db.execute(
                        f'INSERT INTO van ({names}) VALUES ({marks})', row
                    )
                except sqlite3.IntegrityError as err:
                    raise self._holder(db, row) from err

    def save(self, van: objects.VAN) -> None:
        """Write a VAN whole.

        :raises DeviceBusy: its handle is another VAN's
        """
        self.save_all([van])

    def save_all(
        self, vans: Iterable[objects.VAN], attached: bool | None = None
    ) -> None:
        """Write VANs whole, all or none, in one commit.

        :param attached: what to say of the plugin; None: as before
        """
        with self._writing() as db:
            for van in vans:
                van.updated_at = timeutils.utcnow(with_timezone=True)
                row = {
                    **_van_columns(van),
                    'uuid': van.uuid,
                    'instance_uuid': van.instance_uuid,
                }
                if attached is not None:
                    row['attached'] = attached
                sets = ', '.join(f'{name} = :{name}' for name in row)
                try:
                    done = db.execute(
                        f'UPDATE van SET {sets} WHERE uuid = :uuid'
                        ' AND instance_uuid = :instance_uuid',
                        row,
                    )
                except sqlite3.IntegrityError as err:
                    busy = self._holder(db, row)
                    self._forget_unsaved(db, van)
                    raise busy from err
                if done.rowcount != 1:
                    raise journal_file.error(
                        self.path, f'VAN {van.uuid} is no longer there'
                    )

    def mark(self, entries: Iterable[Entry], state: str) -> None:
        """Write a state, and the entries' live and attached; one commit."""
        now = timeutils.utcnow(with_timezone=True)
        with self._writing() as db:
            for entry in entries:
                db.execute(
                    'UPDATE van SET state = ?, live = ?, attached = ?,'
                    ' updated_at = ? WHERE uuid = ?',
                    (
                        state,
                        entry.live,
                        entry.attached,
                        now.isoformat(),
                        entry.van.uuid,
                    ),
                )
                entry.van.state = state
                entry.van.updated_at = now

    def settle(
        self,
        released: Iterable[objects.VAN],
        failed: Mapping[str, str],
        state: str = van_states.ERROR,
    ) -> None:
        """Drop what is released, and write down what is not; one commit.

        :param failed: VAN uuids, and the error of each
        :param state: the state of the failed ones
        """
        now = timeutils.utcnow(with_timezone=True).isoformat()
        with self._writing() as db:
            db.executemany(
                'DELETE FROM van WHERE uuid = ? AND instance_uuid = ?',
                [(van.uuid, van.instance_uuid) for van in released],
            )
            db.executemany(
                'UPDATE van SET state = ?, error = ?, updated_at = ?'
                ' WHERE uuid = ?',
                [(state, err, now, uuid) for uuid, err in failed.items()],
            )

    def programs(self, device: str | None = None) -> list[records.Program]:
        """What is programmed into a device (None: into any)."""
        with self._using() as db:
            return records.read(db, device)

    def save_program(self, program: records.Program) -> None:
        """Write what is programmed, in place of what was there."""
        with self._writing() as db:
            records.write(db, program)

    def forget_program(self, device: str, region: str) -> None:
        """Drop what was written of a region."""
        with self._writing() as db:
            records.forget(db, device, region)

    def _rows(self, where: str, *values: str) -> list[sqlite3.Row]:
        with self._using() as db:
            return db.execute(
                f'SELECT * FROM van WHERE {where} ORDER BY seq', values
            ).fetchall()

    def _read(
        self, row: sqlite3.Row, decode: Callable[[sqlite3.Row], _R]
    ) -> _R:
        try:
            return decode(row)
        except (
            ovo_exception.VersionedObjectsException,
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ) as err:
            raise journal_file.error(
                self.path,
                f'VAN {row["uuid"]} cannot be read (did a newer os-acc write '
                f'it?): {type(err).__name__}: {err}',
            ) from err

    def _refuse_fork(self) -> None:
        # sqlite's locks do not survive a fork, but it believes that they do:
        # what the child writes can be lost (sqlite.org/howtocorrupt.html).
        if self._pid != os.getpid():
            raise journal_file.error(
                self.path,
                f'process {self._pid} had it open when it forked into '
                f'{os.getpid()}; call os_acc.initialize() after the fork only',
            )

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread; sqlite's errors become ours."""
        self._refuse_fork()
        if not self._mutex.acquire(timeout=self._timeout):
            raise exception.Timeout(
                what=f'another thread that uses {self.path}',
                seconds=self._timeout,
            )
        try:
            try:
                yield self._db
            except sqlite3.Error as err:
                if journal_file.code(err) == sqlite3.SQLITE_BUSY:
                    raise exception.Timeout(
                        what=f'another writer of {self.path}',
                        seconds=self._timeout,
                    ) from err
                raise journal_file.error(self.path, str(err)) from err
        finally:
            self._mutex.release()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._using() as db:
            db.execute('BEGIN IMMEDIATE')
            try:
                yield db
                db.execute('COMMIT')
            finally:
                # An error of sqlite (a full disk) may have ended it already.
                if db.in_transaction:
                    db.execute('ROLLBACK')

    def _forget_unsaved(
        self, db: sqlite3.Connection, van: objects.VAN
    ) -> None:
        """Set a VAN back to what is saved of it.

        The handle that it could not get is another's: its undo must not have
        it in hand.
        """
        (text,) = db.execute(
            'SELECT van FROM van WHERE uuid = ?', (van.uuid,)
        ).fetchone()
        saved = _load(objects.VAN, text)
        for name in ('handle', 'device', 'function_id', 'driver_data'):
            setattr(van, name, getattr(saved, name))

    def _holder(
        self, db: sqlite3.Connection, row: dict[str, Any]
    ) -> exception.DeviceBusy:
        # Who has the handle; if nobody, it is the VAN's uuid that is taken.
        other = db.execute(
            'SELECT uuid, instance_uuid, state FROM van'
            ' WHERE handle = :handle OR uuid = :uuid ORDER BY uuid = :uuid',
            {'handle': row.get('handle'), 'uuid': row['uuid']},
        ).fetchone()
        own = other['uuid'] == row['uuid']
        return exception.DeviceBusy(
            device=f'VAN {row["uuid"]}' if own else row['handle'],
            holder=f'instance {other["instance_uuid"]} (VAN {other["uuid"]},'
            f' {other["state"]})',
        )


def _van_columns(van: objects.VAN) -> dict[str, Any]:
    row = {
        'state': van.state,
        'boot_id': van.boot_id,
        'device': van.device,
        'error': van.error,
        'updated_at': str(van.updated_at),
        'van': _dump(van),
    }
    if van.handle is not None:
        # Else what the intent has claimed for it stays claimed.
        row['handle'] = van.handle.identity
    return row


def _entry(row: sqlite3.Row) -> Entry:
    return Entry(
        van=_van(row),
        request=_request(row),
        instance_info=_load(objects.InstanceInfo, row['instance']),
        live=bool(row['live']),
        attached=bool(row['attached']),
    )


def _request(row: sqlite3.Row) -> objects.AcceleratorRequest:
    return _load(objects.AcceleratorRequest, row['request'])


def _van(row: sqlite3.Row) -> objects.VAN:
    van = _load(objects.VAN, row['van'])
    # The columns are newer than the text: a state change writes only them.
    van.state = row['state']
    van.error = row['error']
    van.updated_at = timeutils.parse_isotime(row['updated_at'])
    van.obj_reset_changes()
    return van


def _dump(obj: base.VersionedObject) -> str:
    return json.dumps(obj.obj_to_primitive(), separators=(',', ':'))


def _load(cls: type[_T], text: str) -> _T:
    made = cls.obj_from_primitive(json.loads(text))
    made.obj_reset_changes(recursive=True)
    return made
