# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.


"""Journal: this host's VANs on disk, across kill -9, full disk and reboot.

One sqlite3 file in WAL mode with full sync: a commit is on the disk when it
returns, and readers wait for nobody. Beside the VAN a row has what another
process needs to finish or undo it: the request, the instance and whether it
was live.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import sqlite3
from typing import TypeVar

from oslo_utils import timeutils

from os_acc import exception
from os_acc import objects
from os_acc.journal import codec
from os_acc.journal import commits
from os_acc.journal import connections
from os_acc.journal import database
from os_acc.journal import programs as records
from os_acc.journal import rows
from os_acc.objects import van as van_states

_R = TypeVar('_R')


class Journal:
    """The journal of one state path.

    Safe from many threads, green ones too, and across forks: each process
    opens its own connections when it needs them.

    :param state_path: the folder
    :param timeout: seconds to wait for another writer
    :param read_only: change nothing, neither the rows nor the file, and look
        at the file only when it is asked for something. While there is no
        journal, it reads as empty. False: create or migrate the file, and
        set a damaged one aside
    :raises JournalError: if it cannot be opened; says why and what to do
    """

    def __init__(
        self, state_path: str, timeout: float, read_only: bool = False
    ) -> None:
        objects.register_all()
        self.read_only = read_only
        self._connections = connections.Connections(state_path, timeout)
        self._commits = commits.Commits(self._connections)
        self.path = self._connections.path
        if not read_only:
            self._connections.create()

    def close(self) -> None:
        """Close the connections. Each later call is an error."""
        self._connections.close()

    def exists(self) -> bool:
        """Say whether there is a journal.

        :raises JournalError: if the folder cannot be looked at
        """
        return database.identity(self.path) is not None

    def check(self) -> None:
        """See that there is a sound journal.

        :raises JournalMissing: if there is none yet
        :raises JournalError: if it cannot be used; says why and what to do
        """
        self._connections.read(lambda db: None)

    def entries(self, instance_uuid: str | None = None) -> list[codec.Entry]:
        """Read the readable rows, in the order in which they were added.

        :param instance_uuid: of this instance; None: of all
        """
        return codec.readable(self._of(instance_uuid), codec.to_entry)

    def vans(self, instance_uuid: str | None = None) -> objects.VANList:
        """Read the readable VANs. See entries()."""
        return objects.VANList(
            objects=codec.readable(self._of(instance_uuid), codec.to_van)
        )

    def unreadable(
        self, instance_uuid: str | None = None
    ) -> list[codec.UnreadableRow]:
        """Name the rows that entries() leaves out, and say why.

        :param instance_uuid: of this instance; None: of all
        """
        return codec.unreadable(self._of(instance_uuid))

    def vans_on(self, device: str | None) -> objects.VANList:
        """Read the VANs on a device, in every state.

        :param device: its address; None: on any device, the readable ones
        :raises JournalError: if a VAN on this device cannot be read
        """
        if device is None:
            return self.vans()
        return objects.VANList(
            objects=self._read('device = ?', device, codec.to_van)
        )

    def handles(self, device: str | None = None) -> list[codec.Holder]:
        """List who has a handle or a device, unreadable VANs too.

        :param device: address of a parent device; None: all
        """
        if device is None:
            where = 'handle IS NOT NULL OR device IS NOT NULL'
            found = self._select(lambda db: rows.select(db, where))
        else:
            found = self._select(
                lambda db: rows.select(db, 'device = ?', device)
            )
        return [codec.to_holder(row) for row in found]

    def requests_of(
        self, instance_uuid: str
    ) -> list[objects.AcceleratorRequest]:
        """Read the requests of an instance that has, or gets, VANs.

        :raises JournalError: if one cannot be read
        """
        return self._read('instance_uuid = ?', instance_uuid, codec.to_request)

    def unsettled(self, boot_id: str) -> list[str]:
        """List the UUIDs of the instances that recover() has to look at.

        :param boot_id: of the present boot of the host
        """
        return self._select(lambda db: rows.unsettled(db, boot_id))

    def add(self, entries: Iterable[codec.Entry]) -> None:
        """Write the intent: new rows, all or none.

        After any error but DeviceBusy, settle(released=the VANs) deletes what
        a commit that was interrupted may have left.

        :raises DeviceBusy: if another row has a handle, or a VAN's UUID
        """
        new = [codec.entry_columns(entry) for entry in entries]

        def act(db: sqlite3.Connection) -> None:
            for row in new:
                rows.insert(db, row)

        self._write(act, {row['uuid']: row['updated_at'] for row in new})

    def save(self, van: objects.VAN) -> None:
        """Write a VAN whole. See save_all()."""
        self.save_all([van])

    def save_all(
        self, vans: Iterable[objects.VAN], attached: bool | None = None
    ) -> None:
        """Write VANs whole, all or none, in one commit.

        :param attached: what to say of the plugin; None: as before
        :raises DeviceBusy: if another VAN has a handle. The VAN that wanted
            it is set back to what is saved of it
        :raises JournalError: if one of them is no longer there
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
            self._write(
                act, {row['uuid']: row['updated_at'] for row in changed}
            )
        except exception.DeviceBusy:
            for van, saved in refused:
                self._set_back(van, saved)
            raise

    def mark(self, entries: Iterable[codec.Entry], state: str) -> None:
        """Write a state, and the entries' live and attached; one commit."""
        entries = list(entries)
        now = timeutils.utcnow(with_timezone=True)
        written = {entry.van.uuid: now.isoformat() for entry in entries}

        def act(db: sqlite3.Connection) -> None:
            for entry in entries:
                rows.change(
                    db,
                    entry.van.uuid,
                    state=state,
                    live=entry.live,
                    attached=entry.attached,
                    updated_at=written[entry.van.uuid],
                )

        self._write(act, written)
        for entry in entries:
            entry.van.state = state
            entry.van.updated_at = now

    def settle(
        self,
        released: Iterable[objects.VAN],
        failed: Mapping[str, str],
        state: str = van_states.ERROR,
    ) -> None:
        """Delete what is released, and write why the rest is not; one commit.

        :param released: VANs; one that has no row is no error
        :param failed: VAN UUIDs, and the error of each
        :param state: the state of the failed ones
        """
        gone = [(van.uuid, van.instance_uuid) for van in released]
        now = timeutils.utcnow(with_timezone=True).isoformat()

        def act(db: sqlite3.Connection) -> None:
            rows.delete(db, gone)
            for uuid, err in failed.items():
                rows.change(db, uuid, state=state, error=err, updated_at=now)

        self._write(act, dict.fromkeys(failed, now), gone)

    def forget(self, van_uuid: str) -> codec.Holder:
        """Delete a VAN's row, readable or not. Nothing is undone.

        :returns: what the row said
        :raises JournalError: if there is none
        """

        def act(db: sqlite3.Connection) -> codec.Holder:
            for row in rows.select(db, 'uuid = ?', van_uuid):
                rows.delete(db, [(row['uuid'], row['instance_uuid'])])
                return codec.to_holder(row)
            raise database.error(self.path, f'VAN {van_uuid} is not there')

        return self._commit(
            act, lambda db: not rows.select(db, 'uuid = ?', van_uuid)
        )

    def programs(self, device: str | None = None) -> list[records.Program]:
        """Read what is programmed into a device (None: into any)."""
        return self._select(lambda db: records.read(db, device))

    def save_program(self, program: records.Program) -> None:
        """Write what is programmed, in place of what was there."""
        self._commit(
            lambda db: records.write(db, program),
            lambda db: program in records.read(db, program.device),
        )

    def forget_program(self, device: str, region: str) -> None:
        """Delete the record of a region."""
        self._commit(
            lambda db: records.forget(db, device, region),
            lambda db: all(
                found.region != region for found in records.read(db, device)
            ),
        )

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

    def _select(
        self, act: Callable[[sqlite3.Connection], list[_R]]
    ) -> list[_R]:
        try:
            return self._connections.read(act)
        except exception.JournalMissing:
            if not self.read_only:
                raise
            return []

    def _write(
        self,
        act: Callable[[sqlite3.Connection], None],
        written: Mapping[str, str],
        gone: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write rows of VANs.

        :param written: the VANs that act writes, and the time that it writes
        :param gone: the VANs, and their instances, that it deletes
        """

        def is_there(db: sqlite3.Connection) -> bool:
            uuids = [*written, *(uuid for uuid, _ in gone)]
            found = {row['uuid']: row for row in rows.find(db, uuids)}
            return all(
                uuid in found and found[uuid]['updated_at'] == time
                for uuid, time in written.items()
            ) and not any(
                uuid in found and found[uuid]['instance_uuid'] == instance
                for uuid, instance in gone
            )

        self._commit(act, is_there)

    def _commit(
        self,
        act: Callable[[sqlite3.Connection], _R],
        is_there: Callable[[sqlite3.Connection], bool],
    ) -> _R:
        if self.read_only:
            raise database.error(self.path, 'it was opened for reading only')
        return self._commits.write(act, is_there)

    def _set_back(self, van: objects.VAN, saved: sqlite3.Row) -> None:
        """Set a VAN back to what is saved of it.

        The handle that it could not get is another VAN's, and an undo must
        not release that.
        """
        before = codec.read(self.path, saved, codec.to_van)
        for name in ('handle', 'device', 'function_id', 'driver_data'):
            setattr(van, name, getattr(before, name))
