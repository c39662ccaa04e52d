# SPDX-License-Identifier: Apache-2.0

"""Who plugged a VAN, replug(), and the VANs of instances that are gone."""

from __future__ import annotations

import datetime
import json
import sqlite3
import threading

from command import Command
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.attach import release
from os_acc.kernel import sysfs

OTHER = '11111111-2222-3333-4444-555555555555'


@pytest.fixture
def reboot(monkeypatch):
    return lambda: monkeypatch.setattr(sysfs, 'boot_id', lambda: 'next')


def age(seconds: float) -> None:
    """Make all VANs older."""
    moment = datetime.datetime.now(datetime.UTC)
    moment -= datetime.timedelta(seconds=seconds)
    with sqlite3.connect(os_acc._get().journal.path) as db:
        db.execute('UPDATE van SET updated_at = ?', [moment.isoformat()])


def plug(host, count=1):
    instance = host.instance()
    return instance, os_acc.plug(instance, host.requests(count))


# --- who plugged it


def test_the_owner_is_the_program_by_default(host, monkeypatch):
    monkeypatch.setattr('sys.argv', ['/usr/bin/nova-compute', '--debug'])
    os_acc.initialize(reset=True)
    _, (van,) = plug(host)
    assert van.owner == 'nova-compute'
    assert os_acc.get_vans()[0].owner == 'nova-compute'
    monkeypatch.setattr('sys.argv', ['/opt/my program.py'])
    os_acc.initialize(reset=True)
    assert plug(host)[1][0].owner == 'my-program.py'
    monkeypatch.setattr('sys.argv', [''])
    os_acc.initialize(reset=True)
    assert plug(host)[1][0].owner == 'python'


def test_initialize_names_the_owner(host):
    os_acc.initialize(owner='nova')
    _, (van,) = plug(host)
    assert van.owner == 'nova'
    # A later call of other code in the process does not change it.
    os_acc.initialize()
    assert plug(host)[1][0].owner == 'nova'
    with pytest.raises(exception.InvalidRequest, match='owner'):
        os_acc.initialize(owner='no name/')
    assert plug(host)[1][0].owner == 'nova'


def without_owner() -> None:
    """Make all rows like those of the version before."""
    with sqlite3.connect(os_acc._get().journal.path) as db:
        for uuid, text in db.execute('SELECT uuid, van FROM van').fetchall():
            van = json.loads(text)
            van['versioned_object.version'] = '1.1'
            del van['versioned_object.data']['owner']
            row = [json.dumps(van), uuid]
            db.execute('UPDATE van SET van = ? WHERE uuid = ?', row)


def test_a_row_of_an_earlier_version_has_no_owner_until_it_is_plugged(host):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    without_owner()
    assert [van.owner for van in os_acc.get_vans()] == [None, None]
    assert not os_acc.release_orphans([], 0).objects
    host.calls.clear()
    os_acc.initialize(owner='nova')
    assert [v.owner for v in os_acc.plug(instance, requests)] == ['nova'] * 2
    assert [van.owner for van in os_acc.get_vans()] == ['nova'] * 2
    assert host.calls.log == []


def test_such_a_row_after_a_reboot(host, reboot):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    without_owner()
    reboot()
    os_acc.initialize(owner='nova')
    assert os_acc.get_vans()[0].owner is None
    assert os_acc.replug(instance)[0].owner == 'nova'
    assert os_acc.get_vans()[0].owner == 'nova'


def test_the_owner_stays_when_another_plugs_it_again(host):
    os_acc.initialize(owner='nova')
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    os_acc.initialize(owner='other')
    assert os_acc.plug(instance, requests)[0].owner == 'nova'


# --- replug


