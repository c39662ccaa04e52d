# SPDX-License-Identifier: Apache-2.0

"""The journal: what it keeps, whom it refuses, and what damage does to it."""

from concurrent import futures
import contextlib
import functools
import gc
import glob
import grp
import json
import os
import pwd
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import examples
import hypothesis
from hypothesis import stateful
from hypothesis import strategies
import journal_entries
from journal_entries import make_entry
from journal_entries import new_uuid
from journal_entries import test_handle
from oslo_config import cfg
import pytest

from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.journal import database
from os_acc.journal import file as journal_file
from os_acc.journal import health
from os_acc.journal import programs
from os_acc.journal import schema

STATES = (
    'preparing',
    'prepared',
    'plugging',
    'plugged',
    'unplugging',
    'unpreparing',
    'error',
)


def uuids(entries):
    return [entry.van.uuid for entry in entries]


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def state_path(tmp_path):
    return str(tmp_path / 'state')


@pytest.fixture
def opened(state_path):
    made = journal.Journal(state_path, 5)
    yield made
    made.close()


@contextlib.contextmanager
def opening(state_path, **kwargs):
    with contextlib.closing(
        journal.Journal(state_path, kwargs.pop('timeout', 5), **kwargs)
    ) as made:
        yield made


def read_again(state_path):
    with opening(state_path) as made:
        return made.entries()


@contextlib.contextmanager
def raw(path):
    """The file by sqlite3 alone, as an intruder or another version."""
    with contextlib.closing(
        sqlite3.connect(path, isolation_level=None, timeout=5)
    ) as db:
        yield db


def fill(state_path, count=3, **values):
    """Make a journal with rows, and close it: all is in the one file."""
    entries = [
        make_entry(claim=f'h{number}', **values) for number in range(count)
    ]
    with opening(state_path) as made:
        made.add(entries)
    assert os.listdir(state_path) == ['journal.db']
    return entries


# --- the files


def test_only_its_user_may_look(state_path):
    before = os.umask(0)
    try:
        with opening(state_path) as made:
            made.add([make_entry()])
            modes = {
                name: mode(os.path.join(state_path, name))
                for name in os.listdir(state_path)
            }
    finally:
        os.umask(before)
    assert modes == {
        'journal.db': 0o600,
        'journal.db-wal': 0o600,
        'journal.db-shm': 0o600,
    }
    assert mode(state_path) == 0o700


def test_opening_tightens_a_loose_mode(state_path):
    fill(state_path)
    path = os.path.join(state_path, 'journal.db')
    os.chmod(path, 0o666)
    with opening(state_path, read_only=True):
        assert mode(path) == 0o666
    with opening(state_path) as made:
        made.add([make_entry()])
        assert mode(path) == 0o600
        assert mode(path + '-wal') == 0o600
        assert mode(path + '-shm') == 0o600


def test_commits_are_on_the_disk_when_they_return(opened):
    with raw(opened.path) as db:
        assert db.execute('PRAGMA journal_mode').fetchone() == ('wal',)
    # The setting is the connection's own: 2 is FULL.
    with contextlib.closing(database.connect(opened.path)) as db:
        assert db.execute('PRAGMA synchronous').fetchone()[0] == 2


def test_a_damaged_journal_is_read_table_by_table(opened):
    """A table that TABLES lacks would be lost."""
    with raw(opened.path) as db:
        found = db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
            " AND name NOT LIKE 'sqlite_%'"
        )
        assert {name for (name,) in found} == set(schema.TABLES)


def test_a_newer_os_acc_adds_columns_while_this_one_runs(opened):
    opened.save_unhealthy(
        health.Health('0000:3b:00.0', 'test', 'it failed', '', '2026-01-01')
    )
    before = opened.unhealthy()
    with raw(opened.path) as db:
        db.execute('ALTER TABLE health ADD COLUMN severity TEXT')
    assert opened.unhealthy() == before
    assert len(before) == 1


def test_state_path_may_have_any_name(tmp_path):
    directory = str(tmp_path / 'a?b#c%20d e' / 'state')
    entries = fill(directory)
    assert read_again(directory) == entries


@pytest.mark.parametrize('place', ['file/state', '/proc/os-acc-state'])
def test_a_state_path_that_cannot_be_made(tmp_path, place):
    (tmp_path / 'file').write_text('in the way')
    with pytest.raises(exception.JournalError) as caught:
        journal.Journal(os.path.join(tmp_path, place), 1)
    text = str(caught.value)
    assert 'cannot create it' in text
    assert f'user id {os.geteuid()}' in text
    assert '[os_acc] state_path' in text


def test_making_that_fails_leaves_nothing(state_path, monkeypatch):
    monkeypatch.setattr(schema, 'MIGRATIONS', ['CREATE NONSENSE'])
    with pytest.raises(exception.JournalError, match='cannot create it'):
        journal.Journal(state_path, 1)
    assert os.listdir(state_path) == []


def test_a_journal_that_lost_its_uuid_says_so(opened):
    with raw(opened.path) as db:
        db.execute('DELETE FROM identity')
    with pytest.raises(exception.JournalError, match='it has no UUID'):
        opened.identity()


def test_a_directory_in_place_of_the_file(state_path):
    os.makedirs(os.path.join(state_path, 'journal.db'))
    with pytest.raises(exception.JournalError, match='cannot open it'):
        journal.Journal(state_path, 1)


def test_what_is_not_there_reads_as_empty(state_path):
    with opening(state_path, read_only=True) as made:
        assert not made.exists()
        assert made.entries() == made.unreadable() == made.handles() == []
        assert list(made.vans()) == list(made.vans_on('dev0')) == []
        assert made.requests_of(new_uuid()) == made.unsettled('boot') == []
        assert made.programs() == []
        assert not os.path.exists(state_path)
        # A monitor that was started before the service sees its VANs.
        entries = fill(state_path)
        assert made.exists()
        assert made.entries() == entries
        with opening(state_path) as service:
            service.settle([entries[0].van], [])
            assert made.entries() == entries[1:]


def test_looking_only_writes_nothing(state_path):
    entries = fill(state_path)
    with opening(state_path, read_only=True) as made:
        for call in (
            functools.partial(made.add, [make_entry()]),
            functools.partial(made.save, entries[0].van),
            functools.partial(made.mark, entries, 'error'),
            functools.partial(made.settle, [entries[0].van], {}),
            functools.partial(made.forget, entries[0].van.uuid),
            functools.partial(made.save_program, make_program()),
            functools.partial(made.forget_program, 'f1', 'a'),
            functools.partial(made.save_unhealthy, make_health()),
            functools.partial(made.announce_unhealthy, make_health()),
            functools.partial(made.forget_unhealthy, 'f1', 'gone'),
            functools.partial(
                made.acknowledge, health.FatalErrors('f1', 'boot', 1)
            ),
        ):
            with pytest.raises(exception.JournalError, match='reading only'):
                call()
    assert [e.van.state for e in read_again(state_path)] == ['preparing'] * 3


def test_looking_only_reads(state_path):
    entries = fill(state_path)
    with opening(state_path, read_only=True) as made:
        assert made.entries() == entries


def test_many_may_make_it_at_once(state_path):
    """The first opening, by six processes: none loses another's file."""
    script = (
        'made.add([make_entry()])\n'
        # One write: the children share one standard output.
        'os.write(1, f"{len(made.entries()) > 0}\\n".encode())'
    )
    assert run_children(6, state_path, script) == ['True'] * 6
    assert len(read_again(state_path)) == 6
    assert os.listdir(state_path) == ['journal.db']


def test_one_made_meanwhile_is_the_one(state_path, monkeypatch):
    """Between the look and the making, another process was faster."""
    theirs, identity = [], database.identity

    def too_early(path):
        found = identity(path)
        if path.endswith('journal.db') and not theirs:
            assert found is None
            theirs.append(None)
            theirs[:] = fill(state_path)
        return found

    monkeypatch.setattr(database, 'identity', too_early)
    assert read_again(state_path) == theirs
    assert os.listdir(state_path) == ['journal.db']


def test_connecting_makes_no_file(tmp_path):
    with pytest.raises(sqlite3.OperationalError):
        database.connect(str(tmp_path / 'journal.db'))
    assert os.listdir(tmp_path) == []


# --- round trips


