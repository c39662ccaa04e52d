# SPDX-License-Identifier: Apache-2.0

"""The state that this host's devices shall have: see os_acc.desired.

The document is written before the first device is touched, and says when all
of it was done. So a crash or a reboot of the host cannot lose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import json
import sqlite3
from typing import Any

from os_acc.journal import database

#: The key for devices of an earlier document, by the part that had them. No
#: document of a user has it.
LET_GO = 'let_go'


@dataclasses.dataclass(frozen=True)
class Desired:
    """The document that was applied last.

    :ivar document: JSON
    :ivar settled: the boot of the host in which all of it was done; None: it
        is being done, or something was in the way
    """

    document: str
    settled: str | None = None

    def devices_of(self, part: str, also_let_go: bool = True) -> list[str]:
        """List the devices that the document sets up ahead of time.

        :param part: of the document: partitions, vgpus, work_queues or mdevs
        :param also_let_go: also those of an earlier document, until that is
            undone
        :returns: their addresses; of mdevs: parent, type and number
        """
        found = json.loads(self.document)
        names = devices_in(found, part)
        gone = found.get(LET_GO, {}) if also_let_go else {}
        if isinstance(gone, list):  # an earlier version had only these
            gone = {'vgpus': gone}
        return [*names, *gone.get(part, ())]

    def pools(self) -> list[dict[str, Any]]:
        """The pools of the document, as it has them."""
        found: list[dict[str, Any]] = json.loads(self.document).get(
            'pools', []
        )
        return found


def devices_in(document: Mapping[str, Any], part: str) -> list[str]:
    """The devices of a part of a document: see Desired.devices_of()."""
    return [name for each in document.get(part, ()) for name in _names(each)]


def _names(item: dict[str, Any]) -> Iterator[str]:
    if 'type' not in item:
        yield item['device']
        return
    # An earlier version of os-acc accepted 2.0.
    for number in range(int(item.get('count', 1))):
        yield f'{item["device"]} {item["type"]} {number}'


def read(db: sqlite3.Connection) -> list[Desired]:
    """Read the document; empty: none was applied."""
    return database.read_all(db, 'desired', Desired, 'rowid')


def write(db: sqlite3.Connection, desired: Desired | None) -> None:
    """Write the document in place of the earlier one; None: there is none."""
    database.execute(db, 'DELETE FROM desired')
    if desired is not None:
        database.put(db, 'desired', vars(desired))