def test_replug_prepares_again_after_a_reboot(host, reboot):
    instance, before = plug(host, 2)
    plug(host)
    host.calls.clear()
    assert [v.uuid for v in os_acc.replug(instance)] == [
        v.uuid for v in before
    ]
    assert host.calls.log == []
    reboot()
    after = os_acc.replug(instance.uuid)
    assert sorted(host.calls.of('prepareVAN')) == sorted(
        van.uuid for van in before
    )
    assert [v.handle for v in after] == [v.handle for v in before]
    assert [v.guest_config for v in after] == [v.guest_config for v in before]
    assert {v.boot_id for v in after} == {'next'}
    host.calls.clear()
    os_acc.replug(instance)
    assert host.calls.log == []


def test_replug_repairs(host, monkeypatch):
    instance, (van,) = plug(host)
    monkeypatch.setattr(host.driver, 'is_intact', lambda van: False)
    host.calls.clear()
    os_acc.replug(instance)
    assert host.calls.log == [('prepareVAN', van.uuid)]


def test_replug_that_fails(host, reboot):
    instance, (van,) = plug(host)
    reboot()
    host.calls.on('prepareVAN', RuntimeError('no such card'))
    with pytest.raises(exception.PlugException, match='no such card'):
        os_acc.replug(instance)
    assert host.states() == {van.uuid: 'plugged'}
    host.calls.clear()
    assert os_acc.replug(instance)[0].error is None


def test_replug_leaves_alone_what_is_half_unplugged(host, caplog):
    instance, vans = plug(host, 2)
    host.calls.on('unplug', RuntimeError('no'), vans[0].uuid)
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance, [vans[0]])
    host.calls.clear()
    assert [v.uuid for v in os_acc.replug(instance)] == [vans[1].uuid]
    assert 'not plugged again: its state is error' in caplog.text


def test_replug_of_what_has_nothing_and_of_nonsense(host):
    assert not os_acc.replug(OTHER).objects
    with pytest.raises(exception.InvalidRequest, match='a UUID'):
        os_acc.replug('web-1')
    os_acc.initialize(reset=True, read_only=True)
    with pytest.raises(exception.ReadOnly, match='replug'):
        os_acc.replug(OTHER)


# --- release_orphans


def test_only_unknown_instances_are_released(host):
    gone, vans = plug(host, 2)
    stays, (other,) = plug(host)
    assert not os_acc.release_orphans([gone.uuid, stays.uuid], 0).objects
    found = os_acc.release_orphans([stays.uuid.upper()], 0)
    assert [v.uuid for v in found] == [v.uuid for v in vans]
    assert [v.error for v in found] == [None, None]
    assert host.states() == {other.uuid: 'plugged'}
    wanted = sorted(v.uuid for v in vans)
    assert sorted(host.calls.of('unprepareVAN')) == wanted


def test_what_is_known_is_not_decoded(host, caplog):
    """With 10,000 VANs, that would take most of the time."""
    stays, _ = plug(host)
    with sqlite3.connect(os_acc._get().journal.path) as db:
        db.execute("UPDATE van SET van = '{'")
    gone, _ = plug(host)
    caplog.clear()
    assert len(os_acc.release_orphans([stays.uuid], 0)) == 1
    assert not os_acc.get_vans(gone)
    # Whoever decodes the row of the other says that it cannot be read.
    assert 'cannot be read' not in caplog.text
    os_acc.get_vans()
    assert 'cannot be read' in caplog.text


def test_those_of_another_owner_stay(host):
    os_acc.initialize(owner='other')
    plug(host)
    os_acc.initialize(owner='nova')
    _, (van,) = plug(host)
    assert [v.uuid for v in os_acc.release_orphans([], 0)] == [van.uuid]
    assert [v.owner for v in os_acc.get_vans()] == ['other']


def test_young_ones_stay(host):
    plug(host)
    assert not os_acc.release_orphans([], 60).objects
    age(50)
    assert not os_acc.release_orphans([], 60).objects
    age(70)
    assert len(os_acc.release_orphans([], 60)) == 1


def test_one_young_van_keeps_the_instance(host):
    instance, _ = plug(host)
    age(70)
    os_acc.plug(instance, host.requests(1))
    assert not os_acc.release_orphans([], 60).objects