def test_entries_come_back_as_they_were(opened, state_path):
    full = make_entry(
        claim='claimed',
        live=True,
        handle=objects.PCIHandle(address='0000:0c:00.1', managed=False),
        device='0000:0c:00.0',
        function_id='aes-256',
        guest_config='<hostdev é/>',
        driver_data={'old_driver': 'nvme', 'empty': ''},
        error='it failed',
    )
    full.request.traits = ['CUSTOM_A', 'CUSTOM_B']
    full.instance_info.hypervisor_id = 'lpar-1'
    full.attached = True
    bare = make_entry()
    opened.add([full, bare])
    for found in (opened.entries(), read_again(state_path)):
        assert found == [full, bare]
        assert found[0].van.handle == full.van.handle
        assert found[0].van.created_at == full.van.created_at
        assert found[0].van.obj_what_changed() == set()
        assert found[0].started


def test_entries_come_in_the_order_of_their_making(opened):
    first, second = new_uuid(), new_uuid()
    entries = [
        make_entry(instance)
        for instance in (second, first, second, first, second)
    ]
    opened.add(entries[:3])
    opened.add(entries[3:])
    # A later change does not move a row.
    opened.mark(entries[:1], 'plugged')
    opened.save(entries[1].van)
    assert uuids(opened.entries()) == uuids(entries)
    assert uuids(opened.entries(first)) == uuids(entries[1::2])
    assert uuids(opened.entries(second)) == uuids(entries[::2])
    assert opened.entries(new_uuid()) == []


def test_save_writes_a_van_whole(opened, state_path):
    entry, other = make_entry(), make_entry()
    opened.add([entry, other])
    before = entry.van.updated_at
    entry.van.handle = test_handle('h')
    entry.van.device = 'dev0'
    entry.van.function_id = 'f'
    entry.van.driver_data = {'key': 'value'}
    entry.van.guest_config = '<x/>'
    entry.van.state = 'plugged'
    entry.van.error = 'once'
    entry.van.boot_id = 'next-boot'
    opened.save(entry.van)
    found = read_again(state_path)
    assert [e.van for e in found] == [entry.van, other.van]
    assert found[0].van.updated_at >= before
    assert (found[0].attached, found[0].live) == (False, False)


def test_save_all_says_what_the_plugin_did(opened):
    entries = [make_entry(live=True), make_entry(), make_entry()]
    opened.add(entries)
    vans = [entry.van for entry in entries]
    opened.save_all(vans[:2], attached=True)
    opened.save_all(vans)
    assert [e.attached for e in opened.entries()] == [True, True, False]
    opened.save_all(vans[:1], attached=False)
    assert [e.attached for e in opened.entries()] == [False, True, False]
    assert [e.live for e in opened.entries()] == [True, False, False]


def test_mark_writes_state_live_and_attached_only(opened):
    entry, other = make_entry(), make_entry()
    opened.add([entry, other])
    entry.van.guest_config = 'not to be saved'
    entry.live = entry.attached = True
    opened.mark([entry], 'unplugging')
    assert entry.van.state == 'unplugging'
    found, untouched = opened.entries()
    assert found.van.state == 'unplugging'
    assert found.van.updated_at == entry.van.updated_at
    assert (found.live, found.attached) == (True, True)
    assert found.van.guest_config is None
    assert untouched == other


def test_a_state_written_by_mark_survives_a_later_reader(state_path):
    (entry,) = fill(state_path, 1)
    with opening(state_path) as made:
        made.mark([entry], 'plugged')
    assert read_again(state_path)[0].van.state == 'plugged'


def test_settle_drops_and_writes_down(opened):
    gone, kept, other = make_entry(), make_entry(), make_entry()
    opened.add([gone, kept, other])
    opened.settle([gone.van], [(kept.van, 'the guest holds it')])
    found = opened.entries()
    assert uuids(found) == uuids([kept, other])
    assert found[0].van.state == 'error'
    assert found[0].van.error == 'the guest holds it'
    assert found[1] == other


def test_settle_writes_the_state_it_is_told(opened):
    entry = make_entry()
    opened.add([entry])
    opened.settle([], [(entry.van, 'no such device')], state='plugged')
    (found,) = opened.entries()
    assert (found.van.state, found.van.error) == ('plugged', 'no such device')


def test_settle_of_nothing_changes_nothing(opened):
    entry = make_entry()
    opened.add([entry])
    opened.settle([], [])
    assert opened.entries() == [entry]


def test_vans_on_a_device_in_every_state(opened):
    entries = [
        make_entry(state=state, device='0000:0c:00.0') for state in STATES
    ]
    opened.add([*entries, make_entry(device='0000:0c:00.1'), make_entry()])
    found = opened.vans_on('0000:0c:00.0')
    assert isinstance(found, objects.VANList)
    assert list(found) == [entry.van for entry in entries]
    assert len(opened.vans_on('0000:0d:00.0')) == 0
    assert list(opened.vans_on(None)) == list(opened.vans())


def test_unsettled_instances(opened):
    good, half, old = new_uuid(), new_uuid(), new_uuid()
    opened.add(
        [
            make_entry(old, state='plugged', boot_id='boot-1'),
            make_entry(good, state='plugged', boot_id='boot-2'),
            make_entry(half, state='plugged', boot_id='boot-2'),
            make_entry(half, state='error', boot_id='boot-2'),
            make_entry(half, state='preparing', boot_id='boot-1'),
        ]
    )
    # In the order of their first row to do, each once.
    assert opened.unsettled('boot-2') == [old, half]
    assert opened.unsettled('boot-1') == [good, half]


# --- one device, one VAN


def assert_names(err, entry):
    """A DeviceBusy that says who has it."""
    text = str(err)
    assert entry.van.instance_uuid in text
    assert entry.van.uuid in text
    assert entry.van.state in text


def test_a_handle_has_one_van(opened):
    first, second = make_entry(), make_entry()
    opened.add([first, second])
    first.van.handle = test_handle('h')
    first.van.state = 'plugging'
    opened.save(first.van)
    second.van.handle = test_handle('h')
    with pytest.raises(exception.DeviceBusy, match='test/h') as caught:
        opened.save(second.van)
    assert_names(caught.value, first)
    assert [e.van.handle for e in opened.entries()] == [first.van.handle, None]


def test_a_handle_is_one_device_in_any_spelling(opened):
    entries = [
        make_entry(handle=objects.PCIHandle(address=text))
        for text in ('0000:0C:00.1', '0c:00.1')
    ]
    with pytest.raises(exception.DeviceBusy, match=r'pci/0000:0c:00\.1'):
        opened.add(entries)


def test_the_intent_claims_the_handle_of_the_request(opened):
    first = make_entry(claim='h')
    opened.add([first])
    with pytest.raises(exception.DeviceBusy, match='test/h') as caught:
        opened.add([make_entry(claim='h')])
    assert_names(caught.value, first)
    third = make_entry()
    opened.add([third])
    third.van.handle = test_handle('h')
    with pytest.raises(exception.DeviceBusy) as caught:
        opened.save(third.van)
    assert_names(caught.value, first)


def test_a_claim_stays_until_the_van_is_released(opened):
    first = make_entry(claim='h')
    opened.add([first])
    opened.save(first.van)
    opened.mark([first], 'error')
    opened.settle([], [(first.van, 'stuck')])
    for _ in range(2):
        with pytest.raises(exception.DeviceBusy):
            opened.add([make_entry(claim='h')])
    opened.settle([first.van], [])
    opened.add([make_entry(claim='h')])
    assert len(opened.entries()) == 1


def test_add_is_all_or_none(opened):
    there = make_entry(claim='taken')
    opened.add([there])
    with pytest.raises(exception.DeviceBusy):
        opened.add([make_entry(), make_entry(claim='taken'), make_entry()])
    with pytest.raises(exception.DeviceBusy):
        opened.add([make_entry(claim='twice'), make_entry(claim='twice')])
    assert opened.entries() == [there]
    opened.add([make_entry(claim='twice')])


def test_an_error_of_the_callers_writes_nothing(opened):
    def broken():
        yield make_entry()
        raise LookupError('the caller')

    with pytest.raises(LookupError):
        opened.add(broken())
    assert opened.entries() == []
    opened.add([make_entry()])


def test_save_all_is_all_or_none(opened):
    holder = make_entry(claim='taken')
    entries = [make_entry() for _ in range(3)]
    opened.add([holder, *entries])
    for entry in entries:
        entry.van.guest_config = 'new'
    entries[1].van.handle = test_handle('taken')
    with pytest.raises(exception.DeviceBusy):
        opened.save_all([e.van for e in entries], attached=True)
    found = opened.entries()[1:]
    assert [e.van.guest_config for e in found] == [None] * 3
    assert [e.attached for e in found] == [False] * 3


