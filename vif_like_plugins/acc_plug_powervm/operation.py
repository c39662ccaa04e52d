# SPDX-License-Identifier: Apache-2.0

"""The note of a change of an LPAR that the server may not have ended.

The server goes on with a change after its client has given up or has died.
The note is in the VAN's driver_data, and in the journal before the request is
sent, so that the undo knows of the change in any process.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import time

from os_acc import exception
from os_acc import objects
from os_acc.deadlines import outliving

#: The key in the VAN's driver_data.
KEY = 'powervm_operation'

ATTACH = 'attach'
DETACH = 'detach'


@dataclasses.dataclass(frozen=True)
class Operation:
    """A change that was begun.

    :ivar kind: ATTACH or DETACH
    :ivar until: the latest time at which the server may carry it out, in
        seconds since the epoch
    :ivar process: outliving.process() of the process that has begun it
    """

    kind: str
    drc_index: str
    lpar_uuid: str
    until: float
    process: str

    @classmethod
    def begin(
        cls, kind: str, drc_index: str, lpar_uuid: str, seconds: float
    ) -> Operation:
        """Make the note of a change that this process begins now.

        :param seconds: after how many seconds the server has ended it for
            certain
        """
        until = round(time.time() + seconds, 3)
        return cls(kind, drc_index, lpar_uuid, until, outliving.process())

    def __str__(self) -> str:
        """A verb phrase for messages: 'attach slot ... to LPAR ...'."""
        to = 'to' if self.kind == ATTACH else 'from'
        return f'{self.kind} slot {self.drc_index} {to} LPAR {self.lpar_uuid}'

    @property
    def end(self) -> str:
        """The time ``until``, for messages."""
        end = datetime.datetime.fromtimestamp(self.until, datetime.UTC)
        return f'{end:%Y-%m-%d %H:%M:%S} UTC'

    @property
    def is_unknown(self) -> bool:
        """Whether it is unknown if the server has ended the change.

        The process that began it keeps the LPAR's turn until the server has
        ended it. So once the turn is free, only the changes of other
        processes are unknown.
        """
        return self.process != outliving.process() and time.time() < self.until


def note(van: objects.VAN, operation: Operation) -> None:
    """Write to the journal that a change begins."""
    van.driver_data = {
        **van.driver_data,
        KEY: json.dumps(dataclasses.asdict(operation)),
    }
    van.save()


def noted(van: objects.VAN) -> Operation | None:
    """Read the note of a VAN; None if it has none.

    :raises InvalidRequest: if the note cannot be read
    """
    text = van.driver_data.get(KEY)
    if text is None:
        return None
    try:
        values = json.loads(text)
        return Operation(**{**values, 'until': float(values['until'])})
    except (KeyError, TypeError, ValueError) as err:
        raise exception.InvalidRequest(
            subject=f'VAN {van.uuid}',
            field=f'driver_data {KEY}',
            value=text,
            expected='the note of an operation that this version of os-acc '
            'writes',
        ) from err


def forget(van: objects.VAN) -> None:
    """Remove the note from the VAN. os-acc saves the VAN after the step."""
    van.driver_data = {
        key: value for key, value in van.driver_data.items() if key != KEY
    }