def test_what_the_hypervisor_has_stays(host, monkeypatch):
    instance, _ = plug(host)
    gone, (van,) = plug(host)
    asked = []

    def has_guest(info):
        asked.append(info.uuid)
        return info.uuid == instance.uuid

    monkeypatch.setattr(host.plugin, 'has_guest', has_guest)
    assert [v.uuid for v in os_acc.release_orphans([], 0)] == [van.uuid]
    assert sorted(asked) == sorted([instance.uuid, gone.uuid])


def test_a_hypervisor_that_does_not_answer_keeps_everything(host, monkeypatch):
    plug(host)

    def has_guest(info):
        raise exception.HypervisorError(what='domain', reason='is down')

    monkeypatch.setattr(host.plugin, 'has_guest', has_guest)
    (van,) = os_acc.release_orphans([], 0)
    assert 'is down' in van.error
    assert list(host.states().values()) == ['plugged']


def test_a_release_that_fails_does_not_stop_the_others(host):
    _, (bad,) = plug(host)
    _, (good,) = plug(host)
    host.calls.on('unprepareVAN', RuntimeError('in use'), bad.uuid)
    errors = {v.uuid: v.error for v in os_acc.release_orphans([], 0)}
    assert 'in use' in errors[bad.uuid]
    assert errors[good.uuid] is None
    assert host.states() == {bad.uuid: 'error'}


def test_an_instance_that_is_worked_on_is_left_alone(host):
    instance, (van,) = plug(host)
    inside, go_on = threading.Event(), threading.Event()

    def wait(_van):
        inside.set()
        go_on.wait(120)

    host.calls.on('unplug', wait)
    thread = threading.Thread(target=os_acc.unplug, args=(instance,))
    thread.start()
    inside.wait(120)
    (busy,) = os_acc.release_orphans([], 0)
    go_on.set()
    thread.join()
    assert 'is working on the instance' in busy.error
    assert host.states() == {}
    assert host.calls.of('unplug') == [van.uuid]


def test_one_that_is_plugged_again_before_the_lock_stays(host, monkeypatch):
    instance, _ = plug(host)
    age(70)
    locks = os_acc._get().locks
    take = locks.instance

    def instance_lock(uuid, **kwargs):
        monkeypatch.setattr(locks, 'instance', take)
        os_acc.plug(instance, host.requests(1))
        return take(uuid, **kwargs)

    monkeypatch.setattr(locks, 'instance', instance_lock)
    assert not os_acc.release_orphans([], 60).objects
    assert len(host.states()) == 2


@pytest.mark.parametrize(
    ('known', 'minimum_age', 'field'),
    [
        (OTHER, 0, 'known_instance_uuids'),
        (None, 0, 'known_instance_uuids'),
        (['web-1'], 0, 'known_instance_uuids'),
        ([], -1, 'minimum_age'),
        ([], float('nan'), 'minimum_age'),
        ([], '60', 'minimum_age'),
    ],
)
def test_nonsense_is_refused(host, known, minimum_age, field):
    plug(host)
    with pytest.raises(exception.InvalidRequest, match=field):
        os_acc.release_orphans(known, minimum_age)
    assert len(host.states()) == 1


def test_a_reader_releases_nothing(host):
    os_acc.initialize(reset=True, read_only=True)
    with pytest.raises(exception.ReadOnly, match='release_orphans'):
        os_acc.release_orphans([], 0)


# --- the command


@pytest.fixture
def run(host, tmp_path, capsys, monkeypatch):
    os_acc.initialize(owner='nova')
    return Command(tmp_path / 'state', capsys, monkeypatch)


