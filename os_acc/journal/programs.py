# SPDX-License-Identifier: Apache-2.0

"""Records of programmed devices: a row for each region."""

from __future__ import annotations

import dataclasses
import json
import sqlite3

from os_acc.journal import database

# Key of VAN.driver_data: the region that the VAN's handle belongs to.
REGION = 'region'

PROGRAMMING = 'programming'
PROGRAMMED = 'programmed'
ERROR = 'error'
CLEARED = 'cleared'
REBOOT = 'reboot'

#: The region of a device that is programmed as a whole.
WHOLE = ''


@dataclasses.dataclass(frozen=True)
class Program:
    """What was programmed into a device, or into a region of it.

    :ivar device: address of the device; for one with a chip, the chip's
    :ivar region: WHOLE for a device that takes one function at a time
    :ivar function_id: the function; None: unknown
    :ivar digest: SHA-256 of the bitstream, hex; None: there was no file
    :ivar state: PROGRAMMING is written before the device is touched,
        PROGRAMMED after the function was verified, ERROR if programming failed
        or was interrupted. REBOOT: as PROGRAMMED, but the device has its old
        function until the host was switched off and on. CLEARED: the device
        has no function, and the hooks were not called yet
    :ivar boot_id: the boot of the host in which it was programmed
    :ivar error: the reason for state ERROR
    :ivar updated_at: time of the last change, ISO 8601
    :ivar driver: the name of the device's driver
    :ivar chip: kernel.chip.Chip.identity of the chip that was programmed, by
        which a card is recognised that was replaced; None: unknown
    :ivar address: address of the device as get_devices() gives it; empty: as
        device
    :ivar serial: the serial number of the chip; None: unknown
    :ivar handles: the identities of the handles that have the function
    :ivar announced: whether the hooks were called for this record
    :ivar cleaned: whether recover() has cleaned up after state ERROR, so that
        nothing is left to do for root
    """

    device: str
    region: str
    function_id: str | None
    digest: str | None
    state: str
    boot_id: str
    error: str | None = None
    updated_at: str = ''
    driver: str = ''
    chip: str | None = None
    address: str = ''
    serial: str | None = None
    handles: tuple[str, ...] = ()
    announced: bool = True
    cleaned: bool = False

    @property
    def label(self) -> str:
        """The device and region, as a person reads it."""
        return label(self.device, self.region)

    def is_done(self, boot_id: str) -> bool:
        """Whether the device has what was programmed."""
        return self.state == PROGRAMMED or (
            self.state == REBOOT and self.boot_id != boot_id
        )


def label(device: str, region: str) -> str:
    """Name a device, or a region of one, as a person reads it."""
    return device if region == WHOLE else f'region {region} of {device}'


def lock_name(device: str, region: str) -> str:
    """Return the name of the lock to hold while a region is programmed.

    It is not the device's own lock, so that handles of the device can be
    claimed meanwhile.
    """
    return f'{device}/function' + (f'-{region}' if region else '')


def read(db: sqlite3.Connection) -> list[Program]:
    """Read the records of all devices."""
    return [
        dataclasses.replace(
            found,
            handles=tuple(json.loads(str(found.handles))),
            announced=bool(found.announced),
            cleaned=bool(found.cleaned),
        )
        for found in database.read_all(
            db, 'program', Program, 'device, region'
        )
    ]
