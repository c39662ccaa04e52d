# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What the journal says of programmed devices: a row for each region."""

from __future__ import annotations

import dataclasses
import sqlite3

# Key of VAN.driver_data: the region that a VAN's handle is of.
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

    :ivar device: its address
    :ivar region: WHOLE for a device that takes one function at a time
    :ivar function_id: None: not known
    :ivar digest: SHA-256 of the bitstream, hex; None: there was no file
    :ivar state: PROGRAMMING from before the act on, PROGRAMMED after it was
        verified, ERROR where it failed or was cut short
    :ivar boot_id: the boot of the host in which it was programmed
    :ivar error: why, in state ERROR
    :ivar updated_at: when, ISO 8601
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
        """The device, for a person."""
        return label(self.device, self.region)


def label(device: str, region: str) -> str:
    """A device, or a region of one, for a person."""
    return device if region == WHOLE else f'region {region} of {device}'


def lock_name(device: str, region: str) -> str:
    """What to hold while it is programmed.

    Not the device itself: a handle of it can be claimed meanwhile.
    """
    return f'{device}/function' + (f'-{region}' if region else '')


def read(db: sqlite3.Connection, device: str | None) -> list[Program]:
    """The rows of a device; None: of all."""
    rows = db.execute(
        f'SELECT {", ".join(_COLUMNS)} FROM program'
        ' WHERE device = ? OR ? IS NULL ORDER BY device, region',
        (device, device),
    )
    return [Program(*row) for row in rows]


def write(db: sqlite3.Connection, program: Program) -> None:
    """Write a row in place of what there was."""
    marks = ', '.join('?' * len(_COLUMNS))
    db.execute(
        f'INSERT OR REPLACE INTO program ({", ".join(_COLUMNS)})'
        f' VALUES ({marks})',
        dataclasses.astuple(program),
    )


def forget(db: sqlite3.Connection, device: str, region: str) -> None:
    """Drop a row: nothing is known of what is in there."""
    db.execute(
        'DELETE FROM program WHERE device = ? AND region = ?',
        (device, region),
    )