def test_save_all_with_a_vanished_row_writes_none(opened):
    entries = [make_entry() for _ in range(3)]
    opened.add(entries)
    opened.settle([entries[1].van], [])
    for entry in entries:
        entry.van.guest_config = 'new'
    with pytest.raises(exception.JournalError, match=entries[1].van.uuid):
        opened.save_all([e.van for e in entries])
    assert [e.van.guest_config for e in opened.entries()] == [None, None]


def test_a_van_uuid_is_of_one_instance(opened):
    first = make_entry(claim='h1')
    opened.add([first])
    same = make_entry(van=first.van.uuid, claim='h2')
    with pytest.raises(
        exception.DeviceBusy, match=f'VAN {first.van.uuid}'
    ) as caught:
        opened.add([same])
    assert_names(caught.value, first)
    assert opened.entries() == [first]


def test_handle_and_van_uuid_both_taken_names_the_handle(opened):
    holder, same = make_entry(claim='h'), make_entry()
    opened.add([same, holder])
    with pytest.raises(exception.DeviceBusy, match='test/h') as caught:
        opened.add([make_entry(van=same.van.uuid, claim='h')])
    assert_names(caught.value, holder)


def test_a_van_cannot_touch_another_instances_row(opened):
    """A late unplug of the old owner, after the ARQ went to a new one."""
    old = make_entry(claim='h')
    opened.add([old])
    opened.settle([old.van], [])
    new = make_entry(van=old.van.uuid, claim='h')
    opened.add([new])
    opened.settle([old.van], [])
    assert opened.entries() == [new]
    with pytest.raises(exception.JournalError, match='it no longer has VAN'):
        opened.save(old.van)
    assert opened.entries() == [new]


def test_mark_and_settle_change_only_rows_of_their_instance(opened):
    """The rollback of a plug whose VAN another instance has."""
    owner = make_entry(state='plugged')
    opened.add([owner])
    stranger = make_entry(van=owner.van.uuid, live=True)
    opened.mark([stranger], 'unplugging')
    opened.settle([], [(stranger.van, 'no such device')])
    assert opened.entries() == [owner]


def test_save_of_a_vanished_row(opened):
    entry = make_entry()
    with pytest.raises(exception.JournalError, match='it no longer has VAN'):
        opened.save(entry.van)
    opened.add([entry])
    opened.settle([entry.van], [])
    with pytest.raises(exception.JournalError, match=entry.van.uuid):
        opened.save(entry.van)
    assert opened.entries() == []


def test_a_van_that_did_not_get_a_handle_forgets_it(opened):
    holder, entry = make_entry(claim='taken'), make_entry()
    opened.add([holder, entry])
    entry.van.device = 'dev0'
    entry.van.driver_data = {'was': 'free'}
    opened.save(entry.van)
    entry.van.handle = test_handle('taken')
    entry.van.device = 'dev1'
    entry.van.function_id = 'f'
    entry.van.driver_data = {'was': 'mine'}
    with pytest.raises(exception.DeviceBusy):
        opened.save(entry.van)
    assert entry.van.handle is None
    assert entry.van.device == 'dev0'
    assert entry.van.function_id is None
    assert entry.van.driver_data == {'was': 'free'}
    opened.save(entry.van)


# --- many at once


def start(lines):
    """Start a Python process that can make entries and open a journal."""
    path = os.path.dirname(journal_entries.__file__)
    first = [
        'import contextlib, os, sys',
        f'sys.path.insert(0, {path!r})',
        'from os_acc import exception, journal',
        'from journal_entries import make_entry',
    ]
    code = '\n'.join([*first, *lines])
    return subprocess.Popen(
        [sys.executable, '-c', code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_child(state_path, script):
    """Start another process with the journal open as ``made``."""
    return start([f'made = journal.Journal({state_path!r}, 30)', script])


def run_children(count, state_path, script):
    """Run a script in many processes that open the journal at once.

    One process imports what they need and forks them. Each opens the journal
    as ``made`` when all of them have started.

    :returns: the words that they printed
    """
    parent = start(
        [
            'started, all_started = os.pipe()',
            f'for _ in range({count}):',
            '    if os.fork() == 0:',
            '        os.close(all_started)',
            '        assert os.read(started, 1) == b""',
            f'        made = journal.Journal({state_path!r}, 30)',
            textwrap.indent(script, ' ' * 8),
            '        sys.exit()',
            'os.close(all_started)',
            f'ended = [os.wait()[1] for _ in range({count})]',
            f'assert ended == [0] * {count}, ended',
        ]
    )
    return finish(parent).split()


def finish(child):
    """Wait for it.

    :returns: what it printed
    """
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    return out.strip()


def test_many_threads_add_at_once(opened):
    instances = [new_uuid() for _ in range(8)]

    def work(instance):
        for number in range(10):
            entry = make_entry(instance, claim=f'{instance}-{number}')
            opened.add([entry])
            entry.van.handle = entry.request.handle
            opened.save(entry.van)
            assert opened.entries(instance)[-1] == entry

    with futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, instances))
    found = opened.entries()
    assert len({e.van.handle.identity for e in found}) == len(found) == 80


def test_many_threads_want_one_handle(opened):
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        try:
            opened.add([make_entry(claim='one')])
        except exception.DeviceBusy:
            return 0
        return 1

    with futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 1
    assert len(opened.entries()) == 1


def test_many_processes_want_the_same_handles(opened, state_path):
    script = '\n'.join(
        [
            'for number in range(20):',
            '    with contextlib.suppress(exception.DeviceBusy):',
            '        made.add([make_entry(claim=f"h{number}")])',
            # One write: the children share one standard output.
            '        os.write(1, f"{number}\\n".encode())',
        ]
    )
    won = [int(n) for n in run_children(5, state_path, script)]
    assert sorted(won) == list(range(20))
    claims = [e.request.handle.name for e in opened.entries()]
    assert sorted(claims) == sorted(f'h{number}' for number in range(20))


def test_readers_do_not_wait_for_a_writer(opened, state_path):
    opened.add([make_entry()])
    with raw(opened.path) as db:
        db.execute('BEGIN IMMEDIATE')
        db.execute('DELETE FROM van')
        # Opening reads too.
        child = run_child(state_path, 'print(len(made.entries()))')
        assert finish(child) == '1'
        assert len(opened.entries()) == 1
        db.execute('COMMIT')
    assert opened.entries() == []


def test_a_writer_waits_for_another(opened):
    with raw(opened.path) as db:
        db.execute('BEGIN IMMEDIATE')
        with futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(opened.add, [make_entry()])
            time.sleep(0.2)
            assert not waiting.done()
            db.execute('COMMIT')
            waiting.result(timeout=300)
    assert len(opened.entries()) == 1


def test_a_writer_does_not_wait_longer_than_the_timeout(state_path):
    with opening(state_path, timeout=0.3) as made, raw(made.path) as db:
        db.execute('BEGIN IMMEDIATE')
        start = time.monotonic()
        with pytest.raises(exception.JournalBusy) as caught:
            made.add([make_entry()])
        assert 0.25 < time.monotonic() - start < 30
        assert isinstance(caught.value, exception.JournalError)
        assert isinstance(caught.value, exception.Timeout)
        assert 'waited 0.3 s for another writer' in str(caught.value)
        assert made.path in str(caught.value)
        db.execute('ROLLBACK')
        made.add([make_entry()])
        assert len(made.entries()) == 1


# --- errors of sqlite


def test_a_closed_journal(state_path):
    with opening(state_path) as made:
        pass
    for call in (made.entries, functools.partial(made.add, [make_entry()])):
        with pytest.raises(exception.JournalError, match='closed'):
            call()


@pytest.mark.parametrize('text', ['a \udc80 b', '\ud800', 'nul \0 and é'])
def test_any_text_can_be_stored(opened, text):
    """A lone surrogate stands for a byte that is no UTF-8 (PEP 383)."""
    first, second = make_entry(error=text), make_entry()
    first.van.guest_config = text
    first.van.driver_data = {'key': text, text: 'value'}
    first.instance_info.name = text
    opened.add([first, second])
    opened.save_all([first.van])
    opened.settle([], [(second.van, text)])
    opened.save_program(make_program(error=text))
    stored = text.encode('utf-8', 'backslashreplace').decode()
    found = opened.entries()
    assert [entry.van.error for entry in found] == [stored] * 2
    assert found[0].van.guest_config == text
    assert found[0].van.driver_data == {'key': text, text: 'value'}
    assert found[0].instance_info.name == text
    assert opened.programs()[0].error == stored
    opened.forget_program('0000:0a:00.0', text)
    assert opened.entries(text) == opened.handles(text) == []


