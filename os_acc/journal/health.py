# SPDX-License-Identifier: Apache-2.0

"""Devices that are given to nobody: they have failed, or are reserved."""

from __future__ import annotations

import dataclasses
import sqlite3

from os_acc import objects
from os_acc.journal import database

#: The causes: programming or clearing failed; a reset or the cleaning after a
#: release failed; the kernel has counted a fatal PCIe error; the device does
#: not answer, or has left the bus and has not come back.
PROGRAMMING = 'programming'
CLEANING = 'cleaning'
AER = 'aer'
GONE = 'gone'
#: The device has a new function only after the host was switched off and on.
REBOOT = 'reboot'

_COLUMNS = (
    'device',
    'cause',
    'reason',
    'boot_id',
    'since',
    'driver',
    'announced',
)
_FATAL = ('device', 'generation', 'count')


@dataclasses.dataclass(frozen=True)
class Health:
    """Why a device is not given out. It may have several causes.

    :ivar device: address of the device; for one with a chip, the chip's
    :ivar cause: one of the constants of this module. That of PROGRAMMING has
        the region appended if there is one, see programming_of()
    :ivar reason: a clause for the operator
    :ivar boot_id: the boot of the host in which it began
    :ivar since: when it began, ISO 8601
    :ivar driver: the name of the device's driver; empty if unknown
    :ivar announced: whether the hooks were called for it
    """

    device: str
    cause: str
    reason: str
    boot_id: str
    since: str
    driver: str = ''
    announced: bool = True


@dataclasses.dataclass(frozen=True)
class FatalErrors:
    """The fatal PCIe errors that an operator has acknowledged.

    :ivar device: the address of the PCI function
    :ivar generation: the kernel's counter starts again at 0 in another one
    :ivar count: the kernel's counter at that time
    """

    device: str
    generation: str
    count: int


def programming_of(region: str) -> str:
    """Name the cause that the programming of a region has failed.

    :param region: empty for the whole device
    """
    return f'{PROGRAMMING} {region}'.strip()


def concerns_chip(health: Health) -> bool:
    """Whether a cause applies to the whole chip, whatever its address was."""
    return health.cause == REBOOT or (
        health.cause.partition(' ')[0] == PROGRAMMING
    )


def read(db: sqlite3.Connection) -> list[Health]:
    """Read the causes of all devices, the oldest of a device first."""
    rows = database.execute(
        db,
        f'SELECT {", ".join(_COLUMNS)} FROM health'
        ' ORDER BY device, since, cause',
    )
    return [
        dataclasses.replace(Health(*row), announced=bool(row[-1]))
        for row in rows
    ]


def write(db: sqlite3.Connection, health: Health) -> None:
    """Write a cause. The same cause stays as it is, with its time.

    REBOOT is the exception: one of an earlier boot is no longer valid.
    """
    verb = 'REPLACE' if health.cause == REBOOT else 'IGNORE'
    marks = ', '.join('?' * len(_COLUMNS))
    database.execute(
        db,
        f'INSERT OR {verb} INTO health ({", ".join(_COLUMNS)})'
        f' VALUES ({marks})',
        dataclasses.astuple(health),
    )


def announce(db: sqlite3.Connection, health: Health) -> None:
    """Note that the hooks were called for a cause."""
    database.execute(
        db,
        'UPDATE health SET announced = 1'
        ' WHERE device = ? AND cause = ? AND since = ?',
        (health.device, health.cause, health.since),
    )


def delete(db: sqlite3.Connection, device: str, cause: str) -> bool:
    """End a cause.

    :returns: whether the device had it
    """
    done = database.execute(
        db,
        'DELETE FROM health WHERE device = ? AND cause = ?',
        (device, cause),
    )
    return done.rowcount > 0


def acknowledged(db: sqlite3.Connection) -> list[FatalErrors]:
    """Read the fatal errors that operators have acknowledged."""
    rows = database.execute(
        db, f'SELECT {", ".join(_FATAL)} FROM fatal_errors ORDER BY device'
    )
    return [FatalErrors(*row) for row in rows]


def acknowledge(db: sqlite3.Connection, errors: FatalErrors) -> None:
    """Write acknowledged errors, in place of the device's earlier ones."""
    database.execute(
        db,
        f'INSERT OR REPLACE INTO fatal_errors ({", ".join(_FATAL)})'
        ' VALUES (?, ?, ?)',
        dataclasses.astuple(errors),
    )


# Devices that no VAN may get until an operator frees them.
#
# A device of one-time use is reserved by the transaction that deletes the row
# of the VAN that had it, so that a crash cannot lose the reservation.


#: Key of VAN.driver_data: the reason to reserve the VAN's handle when the VAN
#: is released.
RESERVE = 'reserve'

_OF_RESERVED = ('address', 'device', 'since', 'reason')


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


def reservations(db: sqlite3.Connection) -> list[Reservation]:
    rows = database.execute(
        db, f'SELECT {", ".join(_OF_RESERVED)} FROM reserved ORDER BY address'
    )
    return [Reservation(*row) for row in rows]


def reservation_of(van: objects.VAN, since: str) -> Reservation | None:
    """The reservation to make when a VAN is released; None: none."""
    reason = van.driver_data.get(RESERVE)
    if reason is None or van.handle is None:
        return None
    address = van.handle.identity.partition('/')[2]
    return Reservation(address, van.device or address, since, reason)


def reserve(
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
        f'INSERT OR REPLACE INTO reserved ({", ".join(_OF_RESERVED)})'
        ' SELECT ?, ?, ?, ? WHERE EXISTS'
        ' (SELECT 1 FROM van WHERE uuid = ? AND instance_uuid = ?)',
        (*dataclasses.astuple(reservation), van_uuid, instance_uuid),
    )


def free(db: sqlite3.Connection, address: str) -> bool:
    """Free a device.

    :returns: whether it was reserved
    """
    done = database.execute(
        db, 'DELETE FROM reserved WHERE address = ?', (address,)
    )
    return done.rowcount > 0