def test_the_command_lists_and_changes_nothing(run, host):
    instance, (van,) = plug(host)
    assert run.fine('orphans', '-f', 'json').json == []
    rows = run.fine('orphans', '--minimum-age', 0, '-f', 'json').json
    assert [(r['uuid'], r['instance_uuid'], r['owner']) for r in rows] == [
        (van.uuid, instance.uuid, 'nova')
    ]
    assert (rows[0]['result'], rows[0]['error']) == ('orphan', None)
    assert van.uuid in run.fine('orphans', '--minimum-age', 0).out
    known = ['--minimum-age', 0, '--known', '-', '-f', 'json']
    assert run.fine('orphans', *known, stdin=instance.uuid).json == []
    other = ['--minimum-age', 0, '--owner', 'other', '-f', 'json']
    assert run.fine('orphans', *other).json == []
    assert host.states() == {van.uuid: 'plugged'}


def test_the_command_releases(run, host, tmp_path):
    instance, _ = plug(host)
    gone, (van,) = plug(host)
    path = tmp_path / 'known'
    path.write_text(f'{instance.uuid}\n')
    arguments = ['orphans', '--minimum-age', '0', '--known', path]
    arguments += ['--release', '-f', 'json', '--owner']
    assert run.fine(*arguments, 'other').json == []
    rows = run.fine(*arguments, 'nova').json
    assert [(r['uuid'], r['result']) for r in rows] == [(van.uuid, 'released')]
    assert gone.uuid not in {v.instance_uuid for v in os_acc.get_vans()}
    assert run.fine(*arguments, 'nova').json == []


def test_the_command_says_what_it_could_not_release(run, host):
    _, (van,) = plug(host)
    host.calls.on('unprepareVAN', RuntimeError('in use'))
    arguments = ['orphans', '--minimum-age', 0, '--known', '-', '--release']
    result = run(*arguments, '--owner', 'nova', '-f', 'json', stdin=OTHER)
    assert result.code == 3
    (row,) = result.json
    assert (row['uuid'], row['result']) == (van.uuid, 'not released')
    assert 'in use' in row['error']


def test_several_instances_are_asked_about_at_a_time(run, host, monkeypatch):
    """A hypervisor that is down costs some seconds for each."""
    for _ in range(2):
        plug(host)
    both = threading.Barrier(2)

    def has_guest(info):
        both.wait(120)
        raise exception.HypervisorError(what='domain', reason='is down')

    monkeypatch.setattr(host.plugin, 'has_guest', has_guest)
    rows = run.fine('orphans', '--minimum-age', 0, '-f', 'json').json
    assert [row['error'] for row in rows] == ['domain: is down'] * 2


def test_the_command_where_the_hypervisor_does_not_answer(
    run, host, monkeypatch
):
    plug(host)

    def has_guest(info):
        raise exception.HypervisorError(what='domain', reason='is down')

    monkeypatch.setattr(host.plugin, 'has_guest', has_guest)
    (row,) = run.fine('orphans', '--minimum-age', 0, '-f', 'json').json
    assert row['result'] == 'unknown'
    assert 'is down' in row['error']


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (['--release'], 'needs --known and --owner'),
        (['--release', '--known', '-'], 'needs --known and --owner'),
        (['--known', '-'], 'at least one UUID'),
        (['--known', '/missing/file'], 'readable file'),
        (['--minimum-age', '-1'], 'minimum_age'),
    ],
)
def test_the_command_refuses(run, host, monkeypatch, arguments, text):
    plug(host)
    monkeypatch.setattr(release, 'release', None)
    assert text in run.fails(2, 'orphans', *arguments)
    assert len(host.states()) == 1


def test_the_command_before_anything_was_plugged(
    clean, tmp_path, capsys, monkeypatch
):
    run = Command(tmp_path / 'none', capsys, monkeypatch)
    result = run('orphans', '-f', 'json')
    assert (result.code, result.json) == (0, [])
    assert 'nothing was plugged' in result.err
    assert not (tmp_path / 'none').exists()


def test_van_show_has_the_owner(run, host):
    arq = objects.AcceleratorRequest(uuid=OTHER)
    os_acc.plug(host.instance(), [arq])
    assert run.fine('van', 'show', OTHER, '-f', 'json').json['owner'] == 'nova'