def test_an_error_of_sqlite_is_a_journal_error(opened):
    with raw(opened.path) as db:
        db.execute('ALTER TABLE van RENAME TO hidden')
    with pytest.raises(exception.JournalError, match='no such table'):
        opened.entries()
    with pytest.raises(exception.JournalError, match='no such table'):
        opened.add([make_entry()])
    with raw(opened.path) as db:
        db.execute('ALTER TABLE hidden RENAME TO van')
    opened.add([make_entry()])


# --- programmed devices


def make_program(**values):
    return programs.Program(
        **{
            'device': '0000:0a:00.0',
            'region': '',
            'function_id': 'aes',
            'digest': 'd' * 64,
            'state': 'programmed',
            'boot_id': 'first',
            'updated_at': '2026-01-01T00:00:00',
            **values,
        }
    )


def test_what_is_programmed(state_path):
    first = make_program()
    regions = [make_program(device='f1', region=name) for name in 'ab']
    with opening(state_path) as made:
        assert made.programs() == []
        for program in (first, *regions):
            made.save_program(make_program(**vars(program) | {'error': 'x'}))
            made.save_program(program)
    with opening(state_path) as made:
        assert made.programs() == [first, *regions]
        assert made.programs('f1') == regions
        assert made.programs('f2') == []
        made.forget_program('f1', 'a')
        assert made.programs() == [first, regions[1]]
    assert first.label == '0000:0a:00.0'
    assert regions[1].label == 'region b of f1'


