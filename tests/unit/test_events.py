# SPDX-License-Identifier: Apache-2.0

"""Events: what the journal keeps of each call, and the sums of them."""

import contextlib
import re
import sqlite3
import time
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.attach import recorder
from os_acc.journal import database
from os_acc.journal import events
from os_acc.journal import health
from os_acc.journal import store
from os_acc.kernel import sysfs

AT = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z')


def told(**wanted):
    """The events of the journal, as (operation, step, result)."""
    found = os_acc._host.journal.events(events.Wanted(**wanted))
    return [(each.operation, each.step, each.result) for each in found]


def sums():
    found = os_acc._host.journal.measures()
    return {(name, labels): value for name, labels, value in found}


@pytest.fixture(autouse=True)
def no_call_takes_long(monkeypatch):
    """On a busy machine, a call of a second is not a long one."""
    monkeypatch.setattr(recorder, 'LONG_CALL', 3600.0)


def test_a_call_that_takes_long_writes_its_steps_at_once(host, monkeypatch):
    monkeypatch.setattr(recorder, 'LONG_CALL', 0.0)
    seen = {}

    def look(progress):
        if progress.status == 'started':
            seen[progress.step] = [step for _, step, _ in told()]

    instance = host.instance()
    os_acc.plug(instance, host.requests(1), progress=look)
    assert seen == {
        'prepareVAN': [],
        'plug': ['prepareVAN'],
        'postplug': ['prepareVAN', 'plug'],
    }
    seen.clear()
    os_acc.unplug(instance, progress=look)
    assert seen['unprepareVAN'][-2:] == [None, 'unplug']
    # Each is written once.
    steps = [step for _, step, _ in told()]
    done = ['prepareVAN', 'plug', 'postplug', None, 'unplug', 'unprepareVAN']
    assert steps == [*done, None]
    assert sums()[events.SECONDS, ('plug', 'done')] > 0


def test_a_short_call_writes_its_steps_when_it_ends(host):
    seen = []
    os_acc.plug(
        host.instance(),
        host.requests(1),
        progress=lambda _: seen.extend(told()),
    )
    assert seen == []


def test_plug_and_unplug(host):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    os_acc.unplug(instance)
    assert told() == [
        ('plug', 'prepareVAN', 'done'),
        ('plug', 'plug', 'done'),
        ('plug', 'postplug', 'done'),
        ('plug', None, 'done'),
        ('unplug', 'unplug', 'done'),
        ('unplug', 'unprepareVAN', 'done'),
        ('unplug', None, 'done'),
    ]
    found = os_acc._host.journal.events()
    step, call = found[0], found[3]
    assert (step.van_uuid, call.van_uuid) == (requests[0].uuid, None)
    assert (step.instance_uuid, step.instance_name) == (instance.uuid, 'guest')
    assert (step.device, step.handle) == ('dev0', f'test/made-{step.van_uuid}')
    assert [e.extension for e in found[:4]] == ['recording'] * 3 + [None]
    assert step.program == os_acc._host.owner
    assert [e.seq for e in found] == list(range(1, 8))
    assert all(AT.fullmatch(e.at) for e in found)
    assert all(e.seconds >= 0 and e.uid is not None and e.pid for e in found)
    assert (
        sum(
            value
            for (name, labels), value in sums().items()
            if name == events.DURATIONS and labels[:2] == ('plug', 'done')
        )
        == 1
    )
    assert sums()[events.SECONDS, ('plug', 'done')] == call.seconds


def test_a_plug_of_what_is_plugged_is_no_event(host):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    before = told()
    os_acc.plug(instance, requests)
    assert os_acc.unplug(host.instance()) == 0
    assert told() == before


def test_events_cost_no_commit(host, monkeypatch):
    counted = []
    write = store.Store._in_transaction
    monkeypatch.setattr(
        store.Store,
        '_in_transaction',
        lambda *args: (counted.append(args), write(*args))[1],
    )
    instance = host.instance()
    os_acc.plug(instance, host.requests(1))
    # the intent; the driver's save; "plugging"; "plugged"
    assert len(counted) == 4
    os_acc.unplug(instance)
    # "unplugging"; "unpreparing"; the end
    assert len(counted) == 7


