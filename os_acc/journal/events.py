# SPDX-License-Identifier: Apache-2.0

"""What happened: one row for each step, the newest MOST rows.

Nothing is recovered from them: they only tell an operator what happened.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import datetime
import json
import logging
import os
import sqlite3
from typing import Any
from typing import NamedTuple

from os_acc import exception
from os_acc.journal import database
from os_acc.texts import masking

#: How many events the journal keeps. An eighth more (SLACK) is written
#: before the oldest are deleted, so that not every commit has to delete.
MOST = 10_000
SLACK = MOST // 8

#: The operations. RECOVER is also that of a plug that first releases what an
#: earlier call has left half done.
PLUG = 'plug'
UNPLUG = 'unplug'
REPLUG = 'replug'
RECOVER = 'recover'
ORPHANS = 'orphans'
FORGET = 'forget'
PROGRAM = 'program'
FREE = 'free'
UNHEALTHY = 'unhealthy'
DEMAND = 'demand'
POOL = 'pool'
# Those of os_acc.migration.
PREPARE = 'prepare'
HAND_OVER = 'hand over'
SWITCH = 'switch'
FINISH = 'finish'
ABORT = 'abort'

#: The results.
DONE = 'done'
FAILED = 'failed'
RELEASED = 'released'
RESTORED = 'restored'

#: The longest text of an error that is kept, in characters.
LONGEST = 1000

# These errors only say where their cause happened.
_WRAPPERS = (exception.StepFailed, exception.AttachException)


class Event(NamedTuple):
    """What happened to a VAN, an instance or a device.

    :ivar at: when it ended, ISO 8601 in UTC, with milliseconds
    :ivar operation: one of the operations of this module
    :ivar step: the step of the call, such as prepareVAN; None: the event is
        about the call as a whole
    :ivar result: DONE or FAILED; of a VAN as a whole that was recovered,
        RELEASED, RESTORED or FAILED
    :ivar seconds: how long it took; None: it has no duration
    :ivar van_uuid: the VAN; None: it is about no single VAN
    :ivar instance_uuid: the instance; None: it is about a device only
    :ivar instance_name: the name of the instance, if it is known
    :ivar device: the address of the parent device, if it is known
    :ivar handle: the identity of the handle, if it is known
    :ivar extension: the name of the driver or plugin that did the step
    :ivar error: the class of the error
    :ivar reason: the text of the error
    :ivar seq: its number in the journal. A later event has a higher one.
        This and the following are set when the event is written
    :ivar uid: the id of the user that the program ran as
    :ivar program: the program or service, as the owner of VANs
    :ivar pid: the id of its process
    """

    at: str
    operation: str
    step: str | None
    result: str
    seconds: float | None = None
    van_uuid: str | None = None
    instance_uuid: str | None = None
    instance_name: str | None = None
    device: str | None = None
    handle: str | None = None
    extension: str | None = None
    error: str | None = None
    reason: str | None = None
    seq: int | None = None
    uid: int | None = None
    program: str | None = None
    pid: int | None = None


class Wanted(NamedTuple):
    """Which events to read. None: all of them.

    :ivar van: the UUID of a VAN, or the beginning of one
    :ivar instances: UUIDs of instances, or the beginnings of such
    :ivar instance_name: or the name of an instance
    :ivar device: the address of a device or of a handle, or the identity of a
        handle
    :ivar since: only events that ended at this time or later; as Event.at
    :ivar after: only events with a higher number than this
    """

    van: str | None = None
    instances: Sequence[str] = ()
    instance_name: str | None = None
    device: str | None = None
    since: str | None = None
    after: int | None = None


_COLUMNS = Event._fields
_INSERT = (
    f'INSERT INTO event ({", ".join(_COLUMNS)})'
    f' VALUES ({", ".join("?" * len(_COLUMNS))})'
)

# sqlite looks one of the two up in the index of seq, but reads all rows for
# both of them in one SELECT (sqlite.org/optoverview.html, "The MIN/MAX
# Optimization").
_ENDS = 'SELECT (SELECT min(seq) FROM event), (SELECT max(seq) FROM event)'


def now() -> str:
    """The time for Event.at."""
    return written(datetime.datetime.now(datetime.UTC))


def written(time: datetime.datetime) -> str:
    """Write a time of UTC as Event.at has it. Earlier times sort first."""
    return time.isoformat(timespec='milliseconds').removesuffix('+00:00') + 'Z'


def failure(err: BaseException) -> dict[str, Any]:
    """Make the fields error and reason of an event.

    The reason is the text that the log has, without what looks like a
    password or a token: a driver of somebody else may put one into an error,
    and an event is kept for longer than a VAN.
    """
    while isinstance(err, _WRAPPERS) and err.__cause__ is not None:
        err = err.__cause__
    reason = masked(exception.describe(err))
    return {'error': type(err).__name__, 'reason': reason}


def masked(text: str) -> str:
    """Remove what looks like a secret from the text of an error."""
    return masking.of_error(text)[:LONGEST]


def insert(
    db: sqlite3.Connection, program: str, found: Sequence[Event]
) -> None:
    """Write events, and delete the oldest if there are too many."""
    # The values of seq and of the columns after it.
    author = (None, os.geteuid(), program, os.getpid())
    db.executemany(
        _INSERT,
        [(*map(database.storable, each[:-4]), *author) for each in found],
    )
    first, last = db.execute(_ENDS).fetchone()
    if last - first >= MOST + SLACK:
        db.execute('DELETE FROM event WHERE seq <= ?', (last - MOST,))


def read(db: sqlite3.Connection, wanted: Wanted) -> list[Event]:
    """Read events, the oldest first."""
    where, values = ['1'], list[Any]()
    if wanted.van is not None:
        where.append("van_uuid LIKE ? ESCAPE '!'")
        values.append(_beginning(wanted.van))
    if wanted.instances or wanted.instance_name is not None:
        tests = ["instance_uuid LIKE ? ESCAPE '!'"] * len(wanted.instances)
        where.append(f'({" OR ".join([*tests, "instance_name = ?"])})')
        values += [*map(_beginning, wanted.instances), wanted.instance_name]
    if wanted.device is not None:
        where.append(
            'lower(?) IN (lower(device), lower(handle),'
            " lower(substr(handle, instr(handle, '/') + 1)))"
        )
        values.append(wanted.device)
    if wanted.since is not None:
        where.append('at >= ?')
        values.append(wanted.since)
    if wanted.after is not None:
        where.append('seq > ?')
        values.append(wanted.after)
    rows = database.execute(
        db,
        f'SELECT {", ".join(_COLUMNS)} FROM event'
        f' WHERE {" AND ".join(where)} ORDER BY seq',
        values,
    )
    return [Event(*row) for row in rows]


def _beginning(text: str) -> str:
    """The pattern of LIKE for texts that begin with this one."""
    for char in '!%_':
        text = text.replace(char, f'!{char}')
    return f'{text}%'


# Sums over the events, for a monitor.
#
# Events are deleted after a while; these sums never are. Each is a number that
# only grows, as a counter of Prometheus, and has a name and labels. The time
# of a call is counted in the first of BUCKETS that it fits in.


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
CALLS = (PLUG, UNPLUG)

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


def add(db: sqlite3.Connection, found: Iterable[Event]) -> None:
    """Add events to the sums."""
    sums = collections.defaultdict[tuple[str, tuple[str, ...]], float](float)
    for event in found:
        for name, labels, value in _measures_of(event):
            sums[name, labels] += value
    db.executemany(
        _ADD,
        [(name, json.dumps(labels), v) for (name, labels), v in sums.items()],
    )


def read_sums(db: sqlite3.Connection) -> list[Measure]:
    """Read all sums."""
    rows = db.execute(
        'SELECT name, labels, value FROM measure ORDER BY 1, 2'
    ).fetchall()
    return [
        Measure(name, tuple(json.loads(labels)), value)
        for name, labels, value in rows
    ]


def _measures_of(event: Event) -> Iterator[Measure]:
    """List what an event adds to the sums."""
    if event.error is not None:
        by = (event.step or '', event.extension or '')
        yield Measure(FAILURES, (event.operation, *by, event.error), 1)
    if event.step is not None:
        return
    call = (event.operation, event.result)
    if event.operation == RECOVER:
        yield Measure(RECOVERED, (event.result,), 1)
    elif event.operation in CALLS and event.seconds is not None:
        yield Measure(DURATIONS, (*call, _limit(event.seconds)), 1)
        yield Measure(SECONDS, call, event.seconds)


def _limit(seconds: float) -> str:
    return next((str(each) for each in BUCKETS if seconds <= each), MORE)


# Writes events and what they add to the sums, within a transaction.
#
# Events cost no commit of their own: they are in the commit that ends a call.


LOG = logging.getLogger(__name__)


def write_events(
    db: sqlite3.Connection, program: str, found: Sequence[Event]
) -> None:
    """Write events, and add them to the sums.

    If this fails, the rest of the transaction goes on without the events.

    :raises sqlite3.Error: if sqlite has rolled back the whole transaction
    """
    db.execute('SAVEPOINT events')
    try:
        insert(db, program, found)
        add(db, found)
    except Exception as err:
        if not db.in_transaction:
            raise
        db.execute('ROLLBACK TO events')
        LOG.warning('%d events are not written: %s', len(found), err)
    db.execute('RELEASE events')
