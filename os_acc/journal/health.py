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
    found = database.read_all(db, 'health', Health, 'device, since, cause')
    return [
        dataclasses.replace(each, announced=bool(each.announced))
        for each in found
    ]


# Devices that no VAN may get until an operator frees them.
#
# A device of one-time use is reserved by the transaction that deletes the row
# of the VAN that had it, so that a crash cannot lose the reservation.


#: Key of VAN.driver_data: the reason to reserve the VAN's handle when the VAN
#: is released.
RESERVE = 'reserve'


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
    van = {'uuid': van_uuid, 'instance_uuid': instance_uuid}
    if database.has(db, 'van', van):
        database.put(db, 'reserved', vars(reservation))
