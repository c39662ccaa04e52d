# SPDX-License-Identifier: Apache-2.0


"""Journal: keeps this host's VANs on disk, safe from crashes and reboots.

The journal is one sqlite3 file in WAL mode with full sync: a commit is on the
disk when it returns, and readers do not wait for writers. Besides the VAN, a
row has what another process needs to finish or undo the plug: the request, the
instance, and whether the call was live.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import logging
import sqlite3
from typing import Any
from typing import TypeVar

from oslo_utils import timeutils

from os_acc import exception
from os_acc import objects
from os_acc.journal import codec
from os_acc.journal import database
from os_acc.journal import demand as demand_rows
from os_acc.journal import device_records
from os_acc.journal import events as event_rows
from os_acc.journal import health as health_rows
from os_acc.journal import rows
from os_acc.objects import van as van_states

LOG = logging.getLogger(__name__)

_R = TypeVar('_R')


class Journal(device_records.DeviceRecords):
    """The journal of one state path: VANs, events, and records of devices.

    Its parameters are those of os_acc.journal.store.Store.
    """

    def entries(self, instance_uuid: str | None = None) -> list[codec.Entry]:
        """Read the readable rows, in the order in which they were added."""
        return codec.readable(self._of(instance_uuid), codec.to_entry)

    def vans(self, instance_uuid: str | None = None) -> objects.VANList:
        """Read the readable VANs. See entries()."""
        return objects.VANList(
            objects=codec.readable(self._of(instance_uuid), codec.to_van)
        )

    def unreadable(
        self, instance_uuid: str | None = None
    ) -> list[codec.UnreadableRow]:
        """List the rows that entries() leaves out, with the reasons."""
        return codec.unreadable(self._of(instance_uuid))

    def vans_on(self, device: str | None) -> objects.VANList:
        """Read the VANs on a device, in every state.

        :param device: the address of the device; None: read the readable VANs
            of all devices
        :raises JournalError: if a VAN on this device cannot be read
        """
        if device is None:
            return self.vans()
        return objects.VANList(
            objects=self._read('device = ?', device, codec.to_van)
        )

    def handles(
        self,
        device: str | None = None,
        instance: str | None = None,
        van: str | None = None,
    ) -> list[codec.Holder]:
        """List the VANs that have a handle or a device, even unreadable ones.

        :param device: only VANs on this parent device; None: all
        :param instance: only VANs of the instance with this UUID; None: all
        :param van: only the VAN with this UUID; None: all
        """
        given = {'device': device, 'instance_uuid': instance, 'uuid': van}
        wanted = {k: v for k, v in given.items() if v is not None}
        where = ['(handle IS NOT NULL OR device IS NOT NULL)']
        where += [f'{name} = ?' for name in wanted]
        found = self._select(
            lambda db: _holders(db, ' AND '.join(where), *wanted.values())
        )
        return codec.holders(self.path, found)

    def requests_of(
        self, instance_uuid: str
    ) -> list[objects.AcceleratorRequest]:
        """Read the requests of the VANs of an instance.

        VANs that are being plugged are included.
        """
        return self._read('instance_uuid = ?', instance_uuid, codec.to_request)

    def unsettled(self, boot_id: str) -> list[str]:
        """List the UUIDs of the instances that recover() has to look at."""
        return self._select(lambda db: rows.unsettled(db, boot_id))

    def identity(self) -> str:
        """The UUID of this journal, which no other journal has."""
        found = self._select(rows.identity)
        if not found:
            raise database.error(self.path, 'it has no UUID')
        return found[0]

    def instances(self) -> list[str]:
        """List the UUIDs of the instances that have VANs, even unreadable."""
        return self._select(rows.instances)

    def kept(self) -> list[tuple[str, str]]:
        """List the instances that are processes.

        :returns: the UUID of each, and its InstanceInfo.process
        """
        return self._select(rows.kept)

    def add(self, entries: Iterable[codec.Entry]) -> None:
        """Write the intent to plug VANs: add their rows, all or none.

        After any error except DeviceBusy, the rows may have been written;
        settle() with the VANs as released deletes them.
        """
        new = codec.new_rows(entries)

        def act(db: sqlite3.Connection) -> None:
            for row in new:
                rows.insert(db, row)

        self._write(act, _updated_at(new))

    def save(self, van: objects.VAN) -> None:
        """Write all fields of a VAN. See save_all()."""
        self.save_all([van])

    def save_all(
        self,
        vans: Iterable[objects.VAN],
        attached: bool | None = None,
        events: Sequence[event_rows.Event] = (),
    ) -> None:
        """Write all fields of VANs in one commit: all VANs, or none.

        :param attached: the new value of Entry.attached; None: keep the old
        :raises DeviceBusy: if another VAN has the handle of a VAN. The VAN
            object gets its saved values again
        """
        vans = list(vans)
        now = timeutils.utcnow(with_timezone=True)
        changed = []
        for van in vans:
            van.updated_at = now
            row = codec.van_columns(van)
            if attached is not None:
                row['attached'] = attached
            changed.append(row)
        refused: list[tuple[objects.VAN, sqlite3.Row]] = []

        def act(db: sqlite3.Connection) -> None:
            for van, row in zip(vans, changed, strict=True):
                try:
                    rows.update(db, self.path, row)
                except exception.DeviceBusy:
                    (saved,) = rows.select(db, 'uuid = ?', van.uuid)
                    refused.append((van, saved))
                    raise

        try:
            self._write(act, _updated_at(changed), events=events)
        except exception.DeviceBusy:
            for van, saved in refused:
                self._set_back(van, saved)
            raise

    def mark(self, entries: Iterable[codec.Entry], state: str) -> None:
        """Write a state, and live and attached of entries, in one commit.

        An entry without a row is not an error.
        """
        entries = list(entries)
        now = timeutils.utcnow(with_timezone=True)
        time = now.isoformat()

        def act(db: sqlite3.Connection) -> None:
            for entry in entries:
                rows.change(
                    db,
                    _key(entry.van),
                    state=state,
                    live=entry.live,
                    attached=entry.attached,
                    updated_at=time,
                )

        self._write(act, {_key(entry.van): time for entry in entries})
        for entry in entries:
            entry.van.state = state
            entry.van.updated_at = now

    def settle(
        self,
        released: Iterable[objects.VAN],
        failed: Iterable[tuple[objects.VAN, str]],
        state: str = van_states.ERROR,
        events: Sequence[event_rows.Event] = (),
    ) -> None:
        """Delete released VANs and write the errors of others, in one commit.

        The same commit reserves the devices of released VANs whose driver_data
        has health_rows.RESERVE.

        :param released: VANs to delete; a VAN without a row is not an error
        :param failed: each other VAN and its error; a VAN without a row is
            not an error
        """
        released = list(released)
        gone = [_key(van) for van in released]
        errors = {_key(van): text for van, text in failed}
        now = timeutils.utcnow(with_timezone=True).isoformat()
        reserved = [
            (made, _key(van))
            for van in released
            if (made := health_rows.reservation_of(van, now)) is not None
        ]

        def act(db: sqlite3.Connection) -> None:
            for reservation, key in reserved:
                health_rows.reserve(db, reservation, *key)
            rows.delete(db, gone)
            for van, text in errors.items():
                rows.change(db, van, state=state, error=text, updated_at=now)

        self._write(act, dict.fromkeys(errors, now), gone, events)

    def forget(
        self, van_uuid: str, events: Sequence[event_rows.Event] = ()
    ) -> codec.Holder:
        """Delete a VAN's row, readable or not. Nothing is undone."""

        def act(db: sqlite3.Connection) -> codec.Holder:
            for row in rows.select(db, 'uuid = ?', van_uuid):
                rows.delete(db, [(row['uuid'], row['instance_uuid'])])
                return codec.to_holder(row)
            raise database.error(self.path, f'it has no VAN {van_uuid}')

        return self._commit(
            act, lambda db: not rows.select(db, 'uuid = ?', van_uuid), events
        )

    def events(
        self, wanted: event_rows.Wanted | None = None
    ) -> list[event_rows.Event]:
        """Read events, the oldest first."""
        chosen = wanted or event_rows.Wanted()
        return self._select(lambda db: event_rows.read(db, chosen))

    def measures(self) -> list[event_rows.Measure]:
        """Read the sums of all events that were ever written."""
        return self._select(event_rows.read_sums)

    def note(self, events: Sequence[event_rows.Event]) -> None:
        """Write events in a commit of their own.

        A failure is only logged: it must not undo what was done.
        """
        try:
            self._commit(
                lambda db: event_rows.write_events(db, self._program, events),
                lambda db: True,
            )
        except exception.JournalError as err:
            LOG.warning('%d events are not written: %s', len(events), err)

    def demand(self) -> list[demand_rows.Demand]:
        """What was requested and not found, the newest last."""
        return self._select(demand_rows.read)

    def note_demand(
        self,
        found: Sequence[demand_rows.Demand],
        events: Sequence[event_rows.Event],
    ) -> None:
        """Write what was requested and not found.

        A failure is only logged, as by note().
        """
        try:
            self._commit(
                lambda db: demand_rows.add(db, found), lambda db: True, events
            )
        except exception.JournalError as err:
            LOG.warning('A demand is not written: %s', err)

    def _of(self, instance_uuid: str | None) -> list[sqlite3.Row]:
        if instance_uuid is None:
            return self._select(rows.select)
        return self._select(
            lambda db: rows.select(db, 'instance_uuid = ?', instance_uuid)
        )

    def _read(
        self, where: str, value: str, decode: Callable[[sqlite3.Row], _R]
    ) -> list[_R]:
        found = self._select(lambda db: rows.select(db, where, value))
        return [codec.read(self.path, row, decode) for row in found]

    def _write(
        self,
        act: Callable[[sqlite3.Connection], None],
        written: Mapping[rows.VanKey, str],
        gone: Sequence[rows.VanKey] = (),
        events: Sequence[event_rows.Event] = (),
    ) -> None:
        """Write rows of VANs.

        :param written: the updated_at of each VAN that act writes
        :param gone: the VANs that act deletes
        """

        def is_there(db: sqlite3.Connection) -> bool:
            uuids = [uuid for uuid, _ in (*written, *gone)]
            found = _updated_at(rows.find(db, uuids))
            return all(
                found.get(van) == time for van, time in written.items()
            ) and found.keys().isdisjoint(gone)

        self._commit(act, is_there, events)

    def _set_back(self, van: objects.VAN, saved: sqlite3.Row) -> None:
        """Set the fields of a VAN back to their saved values.

        The handle that the VAN could not get belongs to another VAN, and an
        undo must not release it.
        """
        before = codec.read(self.path, saved, codec.to_van)
        for name in ('handle', 'device', 'function_id', 'driver_data'):
            setattr(van, name, getattr(before, name))


def _holders(
    db: sqlite3.Connection, where: str, *values: str
) -> list[sqlite3.Row]:
    return rows.select(db, where, *values, columns=codec.HOLDER_COLUMNS)


def _key(van: objects.VAN) -> rows.VanKey:
    return van.uuid, van.instance_uuid


def _updated_at(
    found: Iterable[Mapping[str, Any] | sqlite3.Row],
) -> dict[rows.VanKey, str]:
    """Return the updated_at of rows, by VAN."""
    return {
        (row['uuid'], row['instance_uuid']): row['updated_at'] for row in found
    }
