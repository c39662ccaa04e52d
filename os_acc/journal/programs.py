# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The journal's records of programmed devices: one row for each region."""

from __future__ import annotations

import dataclasses
import sqlite3

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
    :ivar region: the region; WHOLE for a device that holds one function at a
        time
    :ivar function_id: the function; None if it is not known
    :ivar digest: SHA-256 of the bitstream, hex; None if there was no file
    :ivar state: PROGRAMMING from before the device is changed, PROGRAMMED
        after the result was verified, ERROR if programming failed or was
        interrupted
    :ivar boot_id: the boot of the host in which the device was programmed
    :ivar error: the reason for the state ERROR
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
        """The name of the device or region in messages."""
        return label(self.device, self.region)


def label(device: str, region: str) -> str:
    """Return the name of a device, or of a region of it, for messages."""
    return device if region == WHOLE else f'region {region} of {device}'


def lock_name(device: str, region: str) -> str:
    """Return the name of the lock to hold while programming.

    It differs from the lock of the device, so that a VAN can claim a handle of
    the device during the programming.
    """
    return f'{device}/function' + (f'-{region}' if region else '')


def read(db: sqlite3.Connection, device: str | None) -> list[Program]:
    """Read the rows of a device; None: of all devices."""
    rows = db.execute(
        f'SELECT {", ".join(_COLUMNS)} FROM program'
        ' WHERE device = ? OR ? IS NULL ORDER BY device, region',
        (device, device),
    )
    return [Program(*row) for row in rows]


def write(db: sqlite3.Connection, program: Program) -> None:
    """Write a row, in place of an earlier one of the same region."""
    marks = ', '.join('?' * len(_COLUMNS))
    db.execute(
        f'INSERT OR REPLACE INTO program ({", ".join(_COLUMNS)})'
        f' VALUES ({marks})',
        dataclasses.astuple(program),
    )


def forget(db: sqlite3.Connection, device: str, region: str) -> None:
    """Delete a row. The content of the region is unknown from then on."""
    db.execute(
        'DELETE FROM program WHERE device = ? AND region = ?',
        (device, region),
    )
