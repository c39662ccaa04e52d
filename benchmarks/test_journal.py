# SPDX-License-Identifier: Apache-2.0


"""The journal beside sqlite alone: the commits of a plug, and 10,000 rows.

The peer makes the commits that plug, or plug and unplug, of 8 VANs with
drivers that save once make: the same rows, in WAL mode with full sync, on the
same disk, with a commit for each driver's save.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
import json
import pathlib
import sqlite3
from typing import Any
import uuid

from oslo_utils import timeutils
import pytest

import acc_plug_noop
import os_acc
from os_acc import driver
from os_acc import journal
from os_acc import loader
from os_acc import objects
from os_acc.journal import codec
from os_acc.journal import schema
from os_acc.kernel import sysfs

COUNT = 8
ROWS = 10_000
ROUNDS = 30


class SavingDriver(driver.DriverBase):
    """Saves each VAN once, as a driver with a device has to."""

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        return True

    def get_devices(self) -> list[objects.Device]:
        return []

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        van.handle = request.handle
        van.save()

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        pass


class Bare:
    """The same table without os-acc."""

    def __init__(self, path: pathlib.Path, entries: Any) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute('PRAGMA journal_mode = WAL')
        self.db.execute('PRAGMA synchronous = FULL')
        for statement in schema.MIGRATIONS[0].split(';'):
            self.db.execute(statement)
        self.rows = codec.new_rows(entries)

    def commit(self, statement: str, rows: Sequence[dict[str, Any]]) -> None:
        self.db.execute('BEGIN IMMEDIATE')
        self.db.executemany(statement, rows)
        self.db.execute('COMMIT')

    def plug(self) -> None:
        """Make the commits of a plug."""
        names = list(self.rows[0])
        changed = [n for n in names if n not in ('uuid', 'instance_uuid')]
        insert = (
            f'INSERT INTO van ({", ".join(names)})'
            f' VALUES ({", ".join(f":{name}" for name in names)})'
        )
        update = (
            f'UPDATE van SET {", ".join(f"{n} = :{n}" for n in changed)}'
            ' WHERE uuid = :uuid'
        )
        self.commit(insert, self.rows)
        for row in self.rows:
            self.commit(update, [row])
        self.commit(update, self.rows)
        self.commit(update, self.rows)

    def unplug(self) -> None:
        """Make the commits of an unplug."""
        mark = (
            'UPDATE van SET state = :state, live = :live, attached ='
            ' :attached, updated_at = :updated_at WHERE uuid = :uuid'
        )
        self.commit(mark, self.rows)
        self.commit(mark, self.rows)
        self.commit('DELETE FROM van WHERE uuid = :uuid', self.rows)


def _request(number: int) -> objects.AcceleratorRequest:
    bus, rest = divmod(number, 256)
    return objects.AcceleratorRequest(
        uuid=str(uuid.UUID(int=number + 1)),
        handle=objects.PCIHandle(
            address=f'{bus:04x}:{rest:02x}:00.0', managed=True
        ),
    )


def _entry(number: int) -> journal.Entry:
    now = timeutils.utcnow(with_timezone=True)
    request = _request(number)
    instance = objects.InstanceInfo(
        uuid=str(uuid.UUID(int=number // COUNT + 1)),
        name='instance',
        project_id='project',
    )
    van = objects.VAN(
        uuid=request.uuid,
        instance_uuid=instance.uuid,
        driver='saving',
        plugin='noop',
        state='plugged',
        handle=request.handle,
        device=request.handle.address,
        driver_data={'driver': 'nvme'},
        guest_config='<hostdev/>',
        boot_id=sysfs.boot_id(),
        created_at=now,
        updated_at=now,
    )
    return journal.Entry(van, request, instance, live=False, attached=True)


def _plug(entries: Sequence[journal.Entry]) -> None:
    instance = entries[0].instance_info
    assert len(os_acc.plug(instance, [e.request for e in entries])) == COUNT
    assert os_acc.unplug(instance) == COUNT


@pytest.fixture
def entries(
    disk: pathlib.Path, initialize: Callable[..., Callable[[], None]]
) -> list[journal.Entry]:
    """What is plugged. os-acc is initialized."""
    extensions = loader.Extensions(
        {'saving': SavingDriver.load('saving')},
        {'noop': acc_plug_noop.NoopPlugin.load('noop')},
        {},
    )
    initialize(disk / 'state', extensions)
    return [_entry(number) for number in range(COUNT)]


@pytest.fixture
def bare(
    disk: pathlib.Path, entries: Sequence[journal.Entry]
) -> Iterator[Bare]:
    made = Bare(disk / 'bare.db', entries)
    yield made
    made.db.close()


@pytest.mark.benchmark(group='plug 8, unplug 8, beside bare commits')
def test_commits(
    entries: Sequence[journal.Entry],
    bare: Bare,
    take_turns: Callable[..., None],
) -> None:
    def peer() -> None:
        bare.plug()
        bare.unplug()

    take_turns(functools.partial(_plug, entries), peer, ROUNDS)


@pytest.mark.benchmark(group='plug 8, beside bare commits')
def test_plug_commits(
    entries: Sequence[journal.Entry],
    bare: Bare,
    take_turns: Callable[..., None],
) -> None:
    instance = entries[0].instance_info
    take_turns(
        functools.partial(
            os_acc.plug, instance, [entry.request for entry in entries]
        ),
        bare.plug,
        ROUNDS,
        before_peer=functools.partial(os_acc.unplug, instance),
        after_peer=bare.unplug,
    )
    assert len(os_acc.get_vans(instance)) == COUNT


@pytest.mark.benchmark(group='10,000 rows')
@pytest.mark.parametrize('call', ['vans', 'handles'])
def test_read(
    call: str, tmp_path: pathlib.Path, take_turns: Callable[..., None]
) -> None:
    opened = journal.Journal(str(tmp_path), 30)
    opened.add(_entry(number) for number in range(ROWS))
    bare = sqlite3.connect(opened.path)

    def select() -> None:
        for (text,) in bare.execute('SELECT van FROM van').fetchall():
            json.loads(text)

    act = getattr(opened, call)
    assert len(act()) == ROWS
    take_turns(act, select, 5)
    bare.close()
    opened.close()
