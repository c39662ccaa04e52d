# SPDX-License-Identifier: Apache-2.0

"""What was requested and not found: a row for each kind of request.

Requests with the same resource class, traits and function are one kind. The
journal keeps the newest MOST kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
import sqlite3

from os_acc.journal import database

#: How many kinds of requests the journal keeps.
MOST = 500


@dataclasses.dataclass(frozen=True)
class Demand:
    """Requests that found no device.

    :ivar resource_class: None: they name none
    :ivar traits: sorted
    :ivar function_id: None: they name none
    :ivar count: how many there were
    :ivar first_at: the time of the first one, as events.Event.at
    :ivar last_at: the time of the last one
    """

    resource_class: str | None
    traits: tuple[str, ...]
    function_id: str | None
    count: int
    first_at: str
    last_at: str

    def text(self) -> str:
        """Describe what was requested."""
        named = [self.resource_class or 'any class', *self.traits]
        if self.function_id is not None:
            named.append(f'function {self.function_id}')
        return ', '.join(named)


def add(db: sqlite3.Connection, found: Sequence[Demand]) -> None:
    """Add requests to those of their kinds."""
    for each in found:
        database.execute(
            db,
            "INSERT INTO demand VALUES (ifnull(:resource_class, ''), :traits,"
            " ifnull(:function_id, ''), :count, :first_at, :last_at)"
            ' ON CONFLICT (resource_class, traits, function_id) DO UPDATE SET'
            ' count = count + excluded.count, last_at = excluded.last_at',
            database.columns_of(each),
        )
    database.execute(
        db,
        'DELETE FROM demand WHERE rowid NOT IN'
        ' (SELECT rowid FROM demand ORDER BY last_at DESC LIMIT ?)',
        (MOST,),
    )


def read(db: sqlite3.Connection) -> list[Demand]:
    """Read all kinds, the newest last."""
    found = database.read_all(db, 'demand', Demand, 'last_at, rowid')
    return [
        dataclasses.replace(
            each,
            resource_class=each.resource_class or None,
            traits=tuple(json.loads(str(each.traits))),
            function_id=each.function_id or None,
        )
        for each in found
    ]