def test_a_plug_that_fails(host):
    host.calls.on('plug', ValueError('no room'))
    with pytest.raises(exception.PlugException):
        os_acc.plug(host.instance(), host.requests(1))
    assert told() == [
        ('plug', 'prepareVAN', 'done'),
        ('plug', 'plug', 'failed'),
        ('plug', 'unplug', 'done'),
        ('plug', 'unprepareVAN', 'done'),
        ('plug', None, 'failed'),
    ]
    found = os_acc._host.journal.events()
    for each in (found[1], found[4]):
        assert (each.error, each.reason) == (
            'ValueError',
            'ValueError: no room',
        )
    by = ('plug', 'recording', 'ValueError')
    assert sums()[events.FAILURES, ('plug', *by)] == 1
    assert sums()[events.FAILURES, ('plug', '', '', 'ValueError')] == 1


def test_a_plug_that_is_refused_after_the_checks(host):
    handle = objects.TestHandle(name='one')
    os_acc.plug(host.instance(), [host.request(handle=handle)])
    instance = host.instance()
    with pytest.raises(exception.PlugException):
        os_acc.plug(instance, [host.request(handle=handle)])
    assert told(instances=[instance.uuid]) == [('plug', None, 'failed')]
    (found,) = os_acc._host.journal.events(
        events.Wanted(instances=[instance.uuid])
    )
    assert found.error == 'DeviceBusy'


def test_an_invalid_request_is_no_event(host):
    with pytest.raises(exception.InvalidRequest):
        os_acc.plug(host.instance(), [])
    assert told() == []


def test_an_unplug_that_fails(host):
    instance = host.instance()
    os_acc.plug(instance, host.requests(2))
    host.calls.on('unplug', OSError('it hangs'))
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert told()[-3:] == [
        ('unplug', 'unplug', 'failed'),
        ('unplug', 'unplug', 'failed'),
        ('unplug', None, 'failed'),
    ]


def test_recovery(host):
    first, second = host.instance(), host.instance()
    os_acc.plug(first, host.requests(1))
    os_acc.plug(second, host.requests(1))
    (van,) = os_acc.get_vans(first)
    os_acc._host.journal.mark(
        os_acc._host.journal.entries(first.uuid), 'error'
    )
    (other,) = os_acc.get_vans(second)
    other.boot_id = 'earlier'
    os_acc._host.journal.save(other)
    host.restart()
    assert told(van=van.uuid)[-3:] == [
        ('recover', 'unplug', 'done'),
        ('recover', 'unprepareVAN', 'done'),
        ('recover', None, 'released'),
    ]
    assert told(van=other.uuid)[-3:] == [
        ('recover', 'prepareVAN', 'done'),
        ('recover', 'restore', 'done'),
        ('recover', None, 'restored'),
    ]
    assert sums()[events.RECOVERED, ('released',)] == 1
    assert sums()[events.RECOVERED, ('restored',)] == 1


def test_recovery_that_fails(host):
    instance = host.instance()
    os_acc.plug(instance, host.requests(1))
    (van,) = os_acc.get_vans(instance)
    van.boot_id = 'earlier'
    os_acc._host.journal.save(van)
    host.calls.on('prepareVAN', OSError('gone'))
    host.restart()
    assert told(van=van.uuid)[-2:] == [
        ('recover', 'prepareVAN', 'failed'),
        ('recover', None, 'failed'),
    ]
    assert sums()[events.RECOVERED, ('failed',)] == 1
    # replug of the same fails too, outside of any commit of its own
    with pytest.raises(exception.PlugException):
        os_acc.replug(instance)
    assert told()[-2:] == [
        ('replug', 'prepareVAN', 'failed'),
        ('replug', None, 'failed'),
    ]


def test_a_plug_that_first_releases_what_is_half_done(host):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    opened = os_acc._host.journal
    opened.mark(opened.entries(), 'error')
    os_acc.plug(instance, requests)
    assert told()[4:7] == [
        ('recover', 'unplug', 'done'),
        ('recover', 'unprepareVAN', 'done'),
        ('recover', None, 'released'),
    ]
    assert told()[-1] == ('plug', None, 'done')


def test_orphans(host):
    os_acc.plug(host.instance(), host.requests(1))
    os_acc.release_orphans([], 0)
    assert told()[-1] == ('orphans', None, 'done')


