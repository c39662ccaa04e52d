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

from os_acc.journal import desired as desired_rows
from os_acc.journal import events as event_rows
from os_acc.journal import health as health_rows
from os_acc.journal import programs as records
from os_acc.journal import store


class DeviceRecords(store.Store):
    """Reads and writes the records of devices in the journal."""

    def reservations(self) -> list[health_rows.Reservation]:
        """List the reserved devices."""
        return self._select(health_rows.reservations)

    def free(self, address: str) -> bool:
        """Free a reserved device.

        :param address: of the handle
        :returns: whether it was reserved
        """
        return self._commit(
            lambda db: health_rows.free(db, address),
            lambda db: all(
                found.address != address
                for found in health_rows.reservations(db)
            ),
        )

    def unhealthy(self) -> list[health_rows.Health]:
        """List the devices that are given to nobody, and why."""
        return self._select(health_rows.read)

    def save_unhealthy(self, found: health_rows.Health) -> None:
        """Stop giving out a device. A repeated cause changes nothing.

        :param found: of cause REBOOT, it replaces an earlier one
        """
        self._commit(
            lambda db: health_rows.write(db, found),
            lambda db: any(
                each == found
                or (
                    (each.device, each.cause) == (found.device, found.cause)
                    and found.cause != health_rows.REBOOT
                )
                for each in health_rows.read(db)
            ),
            [
                event_rows.Event(
                    at=event_rows.now(),
                    operation=event_rows.UNHEALTHY,
                    step=None,
                    result=event_rows.FAILED,
                    device=found.device,
                    extension=found.driver or None,
                    error=found.cause,
                    reason=event_rows.masked(found.reason),
                )
            ],
        )

    def announce_unhealthy(self, found: health_rows.Health) -> None:
        """Note that the hooks were called for an unhealthy device."""
        self._commit(
            lambda db: health_rows.announce(db, found),
            lambda db: found not in health_rows.read(db),
        )

    def forget_unhealthy(self, device: str, cause: str) -> bool:
        """End a cause for which a device is given to nobody.

        :returns: whether the device had it
        """
        return self._commit(
            lambda db: health_rows.delete(db, device, cause),
            lambda db: all(
                (each.device, each.cause) != (device, cause)
                for each in health_rows.read(db)
            ),
        )

    def acknowledged(self) -> list[health_rows.FatalErrors]:
        """List the fatal PCIe errors that an operator has acknowledged."""
        return self._select(health_rows.acknowledged)

    def acknowledge(self, errors: health_rows.FatalErrors) -> None:
        """Record that an operator has acknowledged fatal PCIe errors."""
        self._commit(
            lambda db: health_rows.acknowledge(db, errors),
            lambda db: errors in health_rows.acknowledged(db),
        )

    def programs(self, device: str | None = None) -> list[records.Program]:
        """Read what is programmed into a device; None: into all devices."""
        return self._select(lambda db: records.read(db, device))

    def save_program(self, program: records.Program) -> None:
        """Write what is programmed, in place of the earlier record."""
        self._commit(
            lambda db: records.write(db, program),
            lambda db: program in records.read(db, program.device),
        )

    def note_cleaned(self, programs: Sequence[records.Program]) -> None:
        """Note that nothing is left of failed programmings.

        :param programs: their records, as they were read before the clean-up
        """

        def write(db: sqlite3.Connection) -> None:
            for program in programs:
                records.note_cleaned(db, program)

        self._commit(
            write,
            lambda db: all(
                found.cleaned or found not in programs
                for found in records.read(db, None)
            ),
        )

    def forget_program(self, device: str, region: str) -> None:
        """Delete the record of a region."""
        self._commit(
            lambda db: records.forget(db, device, region),
            lambda db: all(
                found.region != region for found in records.read(db, device)
            ),
        )

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
        """Note that the document must be applied again, if there is one."""
        known = self.desired()
        if known is not None and known.settled is not None:
            self._commit(
                desired_rows.unsettle,
                lambda db: all(
                    each.settled is None for each in desired_rows.read(db)
                ),
            )

    def devices_of(self, part: str, also_let_go: bool = True) -> list[str]:
        """See desired.Desired.devices_of(); empty: there is no document."""
        known = self.desired()
        return [] if known is None else known.devices_of(part, also_let_go)

    def pools(self) -> list[dict[str, Any]]:
        """The pools of that document: see os_acc.desired.documents.Pool."""
        return self._select(desired_rows.pools)

    def kept_vfs(self) -> dict[str, int]:
        """How many VFs each PF keeps without a VAN, by the PF's address."""
        return dict(self._select(desired_rows.kept_vfs))

    def keep_vfs(self, pf: str, number: int | None) -> None:
        """Write how many VFs a PF keeps: see desired.keep_vfs()."""
        self._commit(
            lambda db: desired_rows.keep_vfs(db, pf, number),
            lambda db: dict(desired_rows.kept_vfs(db)).get(pf) == number,
        )
