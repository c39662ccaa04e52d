# SPDX-License-Identifier: Apache-2.0

"""What the journal knows about devices besides their VANs.

It records which devices are reserved, which are unhealthy, what is programmed
into them, and the state that the operator wants them to have. The records stay
when the VANs of a device are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
import sqlite3
from typing import Any

from os_acc.journal import database
from os_acc.journal import desired as desired_rows
from os_acc.journal import events as event_rows
from os_acc.journal import health as health_rows
from os_acc.journal import programs as records
from os_acc.journal import store


class DeviceRecords(store.Store):
    """Reads and writes the records of devices in the journal."""

    def reservations(self) -> list[health_rows.Reservation]:
        """List the reserved devices."""
        return self._select(
            lambda db: database.read_all(
                db, 'reserved', health_rows.Reservation, 'address'
            )
        )

    def free(self, address: str) -> bool:
        """Free a reserved device.

        :param address: of the handle
        :returns: whether it was reserved
        """
        return self._delete('reserved', address=address)

    def unhealthy(self) -> list[health_rows.Health]:
        """List the devices that are given to nobody, and why."""
        return self._select(health_rows.read)

    def save_unhealthy(self, found: health_rows.Health) -> None:
        """Stop giving out a device. A repeated cause changes nothing.

        :param found: of cause REBOOT, it replaces an earlier one: one of an
            earlier boot is no longer valid
        """
        columns = vars(found)
        conflict, written = 'REPLACE', columns
        if found.cause != health_rows.REBOOT:
            conflict = 'IGNORE'
            written = {'device': found.device, 'cause': found.cause}
        event = event_rows.Event(
            at=event_rows.now(),
            operation=event_rows.UNHEALTHY,
            step=None,
            result=event_rows.FAILED,
            device=found.device,
            extension=found.driver or None,
            error=found.cause,
            reason=event_rows.masked(found.reason),
        )
        self._commit(
            lambda db: database.put(db, 'health', columns, conflict),
            lambda db: database.has(db, 'health', written),
            [event],
        )

    def announce_unhealthy(self, found: health_rows.Health) -> None:
        """Note that the hooks were called for an unhealthy device."""
        self._update(
            'UPDATE health SET announced = 1'
            ' WHERE device = :device AND cause = :cause AND since = :since',
            'health',
            [vars(found)],
        )

    def forget_unhealthy(self, device: str, cause: str) -> bool:
        """End a cause for which a device is given to nobody.

        :returns: whether the device had it
        """
        return self._delete('health', device=device, cause=cause)

    def acknowledged(self) -> list[health_rows.FatalErrors]:
        """List the fatal PCIe errors that an operator has acknowledged."""
        return self._select(
            lambda db: database.read_all(
                db, 'fatal_errors', health_rows.FatalErrors, 'device'
            )
        )

    def acknowledge(self, errors: health_rows.FatalErrors) -> None:
        """Record that an operator has acknowledged fatal PCIe errors."""
        self._put('fatal_errors', vars(errors))

    def programs(self, device: str | None = None) -> list[records.Program]:
        """Read what is programmed into a device; None: into all devices."""
        return [
            found
            for found in self._select(records.read)
            if device in (None, found.device)
        ]

    def save_program(self, program: records.Program) -> None:
        """Write what is programmed, in place of the earlier record."""
        self._put('program', database.columns_of(program))

    def note_cleaned(self, programs: Sequence[records.Program]) -> None:
        """Note that nothing is left of failed programmings.

        A record that has changed in the meantime stays as it is.
        """
        self._update(
            'UPDATE program SET cleaned = 1'
            ' WHERE device = :device AND region = :region'
            " AND state = 'error' AND updated_at = :updated_at",
            'program',
            [
                {**database.columns_of(program), 'cleaned': False}
                for program in programs
            ],
        )

    def forget_program(self, device: str, region: str) -> None:
        """Delete the record of a region: it is unknown what it holds."""
        self._delete('program', device=device, region=region)

    def desired(self) -> desired_rows.Desired | None:
        """The document that was applied last; None: there is none."""
        return next(iter(self._select(desired_rows.read)), None)

    def save_desired(self, desired: desired_rows.Desired | None) -> None:
        """Write the document, in place of the earlier one."""
        self._commit(
            lambda db: desired_rows.write(db, desired),
            lambda db: desired_rows.read(db) == ([desired] if desired else []),
        )

    def unsettle_desired(self) -> None:
        """Note that the document must be applied again, if there is one.

        See desired.Desired.settled.
        """
        known = self.desired()
        if known is not None and known.settled is not None:
            self._update(
                'UPDATE desired SET settled = NULL', 'desired', [vars(known)]
            )

    def devices_of(self, part: str, also_let_go: bool = True) -> list[str]:
        """See desired.Desired.devices_of(); empty: there is no document."""
        known = self.desired()
        return [] if known is None else known.devices_of(part, also_let_go)

    def pools(self) -> list[dict[str, Any]]:
        """The pools of that document: see os_acc.desired.documents.Pool."""
        found = self._select(desired_rows.read)
        return [pool for document in found for pool in document.pools()]

    def kept_vfs(self) -> dict[str, int]:
        """How many VFs each PF keeps without a VAN, by the PF's address."""

        def read(db: sqlite3.Connection) -> list[tuple[str, int]]:
            rows = database.execute(db, 'SELECT pf, number FROM kept_vfs')
            return [(pf, number) for pf, number in rows]

        return dict(self._select(read))

    def keep_vfs(self, pf: str, number: int | None) -> None:
        """Write how many VFs a PF keeps.

        :param number: None: only as long as VANs have them. 0: they are there,
            and somebody else has made them
        """
        if number is None:
            self._delete('kept_vfs', pf=pf)
        else:
            self._put('kept_vfs', {'pf': pf, 'number': number})

    def _put(self, table: str, columns: dict[str, Any]) -> None:
        self._commit(
            lambda db: database.put(db, table, columns),
            lambda db: database.has(db, table, columns),
        )

    def _delete(self, table: str, **columns: Any) -> bool:
        return self._commit(
            lambda db: database.delete(db, table, columns),
            lambda db: not database.has(db, table, columns),
        )

    def _update(
        self, statement: str, table: str, before: Sequence[dict[str, Any]]
    ) -> None:
        """Change rows in one commit.

        :param statement: executed for each of the rows
        :param before: the columns of the rows, which the statement changes
        """

        def act(db: sqlite3.Connection) -> None:
            for columns in before:
                database.execute(db, statement, columns)

        self._commit(
            act,
            lambda db: (
                not any(database.has(db, table, columns) for columns in before)
            ),
        )