def test_a_failure_of_the_journal_is_not_written_to_it(host, monkeypatch):
    noted = []
    monkeypatch.setattr(journal.Journal, 'note', lambda *a: noted.append(a))

    def fail(*_):
        raise exception.JournalError(path='x', reason='broken')

    monkeypatch.setattr(journal.Journal, 'entries', fail)
    with pytest.raises(exception.PlugException, match='broken'):
        os_acc.plug(host.instance(), host.requests(1))
    assert noted == []


# --- in spite of events


def spoil(statement):
    with contextlib.closing(sqlite3.connect(os_acc._host.journal.path)) as db:
        db.execute(statement)
        db.commit()


def test_a_plug_does_not_fail_with_its_events(host, caplog):
    spoil('DROP TABLE measure')
    instance = host.instance()
    os_acc.plug(instance, host.requests(1))
    assert os_acc.unplug(instance) == 1
    assert told() == []
    assert '4 events are not written: no such table' in caplog.text


def test_a_commit_that_fails_is_done_again_without_events(
    host, caplog, monkeypatch
):
    """As on a full disk, where a commit without them may fit."""
    used = []

    def fail(db, *_):
        used.append(db)
        db.execute('ROLLBACK')
        raise sqlite3.OperationalError('database or disk is full')

    monkeypatch.setattr(events, 'insert', fail)
    instance = host.instance()
    os_acc.plug(instance, host.requests(1))
    assert host.states().popitem()[1] == 'plugged'
    assert os_acc.unplug(instance) == 1
    assert len(used) == 2
    assert 'Written again without its 4 events' in caplog.text


def test_a_busy_journal_is_not_asked_again(host, monkeypatch):
    opened = os_acc._host.journal
    entry = journal.Entry(
        objects.VAN(uuid=host.request().uuid), None, None, False
    )
    tried = []

    def busy(*_):
        tried.append(1)
        raise exception.JournalBusy(path='x', seconds=1)

    monkeypatch.setattr(store.Store, '_in_transaction', busy)
    with pytest.raises(exception.JournalBusy):
        opened.forget(entry.van.uuid, [event()])
    assert tried == [1]
    opened.note([event()])


# --- the rows


def event(**values):
    return events.Event(
        **{
            'at': events.now(),
            'operation': 'plug',
            'step': None,
            'result': 'done',
            **values,
        }
    )


@pytest.fixture
def opened(tmp_path):
    with contextlib.closing(
        journal.Journal(str(tmp_path / 'state'), 5, program='tests')
    ) as made:
        yield made


def test_the_oldest_are_deleted_and_the_sums_stay(opened, monkeypatch):
    monkeypatch.setattr(events, 'MOST', 10)
    monkeypatch.setattr(events, 'SLACK', 5)
    for number in range(100):
        opened.note([event(seconds=0.01, instance_name=str(number))])
        assert len(opened.events()) <= 15
    assert opened.events()[-1].instance_name == '99'
    assert len(opened.events()) >= 10
    (durations,) = (m for m in opened.measures() if m.name == events.DURATIONS)
    assert durations == ('durations', ('plug', 'done', '0.05'), 100)


def test_events_cost_the_same_however_many_there_are(opened):
    """A plug writes its events: it must not read all that are there."""

    def steps():
        """Count the instructions that sqlite executes for one event."""
        counted = []
        with contextlib.closing(database.connect(opened.path)) as db:
            db.execute('BEGIN')
            db.set_progress_handler(lambda: counted.append(1), 1)
            events.insert(db, 'tests', [event()])
            db.set_progress_handler(None, 1)
            db.execute('ROLLBACK')
        return len(counted)

    opened.note([event()] * 10)
    few = steps()
    opened.note([event()] * 2000)
    assert 0 < steps() < 2 * few


def test_a_long_call_is_counted_above_all_limits(opened):
    opened.note([event(seconds=1e6, operation='unplug')])
    assert ('durations', ('unplug', 'done', '+Inf'), 1) in opened.measures()


