# SPDX-License-Identifier: Apache-2.0

"""Sums of what events tell, for a monitor.

Events are deleted after a while; these sums never are. Each is a number that
only grows, as a counter of Prometheus, and has a name and labels. The time of
a call is counted in the first of BUCKETS that it fits in.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
import json
import sqlite3
from typing import NamedTuple

from os_acc.journal import events

#: Upper limits in seconds. A plug of fake devices takes some milliseconds, an
#: FPGA some seconds, and emptying a drive up to hours.
BUCKETS = (
    *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    *(30, 60, 120, 300, 600, 1800, 7200),
)
MORE = '+Inf'

#: The names of the sums. DURATIONS has the labels call, result and limit,
#: SECONDS has call and result; FAILURES has operation, step, extension and
#: error; RECOVERED has result.
DURATIONS = 'durations'
SECONDS = 'seconds'
FAILURES = 'failures'
RECOVERED = 'recovered'

#: The calls whose durations are counted.
CALLS = (events.PLUG, events.UNPLUG)

_ADD = (
    'INSERT INTO measure (name, labels, value) VALUES (?, ?, ?)'
    ' ON CONFLICT (name, labels) DO UPDATE SET value = value + excluded.value'
)


class Measure(NamedTuple):
    """A sum.

    :ivar name: one of the names of this module
    :ivar labels: the values of its labels
    """

    name: str
    labels: tuple[str, ...]
    value: float


def add(db: sqlite3.Connection, found: Iterable[events.Event]) -> None:
    """Add what events tell to the sums."""
    sums = collections.defaultdict[tuple[str, tuple[str, ...]], float](float)
    for event in found:
        for name, labels, value in _told(event):
            sums[name, labels] += value
    db.executemany(
        _ADD,
        [(name, json.dumps(labels), v) for (name, labels), v in sums.items()],
    )


def read(db: sqlite3.Connection) -> list[Measure]:
    """Read all sums."""
    rows = db.execute(
        'SELECT name, labels, value FROM measure ORDER BY 1, 2'
    ).fetchall()
    return [
        Measure(name, tuple(json.loads(labels)), value)
        for name, labels, value in rows
    ]


def _told(event: events.Event) -> Iterator[Measure]:
    """List what an event adds to the sums."""
    if event.error is not None:
        by = (event.step or '', event.extension or '')
        yield Measure(FAILURES, (event.operation, *by, event.error), 1)
    if event.step is not None:
        return
    call = (event.operation, event.result)
    if event.operation == events.RECOVER:
        yield Measure(RECOVERED, (event.result,), 1)
    elif event.operation in CALLS and event.seconds is not None:
        yield Measure(DURATIONS, (*call, _limit(event.seconds)), 1)
        yield Measure(SECONDS, call, event.seconds)


def _limit(seconds: float) -> str:
    return next((str(each) for each in BUCKETS if seconds <= each), MORE)
