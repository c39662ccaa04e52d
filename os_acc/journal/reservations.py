# SPDX-License-Identifier: Apache-2.0

"""Devices that no VAN may get until an operator frees them.

A device of one-time use is reserved by the transaction that deletes the row of
the VAN that had it, so that a crash cannot lose the reservation.
"""

from __future__ import annotations

import dataclasses
import sqlite3

from os_acc import objects
from os_acc.journal import database

#: Key of VAN.driver_data: the reason to reserve the VAN's handle when the VAN
#: is released.
RESERVE = 'reserve'

_COLUMNS = ('address', 'device', 'since', 'reason')


@dataclasses.dataclass(frozen=True)
class Reservation:
    """A reserved device.

    :ivar address: of the handle, such as a PCI address
    :ivar device: address of the parent device: for a VF its PF
    :ivar since: when it was reserved, ISO 8601
    :ivar reason: why, for the operator
    """

    address: str
    device: str
    since: str
    reason: str


def read(db: sqlite3.Connection) -> list[Reservation]:
    rows = database.execute(
        db, f'SELECT {", ".join(_COLUMNS)} FROM reserved ORDER BY address'
    )
    return [Reservation(*row) for row in rows]


def wanted(van: objects.VAN, since: str) -> Reservation | None:
    """The reservation to make when a VAN is released; None: none."""
    reason = van.driver_data.get(RESERVE)
    if reason is None or van.handle is None:
        return None
    address = van.handle.identity.partition('/')[2]
    return Reservation(address, van.device or address, since, reason)


def write(
    db: sqlite3.Connection,
    reservation: Reservation,
    van_uuid: str,
    instance_uuid: str,
) -> None:
    """Reserve the handle of a VAN, if the VAN still has a row.

    A VAN whose row is gone was released before. The operator may have freed
    its device since.
    """
    database.execute(
        db,
        f'INSERT OR REPLACE INTO reserved ({", ".join(_COLUMNS)})'
        ' SELECT ?, ?, ?, ? WHERE EXISTS'
        ' (SELECT 1 FROM van WHERE uuid = ? AND instance_uuid = ?)',
        (*dataclasses.astuple(reservation), van_uuid, instance_uuid),
    )


def delete(db: sqlite3.Connection, address: str) -> bool:
    """Free a device.

    :returns: whether it was reserved
    """
    done = database.execute(
        db, 'DELETE FROM reserved WHERE address = ?', (address,)
    )
    return done.rowcount > 0