def test_wanted(opened):
    found = [
        event(van_uuid='0f5d1c7e-aa', instance_uuid='1111', device='0000:0A'),
        event(van_uuid='0f5d1c7e-bb', instance_name='web'),
        event(handle='pci/0000:0b:00.0', at='2020-01-01T00:00:00.000Z'),
    ]
    opened.note(found)

    def numbers(**wanted):
        return [e.seq for e in opened.events(events.Wanted(**wanted))]

    assert numbers() == [1, 2, 3]
    assert numbers(van='0f5d1c7e') == [1, 2]
    assert numbers(van='0f5d1c7e-b') == [2]
    assert numbers(van='%') == numbers(van='_f') == []
    assert numbers(instances=['11']) == [1]
    assert numbers(instance_name='web') == [2]
    assert numbers(instances=['11'], instance_name='web') == [1, 2]
    assert numbers(device='0000:0a') == [1]
    assert numbers(device='0000:0B:00.0') == [3]
    assert numbers(device='pci/0000:0b:00.0') == [3]
    assert numbers(since='2020-01-02') == [1, 2]
    assert numbers(after=2) == [3]


def test_a_reader_and_an_older_journal(opened, tmp_path):
    opened.note([event()])
    state = str(tmp_path / 'state')
    with contextlib.closing(journal.Journal(state, 1, True)) as reader:
        assert len(reader.events()) == 1
        reader.note([event()])  # only logged
        assert len(reader.events()) == 1
    empty = journal.Journal(str(tmp_path / 'none'), 1, read_only=True)
    assert empty.events() == empty.measures() == []


def test_an_unhealthy_device(opened):
    opened.save_unhealthy(
        health.Health('f1', health.CLEANING, 'not clean', 'b', 'now', 'pci')
    )
    (found,) = opened.events()
    assert (found.operation, found.device) == ('unhealthy', 'f1')
    assert (found.error, found.reason) == ('cleaning', 'not clean')


@pytest.mark.parametrize(
    'secret',
    [
        'GET https://me:hunter2@example.org/x failed',
        'GET https://me@example.org/x?token=hunter2&b=1: refused',
        "{'password': 'hunter2'}",
        'auth_token=hunter2',
        'rabbit://me:x@mq-1:5672,me:hunter2@mq-2:5672/ is unreachable',
        'GET https://me:a/hunter2@example.org/x failed',
        'nvme connect -S DHHC-1:00:hunter2:: exit code 1',
        "headers {'Authorization': 'Bearer hunter2xyz'}",
        'export DB_PASS=hunter2',
    ],
)
def test_no_secret_is_kept(host, secret):
    host.calls.on('plug', ValueError(secret.replace('me@', 'hunter2@')))
    with pytest.raises(exception.PlugException):
        os_acc.plug(host.instance(), host.requests(1))
    found = os_acc._host.journal.events()
    assert any(each.error for each in found)
    assert 'hunter2' not in ' '.join(str(e.reason) for e in found)


def test_a_long_text_of_an_error_takes_no_long_time():
    text = '<a xmlns="http://example.org/a">' + 'http://' * 50_000
    began = time.process_time()
    found = events.failure(ValueError(text))['reason']
    assert time.process_time() - began < 5
    assert len(found) == events.LONGEST


def test_a_text_that_is_no_utf8(opened):
    name = b'\xff'.decode('utf-8', 'surrogateescape')
    opened.note([event(reason=name, instance_name=name)])
    assert opened.events()[0].reason == '\\udcff'
    assert (
        events.failure(ValueError('x' * 5000))['reason']
        == ('ValueError: ' + 'x' * 5000)[: events.LONGEST]
    )
    assert database.storable(None) is None


def test_a_replug_by_any_form_of_the_uuid(host, monkeypatch):
    """Its events have the one form by which an operator looks for them."""
    instance = host.instance()
    os_acc.plug(instance, host.requests(1))
    monkeypatch.setattr(sysfs, 'boot_id', lambda: 'next')
    host.calls.on('prepareVAN', RuntimeError('boom'))
    for text in (uuid.UUID(instance.uuid), instance.uuid.upper()):
        with pytest.raises(exception.PlugException):
            os_acc.replug(text)
    found = [
        each
        for each in os_acc._host.journal.events()
        if each.operation == events.REPLUG and each.step is None
    ]
    assert [each.instance_uuid for each in found] == [instance.uuid] * 2


def test_a_row_that_is_not_there_is_no_matter_of_the_events(host, caplog):
    """The write is not repeated without them, as on a full disk."""
    made = events.Event(events.now(), events.FORGET, None, events.DONE)
    with pytest.raises(exception.JournalError, match='it has no VAN'):
        os_acc._host.journal.forget(str(uuid.uuid4()), [made])
    assert 'Written again' not in caplog.text
    assert os_acc._host.journal.events() == []