def test_a_journal_from_before_programming(state_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(schema, 'MIGRATIONS', schema.MIGRATIONS[:1])
        patch.setattr(schema, 'tell_from_copies', lambda *_: None)
        entries = fill(state_path)
        assert schema_version(state_path) == 1
    with opening(state_path) as made:
        assert made.entries() == entries
        assert made.programs() == []
        made.save_program(make_program())
        assert made.programs() == [make_program()]


def test_a_journal_from_before_health(state_path, monkeypatch):
    """What was programmed then was told to the hooks."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, 'MIGRATIONS', schema.MIGRATIONS[:4])
        patch.setattr(schema, 'tell_from_copies', lambda *_: None)
        fill(state_path)
        assert schema_version(state_path) == 4
    with raw(os.path.join(state_path, 'journal.db')) as db:
        db.execute(
            'INSERT INTO program VALUES'
            " ('dev0', '', 'aes', 'd', 'programmed', 'first', NULL, 'now')"
        )
    with opening(state_path) as made:
        (program,) = made.programs()
        assert made.unhealthy() == made.acknowledged() == []
    assert (program.driver, program.chip, program.handles) == ('', None, ())
    assert (program.address, program.serial) == ('', None)
    assert program.announced is True


# --- health


def make_health(**values):
    return health.Health(
        **{
            'device': 'f1',
            'cause': health.CLEANING,
            'reason': 'it was not cleaned',
            'boot_id': 'first',
            'since': '2026-01-02T00:00:00',
            'driver': 'pci',
            'announced': False,
            **values,
        }
    )


def test_unhealthy_devices(state_path):
    first = make_health()
    older = make_health(cause=health.AER, since='2026-01-01T00:00:00')
    other = make_health(device='f0', announced=True)
    with opening(state_path) as made:
        assert made.unhealthy() == []
        for each in (first, older, other):
            made.save_unhealthy(each)
        # The time and reason of the first failure stay.
        made.save_unhealthy(make_health(reason='again', since='2027'))
    with opening(state_path) as made:
        assert made.unhealthy() == [other, older, first]
        made.announce_unhealthy(first)
        assert made.unhealthy()[2].announced is True
        assert made.forget_unhealthy('f1', health.CLEANING) is True
        assert made.forget_unhealthy('f1', health.CLEANING) is False
        assert made.unhealthy() == [other, older]


def test_a_pending_reboot_replaces_that_of_an_earlier_boot(state_path):
    old = make_health(cause=health.REBOOT)
    new = make_health(cause=health.REBOOT, boot_id='second', since='2027')
    with opening(state_path) as made:
        made.save_unhealthy(old)
        made.save_unhealthy(new)
        assert made.unhealthy() == [new]


def test_acknowledged_fatal_errors(state_path):
    first = health.FatalErrors('f1', 'boot 7', 2)
    with opening(state_path) as made:
        assert made.acknowledged() == []
        made.acknowledge(health.FatalErrors('f1', 'boot 7', 1))
        made.acknowledge(first)
        assert made.acknowledged() == [first]


ONCE = ('uuid', 'state', 'boot_id', 'device', 'error', 'updated_at')


def test_state_error_and_time_are_stored_once(state_path):
    (entry,) = fill(state_path, 1, device='dev0', error='once')

    def check(primitive):
        assert not set(ONCE) & set(primitive[DATA])
        assert 'versioned_object.changes' not in primitive

    edit(state_path, 'van', check)
    assert read_again(state_path) == [entry]


def test_a_journal_of_the_second_schema(state_path):
    """It had all of a VAN in its JSON, and part of that in columns too."""
    entries = fill(state_path, 3, device='dev0')
    path = os.path.join(state_path, 'journal.db')

    def older(entry):
        van = entry.van.obj_clone()
        van.state, van.error = 'preparing', 'an old one, by the JSON'
        van.handle = entry.van.handle = test_handle(entry.van.uuid)
        return json.dumps(van.obj_to_primitive())

    with raw(path) as db:
        for entry in entries:
            db.execute(
                'UPDATE van SET van = ?, updated_at = ? WHERE uuid = ?',
                (older(entry), str(entry.van.updated_at), entry.van.uuid),
            )
        db.execute("UPDATE van SET state = 'plugged', error = 'new'")
        db.execute("UPDATE van SET van = 'no JSON' WHERE seq = 3")
        for table in schema.TABLES:
            if table != 'van':
                db.execute(f'DROP TABLE {table}')
        db.execute(schema.MIGRATIONS[1])
        db.execute('PRAGMA user_version = 2')
    for entry in entries:
        entry.van.state, entry.van.error = 'plugged', 'new'
    with opening(state_path) as made:
        assert made.entries() == entries[:2]
        assert [e.van.obj_what_changed() for e in made.entries()] == [
            set()
        ] * 2
        (row,) = made.unreadable()
        assert row.van_uuid == entries[2].van.uuid
    assert schema_version(state_path) == NOW
    with raw(path) as db:
        texts = db.execute('SELECT van FROM van WHERE seq < 3').fetchall()
    for (text,) in texts:
        assert not set(ONCE) & set(json.loads(text)[DATA])


# --- versions


def schema_version(state_path):
    with raw(os.path.join(state_path, 'journal.db')) as db:
        return db.execute('PRAGMA user_version').fetchone()[0]


NOW = len(schema.MIGRATIONS)
FURTHER = """
ALTER TABLE van ADD COLUMN note TEXT;
CREATE INDEX van_note ON van (note);
"""


def test_an_older_schema_is_brought_forward(state_path, monkeypatch):
    entries = fill(state_path)
    assert schema_version(state_path) == NOW
    monkeypatch.setattr(schema, 'MIGRATIONS', [*schema.MIGRATIONS, FURTHER])
    for _ in range(2):
        with opening(state_path) as made:
            assert made.entries() == entries
            made.save_all(entry.van for entry in entries)
        assert schema_version(state_path) == NOW + 1
    with raw(os.path.join(state_path, 'journal.db')) as db:
        notes = db.execute('SELECT note FROM van').fetchall()
    assert notes == [(None,)] * 3


def test_a_new_journal_has_the_newest_schema(state_path, monkeypatch):
    monkeypatch.setattr(schema, 'MIGRATIONS', [*schema.MIGRATIONS, FURTHER])
    fill(state_path)
    assert schema_version(state_path) == NOW + 1


def test_a_migration_is_done_whole_or_not(state_path, monkeypatch):
    entries = fill(state_path)
    with monkeypatch.context() as patch:
        patch.setattr(
            schema,
            'MIGRATIONS',
            [*schema.MIGRATIONS, FURTHER + 'CREATE NONSENSE'],
        )
        with pytest.raises(exception.JournalError):
            journal.Journal(state_path, 1)
    assert schema_version(state_path) == NOW
    assert read_again(state_path) == entries


def test_a_migration_that_waits_too_long(state_path, monkeypatch):
    fill(state_path)
    monkeypatch.setattr(schema, 'MIGRATIONS', [*schema.MIGRATIONS, FURTHER])
    with raw(os.path.join(state_path, 'journal.db')) as db:
        db.execute('BEGIN IMMEDIATE')
        with pytest.raises((exception.JournalError, exception.Timeout)):
            journal.Journal(state_path, 0.1)
        db.execute('ROLLBACK')
    assert schema_version(state_path) == NOW


def test_looking_at_an_older_schema_changes_nothing(state_path, monkeypatch):
    fill(state_path)
    monkeypatch.setattr(schema, 'MIGRATIONS', [*schema.MIGRATIONS, FURTHER])
    with pytest.raises(
        exception.JournalError, match=f'version {NOW}, .* needs {NOW + 1}'
    ):
        journal.Journal(state_path, 1, read_only=True).entries()
    assert schema_version(state_path) == NOW


def test_looking_at_a_newer_schema(state_path, monkeypatch):
    fill(state_path)
    with monkeypatch.context() as patch:
        rename = 'ALTER TABLE van RENAME COLUMN live TO alive'
        patch.setattr(schema, 'MIGRATIONS', [*schema.MIGRATIONS, rename])
        journal.Journal(state_path, 1).close()
    with pytest.raises(exception.JournalError):
        with opening(state_path, read_only=True) as made:
            made.entries()


def test_a_journal_of_another_user(state_path, monkeypatch):
    """Whom the kernel lets write it, but not change its mode."""

    def refuse(path, mode):
        raise PermissionError(1, 'Operation not permitted', path)

    fill(state_path)
    os.chmod(os.path.join(state_path, 'journal.db'), 0o666)
    monkeypatch.setattr(os, 'chmod', refuse)
    with pytest.raises(exception.JournalError, match='not permitted'):
        journal.Journal(state_path, 1)


def test_a_newer_schema_is_refused(state_path):
    fill(state_path)
    path = os.path.join(state_path, 'journal.db')
    with raw(path) as db:
        db.execute('PRAGMA user_version = 99')
    for _ in range(2):
        with pytest.raises(exception.JournalError) as caught:
            journal.Journal(state_path, 1)
        assert f'version 99, this os-acc knows {NOW}' in str(caught.value)
    assert os.listdir(state_path) == ['journal.db']


def edit(state_path, column, change):
    """Change the primitive in a column of the only row."""
    with raw(os.path.join(state_path, 'journal.db')) as db:
        (text,) = db.execute(f'SELECT {column} FROM van').fetchone()
        primitive = json.loads(text)
        change(primitive)
        db.execute(f'UPDATE van SET {column} = ?', (json.dumps(primitive),))


VERSION = 'versioned_object.version'
DATA = 'versioned_object.data'


def newer(primitive):
    """As a later minor version, which added a field, would write it."""
    primitive[VERSION] = '1.7'
    primitive[DATA]['shiny'] = {'of': ['a', 'later', {'release': 1}]}
    primitive.setdefault('versioned_object.changes', []).append('shiny')


def test_a_row_of_a_newer_minor_version_is_read(state_path):
    (entry,) = fill(state_path, 1, handle=test_handle('h'))
    for column in ('van', 'request', 'instance'):
        edit(state_path, column, newer)
    for column in ('van', 'request'):
        edit(state_path, column, lambda value: newer(value[DATA]['handle']))
    assert read_again(state_path) == [entry]


def test_a_newer_minor_version_is_written_back(state_path):
    """By an older os-acc, which knows nothing of the new field."""
    (entry,) = fill(state_path, 1, handle=test_handle('h'))
    edit(state_path, 'van', newer)
    edit(state_path, 'van', lambda value: newer(value[DATA]['handle']))
    with opening(state_path) as made:
        (found,) = made.entries()
        found.van.guest_config = '<new/>'
        made.save(found.van)
        made.mark([found], 'plugged')

    def check(primitive):
        shiny = {'of': ['a', 'later', {'release': 1}]}
        for each in (primitive, primitive[DATA]['handle']):
            assert each[VERSION] == '1.7'
            assert each[DATA]['shiny'] == shiny
        assert primitive[DATA]['guest_config'] == '<new/>'

    edit(state_path, 'van', check)
    (found,) = read_again(state_path)
    assert found.van.VERSION == '1.4'
    assert found.van.handle == entry.van.handle


def test_a_row_of_an_older_minor_version_is_read(state_path, monkeypatch):
    (entry,) = fill(state_path, 1, handle=test_handle('h'))

    def older(primitive):
        current = {
            'AcceleratorRequest': '1.1',
            'InstanceInfo': '1.2',
            'VAN': '1.4',
        }
        name = primitive['versioned_object.name']
        assert primitive[VERSION] == current.get(name, '1.0')
        # Not yet known to that version.
        for name in ('function_id', 'owner', 'traits', 'image_id', 'port'):
            primitive[DATA].pop(name, None)

    for column in ('van', 'request', 'instance'):
        edit(state_path, column, older)
    for name in ('VAN', 'AcceleratorRequest', 'InstanceInfo', 'TestHandle'):
        monkeypatch.setattr(getattr(objects, name), 'VERSION', '1.5')
    (found,) = read_again(state_path)
    assert found.van.VERSION == '1.5'
    assert found.van.function_id is None
    assert found.van.owner is None
    assert found.request.traits == []
    assert found.request.port is None
    assert found.instance_info.image_id is None
    assert found.van.handle == entry.van.handle


def other_major(primitive):
    primitive[VERSION] = '2.0'


def unknown(primitive):
    primitive['versioned_object.name'] = 'Surprise'


def no_data(primitive):
    del primitive[DATA]


def check_unreadable(made, bad, good):
    """The bad row is named, holds its device, and hides no other row."""
    assert made.entries() == [good]
    assert list(made.vans_on(good.van.device)) == [good.van]
    assert made.entries(bad.van.instance_uuid) == []
    (row,) = made.unreadable()
    assert made.unreadable(bad.van.instance_uuid) == [row]
    assert made.unreadable(good.van.instance_uuid) == []
    assert row.van_uuid == bad.van.uuid
    assert row.instance_uuid == bad.van.instance_uuid
    assert (row.handle, row.device) == ('test/h0', 'bad0')
    assert row.reason
    holders = [(h.handle, h.device, h.van_uuid) for h in made.handles()]
    assert holders == [
        ('test/h0', 'bad0', bad.van.uuid),
        ('test/good', 'good0', good.van.uuid),
    ]
    with pytest.raises(exception.DeviceBusy, match='test/h0') as caught:
        made.add([make_entry(claim='h0')])
    assert bad.van.uuid in str(caught.value)
    # Its instance is named to recover(), as any that is not settled.
    assert bad.van.instance_uuid in made.unsettled('this-boot')


def two_rows(state_path, spoil):
    """A row to spoil, as the only one while it is, and a good one."""
    (bad,) = fill(state_path, 1, handle=test_handle('h0'), device='bad0')
    spoil()
    good = make_entry(handle=test_handle('good'), device='good0')
    with opening(state_path) as made:
        made.add([good])
    return bad, good


@pytest.mark.parametrize('column', ['van', 'request', 'instance'])
@pytest.mark.parametrize('change', [other_major, unknown, no_data])
def test_an_unreadable_row(state_path, column, change):
    bad, good = two_rows(
        state_path, functools.partial(edit, state_path, column, change)
    )
    with opening(state_path) as made:
        check_unreadable(made, bad, good)
        if column == 'van':
            with pytest.raises(exception.JournalError) as caught:
                made.vans_on('bad0')
            assert f'VAN {bad.van.uuid} of instance' in str(caught.value)
            assert list(made.vans()) == [good.van]
        if column == 'request':
            with pytest.raises(exception.JournalError, match=bad.van.uuid):
                made.requests_of(bad.van.instance_uuid)


def test_forget_an_unreadable_row(state_path):
    bad, good = two_rows(
        state_path, functools.partial(edit, state_path, 'van', unknown)
    )
    with opening(state_path) as made:
        holder = made.forget(bad.van.uuid)
        assert holder == journal.Holder(
            handle='test/h0',
            device='bad0',
            van_uuid=bad.van.uuid,
            instance_uuid=bad.van.instance_uuid,
            state='preparing',
            called=bad.van.instance_uuid,
        )
        assert made.unreadable() == []
        assert made.entries() == [good]
        made.add([make_entry(claim='h0')])
        with pytest.raises(exception.JournalError, match='it has no VAN'):
            made.forget(bad.van.uuid)


def test_an_unknown_class_of_handle(state_path):
    """A driver's package, with a handle of its own, was removed."""
    bad, good = two_rows(
        state_path,
        functools.partial(
            edit,
            state_path,
            'van',
            lambda value: unknown(value[DATA]['handle']),
        ),
    )
    with opening(state_path) as made:
        check_unreadable(made, bad, good)
        (row,) = made.unreadable()
        assert 'Surprise' in row.reason


def test_another_major_of_a_handle(state_path):
    bad, good = two_rows(
        state_path,
        functools.partial(
            edit,
            state_path,
            'van',
            lambda value: other_major(value[DATA]['handle']),
        ),
    )
    with opening(state_path) as made:
        check_unreadable(made, bad, good)


@pytest.mark.parametrize(
    ('column', 'value'),
    [
        ('van', '\'{"cut": "off\''),
        ('van', "'[1, 2]'"),
        ('van', '7'),
        # Python's decoder of JSON raises RecursionError.
        ('van', "replace(hex(zeroblob(50000)), '00', '[')"),
        ('van', "CAST(x'ff22' AS TEXT)"),
        ('van', "x'ff22'"),
        ('state', "'dancing'"),
        ('updated_at', "'yesterday'"),
    ],
)
def test_a_garbled_row(state_path, column, value):
    def spoil():
        with raw(os.path.join(state_path, 'journal.db')) as db:
            db.execute(f'UPDATE van SET {column} = {value}')

    bad, good = two_rows(state_path, spoil)
    with opening(state_path) as made:
        check_unreadable(made, bad, good)


def wrong_value(primitive):
    primitive[DATA]['driver'] = 'no/name'


def test_a_wrong_value(state_path):
    bad, good = two_rows(
        state_path, functools.partial(edit, state_path, 'van', wrong_value)
    )
    with opening(state_path) as made:
        check_unreadable(made, bad, good)
        assert 'no/name' in made.unreadable()[0].reason


# --- damage


def overwrite(path, offset, content):
    with open(path, 'r+b') as file:
        file.seek(offset)
        file.write(content)


def random_middle(path):
    size = os.path.getsize(path)
    assert size > 5 * 4096
    overwrite(path, size // 3, random.Random(1).randbytes(size // 3))


def cut_to_nothing(path):
    os.truncate(path, 0)


def cut_short(path):
    os.truncate(path, os.path.getsize(path) // 2)


def overwrite_header(path):
    overwrite(path, 0, random.Random(2).randbytes(100))


def text_file(path):
    with open(path, 'w', encoding='utf-8') as file:
        file.write('This is a note to self.\n' * 400)


WAY_OUT = '--state-path {} recover --rebuild'
DAMAGES = [
    random_middle,
    cut_to_nothing,
    cut_short,
    overwrite_header,
    text_file,
]


def read_bytes(path):
    with open(path, 'rb') as file:
        return file.read()


def set_aside(state_path):
    """The path of the one file that is set aside."""
    (path,) = [
        os.path.join(state_path, name)
        for name in os.listdir(state_path)
        if '.damaged-' in name and not name.endswith(('-wal', '-shm'))
    ]
    return path


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_journal_is_set_aside(state_path, damage):
    fill(state_path, 20)
    path = os.path.join(state_path, 'journal.db')
    damage(path)
    content = read_bytes(path)
    with pytest.raises(exception.JournalError) as caught:
        journal.Journal(state_path, 1)
    aside = set_aside(state_path)
    assert read_bytes(aside) == content
    assert aside in str(caught.value)
    assert WAY_OUT.format(state_path) in str(caught.value)
    assert not os.path.exists(path)


@pytest.mark.parametrize('damage', DAMAGES)
def test_no_new_journal_in_place_of_a_damaged_one(state_path, damage):
    fill(state_path, 20)
    damage(os.path.join(state_path, 'journal.db'))
    with pytest.raises(exception.JournalError):
        journal.Journal(state_path, 1)
    there = os.listdir(state_path)
    for read_only in (False, True, False):
        with pytest.raises(exception.JournalError) as caught:
            journal.Journal(state_path, 1, read_only=read_only).entries()
        assert set_aside(state_path) in str(caught.value)
        assert WAY_OUT.format(state_path) in str(caught.value)
        assert os.listdir(state_path) == there


@pytest.mark.parametrize('damage', DAMAGES)
def test_looking_only_sets_nothing_aside(state_path, damage):
    fill(state_path, 20)
    path = os.path.join(state_path, 'journal.db')
    damage(path)
    content = read_bytes(path)
    for _ in range(2):
        with pytest.raises(exception.JournalError, match='it is damaged'):
            journal.Journal(state_path, 1, read_only=True).entries()
    assert not glob.glob(path + '.*')
    assert read_bytes(path) == content


@pytest.mark.parametrize('damage', DAMAGES)
def test_rebuild_sets_aside_what_only_readers_have_seen(state_path, damage):
    fill(state_path, 20)
    path = os.path.join(state_path, 'journal.db')
    damage(path)
    content = read_bytes(path)
    with pytest.raises(exception.JournalError) as caught:
        journal.Journal(state_path, 1, read_only=True).entries()
    assert WAY_OUT.format(state_path) in str(caught.value)
    rebuilt = journal_file.rebuild(state_path, 1)
    assert len(read_again(state_path)) == rebuilt.vans
    (kept,) = (
        name
        for name in glob.glob(path + '.rebuilt-*')
        if not name.endswith(('-wal', '-shm'))
    )
    assert read_bytes(kept) == content


def test_rebuild_leaves_a_journal_that_another_has_just_made(
    state_path, monkeypatch
):
    fill(state_path)
    path = os.path.join(state_path, 'journal.db')
    text_file(path)
    content = read_bytes(path)
    seen = iter([(1, 1), (1, 2)])
    monkeypatch.setattr(database, 'identity', lambda path: next(seen))
    with pytest.raises(exception.JournalError, match='no damaged journal'):
        journal_file.rebuild(state_path, 1)
    assert read_bytes(path) == content


def test_the_remedy_names_the_configuration(state_path, tmp_path, request):
    path = tmp_path / 'a service.conf'
    path.touch()
    request.addfinalizer(lambda: cfg.CONF([], default_config_files=[]))
    cfg.CONF(['--config-file', str(path)])
    fill(state_path)
    text_file(os.path.join(state_path, 'journal.db'))
    with pytest.raises(exception.JournalError) as caught:
        journal.Journal(state_path, 1, read_only=True).entries()
    assert (
        f"os-acc --config-file '{path}' --state-path {state_path} "
        'recover --rebuild'
    ) in str(caught.value)


def test_tracebacks_that_are_kept_keep_no_connection_open(tmp_path):
    """As logging does with the error of a __del__, wherever that runs."""
    kept = []

    def keep(phase, info):
        try:
            raise OSError
        except OSError:
            kept.append(sys.exc_info())

    thresholds = gc.get_threshold()
    gc.callbacks.append(keep)
    gc.set_threshold(1)
    try:
        for number in range(5):
            with opening(str(tmp_path / str(number))) as made:
                assert made.entries() == []
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(keep)
    assert kept


def test_what_a_crash_left_beside_it_goes_along(tmp_path, state_path):
    """The rows of a process that was killed may be in the -wal only."""
    with opening(state_path) as made:
        made.add([make_entry()])
        crashed = str(tmp_path / 'crashed')
        shutil.copytree(state_path, crashed)
    wal = read_bytes(os.path.join(crashed, 'journal.db-wal'))
    assert wal
    overwrite_header(os.path.join(crashed, 'journal.db'))
    with pytest.raises(exception.JournalError):
        journal.Journal(crashed, 1)
    aside = set_aside(crashed)
    assert read_bytes(aside + '-wal') == wal
    with pytest.raises(exception.JournalError) as caught:
        journal.Journal(crashed, 1)
    # The file itself is named, not what is beside it.
    assert f'set aside as {aside}. ' in str(caught.value)


class Killed(BaseException):
    pass


@pytest.mark.parametrize('name', ['link', 'rename', 'unlink'])
@pytest.mark.parametrize('nth', [1, 2])
def test_setting_aside_that_is_killed(
    tmp_path, state_path, monkeypatch, name, nth
):
    """The rows in the -wal stay beside the file that they belong to."""
    with opening(state_path) as made:
        entries = [make_entry() for _ in range(3)]
        made.add(entries)
        crashed = str(tmp_path / 'crashed')
        shutil.copytree(state_path, crashed)
    call, calls = getattr(os, name), []

    def killed(*args, **kwargs):
        call(*args, **kwargs)
        calls.append(args)
        if len(calls) == nth:
            raise Killed

    path = os.path.join(crashed, 'journal.db')
    with monkeypatch.context() as patch:
        patch.setattr(os, name, killed)
        with contextlib.suppress(Killed):
            journal_file.set_aside(path, '.damaged-')
    if not os.path.exists(path):
        with pytest.raises(exception.JournalError, match='was set aside'):
            journal.Journal(crashed, 1)
        assert journal_file.rebuild(crashed, 1) == (3, 0, 0)
    assert read_again(crashed) == entries


@pytest.mark.parametrize('aside', [False, True])
def test_a_wal_beside_a_missing_journal(tmp_path, state_path, aside):
    """sqlite would write its rows into a new journal, and damage it."""
    entries = fill(state_path, 2)
    crashed = str(tmp_path / 'crashed')
    with opening(state_path) as made:
        made.add([make_entry()])
        shutil.copytree(state_path, crashed)
    path = os.path.join(crashed, 'journal.db')
    wal = read_bytes(path + '-wal')
    if aside:
        os.rename(path, path + '.damaged-20260101T000000-1')
        create = functools.partial(journal_file.rebuild, crashed, 1)
    else:
        os.unlink(path)
        create = functools.partial(read_again, crashed)
    with pytest.raises(exception.JournalError) as caught:
        create()
    assert f'move {path}-wal away' in str(caught.value)
    assert not os.path.exists(path)
    assert read_bytes(path + '-wal') == wal
    os.rename(path + '-wal', tmp_path / 'away')
    create()
    assert read_again(crashed) == (entries if aside else [])


def test_a_journal_that_another_process_has_rebuilt(state_path, monkeypatch):
    """Two processes find the same damage, and one is faster."""
    fill(state_path, 20)
    path = os.path.join(state_path, 'journal.db')
    overwrite_header(path)
    wait, rebuilt = database.until_free, []

    def slower(*args):
        # The first call reads the damaged file.
        found = wait(*args)
        if not rebuilt:
            rebuilt.append(True)
            with pytest.raises(exception.JournalError):
                journal.Journal(state_path, 1)
            journal_file.rebuild(state_path, 1)
        return found

    monkeypatch.setattr(database, 'until_free', slower)
    with opening(state_path) as made:
        made.add([make_entry()])
        assert len(made.entries()) == 1
    assert not glob.glob(path + '.damaged-*')


def test_a_busy_file_is_not_taken_for_a_damaged_one(state_path):
    entries = fill(state_path)
    with raw(os.path.join(state_path, 'journal.db')) as db:
        db.execute('PRAGMA locking_mode = EXCLUSIVE')
        db.execute('BEGIN EXCLUSIVE')
        with pytest.raises(exception.JournalBusy):
            journal.Journal(state_path, 0.1)
        assert not glob.glob(os.path.join(state_path, '*damaged*'))
        db.execute('ROLLBACK')
    assert read_again(state_path) == entries


@pytest.mark.parametrize('read_only', [True, False])
def test_opening_waits_for_a_file_that_is_locked(
    state_path, monkeypatch, read_only
):
    """As it is for a moment, when another process closes it."""
    entries = fill(state_path)
    connect, failed = sqlite3.connect, set()

    class Busy(sqlite3.Connection):
        """Finds the file locked, the first time that it executes this."""

        def execute(self, statement, *values):
            if statement not in failed:
                failed.add(statement)
                err = sqlite3.OperationalError('database is locked')
                err.sqlite_errorcode = sqlite3.SQLITE_BUSY
                if 'quick_check' in statement or 'version' in statement:
                    raise err
            return super().execute(statement, *values)

    monkeypatch.setattr(
        sqlite3,
        'connect',
        lambda *args, **kwargs: connect(*args, factory=Busy, **kwargs),
    )
    # Once in the check, and once in the look at the schema.
    for first in ((), ('PRAGMA quick_check(1)',)):
        failed.clear()
        failed.update(first)
        with opening(state_path, read_only=read_only) as made:
            assert made.entries() == entries
        assert 'PRAGMA user_version' in failed


# --- rebuild


def page_of(path, name):
    """Where the root page of a table or index begins."""
    with raw(path) as db:
        (size,) = db.execute('PRAGMA page_size').fetchone()
        (page,) = db.execute(
            'SELECT rootpage FROM sqlite_master WHERE name = ?', (name,)
        ).fetchone()
    return (page - 1) * size, size


def spoil(state_path):
    """Open it, so that it is found damaged and set aside."""
    with pytest.raises(exception.JournalError):
        journal.Journal(state_path, 1)
    assert not os.path.exists(os.path.join(state_path, 'journal.db'))


def test_rebuild_keeps_all_where_an_index_is_damaged(state_path):
    entries = fill(state_path, 8)
    path = os.path.join(state_path, 'journal.db')
    start, size = page_of(path, 'van_device')
    overwrite(path, start, random.Random(3).randbytes(size))
    spoil(state_path)
    aside = set_aside(state_path)
    content = read_bytes(aside)
    assert journal_file.rebuild(state_path, 1) == (8, 0, 0)
    assert read_again(state_path) == entries
    kept = aside.replace('.damaged-', '.rebuilt-')
    assert read_bytes(kept) == content
    assert sorted(os.listdir(state_path)) == [
        'journal.db',
        os.path.basename(kept),
    ]
    assert mode(path) == 0o600
    # New rows come after those that were kept, and handles stay taken.
    with opening(state_path) as made:
        with pytest.raises(exception.DeviceBusy):
            made.add([make_entry(claim='h3')])
        made.add([make_entry()])
        assert made.entries()[:8] == entries


def test_rebuild_keeps_what_comes_before_the_damage(state_path):
    entries = fill(state_path, 40)
    path = os.path.join(state_path, 'journal.db')
    needle = entries[30].van.uuid.encode()
    (offset,) = [
        at
        for at in range(0, os.path.getsize(path), 4096)
        # A leaf of the table: type 13, sqlite.org/fileformat2.html
        if read_bytes(path)[at] == 13
        and needle in read_bytes(path)[at : at + 4096]
    ]
    overwrite(path, offset, random.Random(4).randbytes(4096))
    spoil(state_path)
    kept, _, lost = journal_file.rebuild(state_path, 1)
    assert 0 < kept <= 30
    assert lost == 0
    assert read_again(state_path) == entries[:kept]


def test_rebuild_counts_what_it_cannot_take_over(state_path):
    entries = fill(state_path, 3)
    path = os.path.join(state_path, 'journal.db')
    with raw(path) as db:
        db.execute('CREATE TABLE copy AS SELECT * FROM van')
        db.execute('DROP TABLE van')
        db.execute('ALTER TABLE copy RENAME TO van')
        # Two rows of one VAN: the unique index would not have let it in.
        db.execute('INSERT INTO van SELECT * FROM van WHERE seq = 2')
        db.execute('UPDATE van SET seq = 9 WHERE rowid = 4')
    os.rename(path, path + '.damaged-20260101T000000-1')
    assert journal_file.rebuild(state_path, 1) == (3, 0, 1)
    assert read_again(state_path) == entries


def test_rebuild_from_nothing_readable(state_path):
    fill(state_path)
    text_file(os.path.join(state_path, 'journal.db'))
    spoil(state_path)
    assert journal_file.rebuild(state_path, 1) == (0, 0, 0)
    assert read_again(state_path) == []


def test_rebuild_takes_the_rows_of_the_wal_too(tmp_path, state_path):
    entries = [make_entry() for _ in range(3)]
    aside = str(tmp_path / 'crashed' / 'journal.db.damaged-20260101T000000-1')
    os.mkdir(tmp_path / 'crashed')
    with opening(state_path) as made:
        made.add(entries)
        for end in ('', '-wal'):
            shutil.copy(made.path + end, aside + end)
    crashed = os.path.dirname(aside)
    assert journal_file.rebuild(crashed, 1) == (3, 0, 0)
    assert read_again(crashed) == entries
    assert not glob.glob(os.path.join(crashed, '*damaged*'))


def test_rebuild_waits_for_a_file_that_is_locked(state_path):
    """A lock of another process must not cost all the rows."""
    entries = fill(state_path)
    path = os.path.join(state_path, 'journal.db')
    aside = journal_file.set_aside(path, '.damaged-')
    with raw(aside) as db:
        db.execute('PRAGMA locking_mode = EXCLUSIVE')
        db.execute('BEGIN EXCLUSIVE')
        with pytest.raises(exception.JournalBusy):
            journal_file.rebuild(state_path, 0.1)
        db.execute('ROLLBACK')
    assert not os.path.exists(path)
    assert journal_file.rebuild(state_path, 5) == (len(entries), 0, 0)
    assert read_again(state_path) == entries


def test_rebuild_refuses_where_a_journal_is(state_path):
    entries = fill(state_path)
    path = os.path.join(state_path, 'journal.db')
    shutil.copy(path, path + '.damaged-20260101T000000-1')
    with pytest.raises(exception.JournalError, match='nothing to rebuild'):
        journal_file.rebuild(state_path, 1)
    assert read_again(state_path) == entries
    assert len(os.listdir(state_path)) == 2


def test_rebuild_refuses_where_nothing_was_set_aside(state_path):
    os.mkdir(state_path)
    with pytest.raises(exception.JournalError, match='no damaged journal'):
        journal_file.rebuild(state_path, 1)
    assert os.listdir(state_path) == []


# --- against a model


INSTANCES = [new_uuid() for _ in range(2)]
VANS = [new_uuid() for _ in range(6)]
HANDLES = strategies.sampled_from(['h0', 'h1', 'h2', 'h3'])
VALUES = strategies.one_of(
    strategies.none(), strategies.sampled_from(['dev0', 'dev1', 'dev2'])
)
CHANGES = strategies.fixed_dictionaries(
    {},
    optional={
        'handle': HANDLES.map(test_handle),
        'device': VALUES,
        'function_id': VALUES,
        'guest_config': strategies.none()
        | strategies.text(
            strategies.characters(exclude_categories=['Cs']), max_size=20
        ),
        'driver_data': strategies.dictionaries(
            strategies.text('abc', max_size=2),
            strategies.text('xyz', max_size=2),
            max_size=2,
        ),
        'state': strategies.sampled_from(STATES),
    },
)


class Model(stateful.RuleBasedStateMachine):
    """The journal beside a dict. Rows are told apart by their VAN's uuid."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix='os-acc-test-')
        self.journal = journal.Journal(self.directory, 5)
        self.rows = {}
        self.taken = {}

    def teardown(self):
        self.journal.close()
        shutil.rmtree(self.directory)

    def holder(self, handle):
        return next((v for v, h in self.taken.items() if h == handle), None)

    @stateful.rule(
        instance=strategies.sampled_from(INSTANCES),
        wanted=strategies.lists(
            strategies.tuples(
                strategies.sampled_from(VANS), strategies.none() | HANDLES
            ),
            min_size=1,
            max_size=3,
        ),
        live=strategies.booleans(),
    )
    def add(self, instance, wanted, live):
        entries = [
            make_entry(instance, van, claim, live) for van, claim in wanted
        ]
        rows, taken = dict(self.rows), dict(self.taken)
        fits = True
        for entry, (van, claim) in zip(entries, wanted, strict=True):
            if van in rows or (claim and claim in taken.values()):
                fits = False
                break
            rows[van], taken[van] = entry, claim
        if fits:
            self.journal.add(entries)
            self.rows, self.taken = rows, taken
        else:
            with pytest.raises(exception.DeviceBusy):
                self.journal.add(entries)

    @stateful.precondition(lambda self: self.rows)
    @stateful.rule(data=strategies.data(), change=CHANGES)
    def save(self, data, change):
        entry = self.pick(data)
        before = entry.van.obj_clone()
        for name, value in change.items():
            setattr(entry.van, name, value)
        wanted = entry.van.handle.name if entry.van.handle else None
        holder = self.holder(wanted)
        if wanted is None or holder in (None, entry.van.uuid):
            self.journal.save(entry.van)
            if wanted is not None:
                self.taken[entry.van.uuid] = wanted
        else:
            with pytest.raises(exception.DeviceBusy, match=holder):
                self.journal.save(entry.van)
            entry.van = before

    @stateful.precondition(lambda self: self.rows)
    @stateful.rule(
        data=strategies.data(),
        state=strategies.sampled_from(STATES),
        live=strategies.booleans(),
        attached=strategies.booleans(),
    )
    def mark(self, data, state, live, attached):
        entry = self.pick(data)
        entry.live, entry.attached = live, attached
        self.journal.mark([entry], state)
        assert entry.van.state == state

    @stateful.precondition(lambda self: self.rows)
    @stateful.rule(data=strategies.data(), attached=strategies.booleans())
    def save_all(self, data, attached):
        entries = [self.pick(data)]
        if data.draw(strategies.booleans()):
            entries = list(self.rows.values())
        self.journal.save_all([e.van for e in entries], attached=attached)
        for entry in entries:
            entry.attached = attached

    @stateful.precondition(lambda self: self.rows)
    @stateful.rule(data=strategies.data(), error=strategies.text('e!'))
    def settle(self, data, error):
        released, failed = self.pick(data), self.pick(data)
        failures = []
        if failed is not released:
            failures.append((failed.van, error))
            failed.van.state, failed.van.error = 'error', error
        self.journal.settle([released.van], failures)
        del self.rows[released.van.uuid], self.taken[released.van.uuid]

    @stateful.precondition(lambda self: self.rows)
    @stateful.rule(data=strategies.data())
    def settle_as_another_instance(self, data):
        stranger = self.pick(data).van.obj_clone()
        stranger.instance_uuid = new_uuid()
        self.journal.settle([stranger], [])
        with pytest.raises(exception.JournalError):
            self.journal.save(stranger)

    @stateful.rule()
    def reopen(self):
        self.journal.close()
        self.journal = journal.Journal(self.directory, 5)

    def pick(self, data):
        return self.rows[data.draw(strategies.sampled_from(list(self.rows)))]

    @stateful.invariant()
    def the_same(self):
        def plain(entry):
            van = entry.van.obj_clone()
            # The journal's own to set.
            van.updated_at = None
            return van, entry.live, entry.attached, entry.request

        found = [plain(entry) for entry in self.journal.entries()]
        assert found == [plain(entry) for entry in self.rows.values()]
        for instance in INSTANCES:
            assert uuids(self.journal.entries(instance)) == uuids(
                e
                for e in self.rows.values()
                if e.van.instance_uuid == instance
            )
        for device in ('dev0', 'dev1'):
            assert [v.uuid for v in self.journal.vans_on(device)] == uuids(
                e for e in self.rows.values() if e.van.device == device
            )


Model.TestCase.settings = hypothesis.settings(
    max_examples=examples.costly(15), stateful_step_count=25, deadline=None
)
TestModel = Model.TestCase


@pytest.mark.parametrize('read_only', [True, False])
def test_what_cannot_be_looked_at_is_not_absent(tmp_path, read_only):
    """Else who may not read the directory is told that nothing is plugged."""
    directory = tmp_path / 'state'
    directory.symlink_to(directory)
    with pytest.raises(exception.JournalError) as caught:
        journal.Journal(str(directory), 1, read_only=read_only).entries()
    assert not isinstance(caught.value, exception.JournalMissing)
    assert 'cannot open it: ' in str(caught.value)


@pytest.fixture
def not_to_be_opened(tmp_path):
    """A directory where sqlite's own text does not tell what is wrong."""
    (tmp_path / 'journal.db').mkdir()

    def error():
        with pytest.raises(exception.JournalError) as caught:
            journal.Journal(str(tmp_path), 1, read_only=True).entries()
        return str(caught.value)

    return error


def test_an_error_of_a_full_disk_says_so(
    not_to_be_opened, tmp_path, monkeypatch
):
    assert not_to_be_opened().endswith('unable to open database file')
    full = os.statvfs_result((4096, 4096, 9, 0, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, 'statvfs', lambda _: full)
    assert not_to_be_opened().endswith(f'. The disk of {tmp_path} is full')


def test_an_error_of_another_user_says_whose_it_is(
    not_to_be_opened, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, 'access', lambda *_: False)
    monkeypatch.setattr(os, 'geteuid', lambda: 4711)
    owner = pwd.getpwuid(tmp_path.stat().st_uid)
    group = grp.getgrgid(tmp_path.stat().st_gid)
    assert not_to_be_opened().endswith(
        f'. The directory {tmp_path} belongs to user id {owner.pw_uid} '
        f'({owner.pw_name}) and group id {group.gr_gid} ({group.gr_name}) '
        'with mode 0700, and this process runs as user id 4711; run it as '
        f'that user, such as: sudo -u "#{owner.pw_uid}" os-acc ..., or see '
        '"Two users" in the documentation'
    )
