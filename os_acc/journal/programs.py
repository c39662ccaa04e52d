# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Records of programmed devices: a row for each region."""

from __future__ import annotations

import dataclasses
import sqlite3

from os_acc.journal import database

# Key of VAN.driver_data: the region that the VAN's handle belongs to.
REGION = 'region'

PROGRAMMING = 'programming'
PROGRAMMED = 'programmed'
ERROR = 'error'

#: The region of a device that is programmed as a whole.
WHOLE = ''

_COLUMNS = (
    'device',
    'region',
    'function_id',
    'digest',
    'state',
    'boot_id',
    'error',
    'updated_at',
)


@dataclasses.dataclass(frozen=True)
class Program:
    """What was programmed into a device, or into a region of it.

    :ivar device: address of the device
    :ivar region: WHOLE for a device that takes one function at a time
    :ivar function_id: the function; None: unknown
    :ivar digest: SHA-256 of the bitstream, hex; None: there was no file
    :ivar state: PROGRAMMING is written before the device is touched,
        PROGRAMMED after the function was verified, ERROR if programming
        failed or was interrupted
    :ivar boot_id: the boot of the host in which it was programmed
    :ivar error: the reason for state ERROR
    :ivar updated_at: time of the last change, ISO 8601
    """

    device: str
    region: str
    function_id: str | None
    digest: str | None
    state: str
    boot_id: str
    error: str | None = None
    updated_at: str = ''

    @property
    def label(self) -> str:
        """The device and region, as a person reads it."""
        return label(self.device, self.region)


def label(device: str, region: str) -> str:
    """Name a device, or a region of one, as a person reads it."""
    return device if region == WHOLE else f'region {region} of {device}'


def lock_name(device: str, region: str) -> str:
    """Return the name of the lock to hold while a region is programmed.

    It is not the device's own lock, so that handles of the device can be
    claimed meanwhile.
    """
    return f'{device}/function' + (f'-{region}' if region else '')


def read(db: sqlite3.Connection, device: str | None) -> list[Program]:
    """Read the records of a device; None: of all."""
    rows = database.execute(
        db,
        f'SELECT {", ".join(_COLUMNS)} FROM program'
        ' WHERE device = ? OR ? IS NULL ORDER BY device, region',
        (device, device),
    )
    return [Program(*row) for row in rows]


def write(db: sqlite3.Connection, program: Program) -> None:
    """Write a record in place of the previous one."""
    marks = ', '.join('?' * len(_COLUMNS))
    database.execute(
        db,
        f'INSERT OR REPLACE INTO program ({", ".join(_COLUMNS)})'
        f' VALUES ({marks})',
        dataclasses.astuple(program),
    )


def forget(db: sqlite3.Connection, device: str, region: str) -> None:
    """Delete a record: it is unknown what the region holds."""
    database.execute(
        db,
        'DELETE FROM program WHERE device = ? AND region = ?',
        (device, region),
    )
