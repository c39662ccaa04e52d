# SPDX-License-Identifier: Apache-2.0

"""os_acc.recover after a crash or a reboot of the host."""

import contextlib
import sqlite3
import threading

import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc.kernel import sysfs


def uuids(vans):
    return [van.uuid for van in vans]


class Crash(Exception):
    """Simulates kill -9: no code of os-acc runs after it."""


@pytest.fixture
def crash(host, monkeypatch):
    """Stops all undoing, as the end of the process would."""
    from os_acc.attach import release

    def at(step, call, van=None):
        host.calls.on(step, Crash(), van)
        with monkeypatch.context() as patch:
            patch.setattr(release, 'release', lambda *a: release.Released())
            with pytest.raises(exception.AttachException):
                call()
        host.calls.clear()

    return at


@pytest.fixture
def reboot(host, monkeypatch, tmp_path):
    count = iter(range(100))

    def again():
        path = tmp_path / 'sys/kernel/random/boot_id'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'boot-{next(count)}\n')
        monkeypatch.setattr(sysfs, 'PROC', str(tmp_path))

    return again


def test_nothing_to_do(host):
    os_acc.plug(host.instance(), host.requests(1))
    host.calls.clear()
    report = os_acc.recover()
    assert host.calls.log == []
    assert (report.released, report.restored, report.failed) == ([], [], [])


@pytest.mark.parametrize(
    'step,undone',
    [
        ('prepareVAN', ['unprepareVAN'] * 2),
        ('plug', ['unplug'] * 2 + ['unprepareVAN'] * 2),
        ('postplug', ['unplug'] * 2 + ['unprepareVAN'] * 2),
    ],
)
def test_a_half_done_plug_is_undone_at_the_next_start(
    host, crash, step, undone
):
    instance, requests = host.instance(), host.requests(2)
    crash(step, lambda: os_acc.plug(instance, requests))
    assert set(host.states()) == set(uuids(requests))
    host.restart()
    assert [s for s, _ in host.calls.log] == undone
    assert set(host.calls.of('unprepareVAN')) == set(uuids(requests))
    assert host.states() == {}


def test_the_driver_gets_what_it_saved(host, crash):
    request = host.request()
    crash('prepareVAN', lambda: os_acc.plug(host.instance(), [request]))
    seen = []
    host.calls.on(
        'unprepareVAN', lambda van: seen.append((van.driver_data, van.handle))
    )
    host.restart()
    ((data, handle),) = seen
    assert data == {'was': 'free'}
    assert handle.name == f'made-{request.uuid}'


def test_recovery_can_fail_and_is_tried_again(host, crash):
    requests = host.requests(2)
    crash('plug', lambda: os_acc.plug(host.instance(), requests))
    host.calls.on('unprepareVAN', OSError('stuck'), requests[0].uuid)
    report = os_acc.recover()
    assert uuids(report.released) == [requests[1].uuid]
    (failed,) = report.failed
    assert (failed.uuid, failed.state) == (requests[0].uuid, 'error')
    assert 'stuck' in failed.error
    host.calls.clear()
    assert uuids(os_acc.recover().released) == [requests[0].uuid]
    assert host.calls.log == [('unprepareVAN', requests[0].uuid)]


def test_after_a_reboot_the_same_handles_are_prepared_again(host, reboot):
    instance, requests = host.instance(), host.requests(3)
    before = os_acc.plug(instance, requests)
    host.calls.clear()
    reboot()
    host.restart()
    assert sorted(host.calls.log) == sorted(
        ('prepareVAN', uuid) for uuid in uuids(requests)
    )
    after = os_acc.get_vans(instance)
    assert [v.handle for v in after] == [v.handle for v in before]
    assert {v.boot_id for v in after} == {sysfs.boot_id()}
    assert {v.state for v in after} == {'plugged'}
    host.calls.clear()
    os_acc.recover()
    assert host.calls.log == []


def test_after_a_reboot_what_was_half_done_is_undone(host, crash, reboot):
    instance, kept, half = host.instance(), host.requests(1), host.requests(1)
    os_acc.plug(instance, kept)
    crash('plug', lambda: os_acc.plug(instance, half))
    reboot()
    host.restart()
    assert host.calls.of('prepareVAN') == uuids(kept)
    assert host.calls.of('unprepareVAN') == uuids(half)
    assert host.states() == {kept[0].uuid: 'plugged'}


def test_what_cannot_be_prepared_again_stays_plugged_and_says_why(
    host, reboot
):
    instance, requests = host.instance(), host.requests(3)
    os_acc.plug(instance, requests)
    reboot()
    host.calls.on('prepareVAN', OSError('no driver yet'), requests[1].uuid)
    report = os_acc.recover()
    assert uuids(report.restored) == [requests[0].uuid, requests[2].uuid]
    (failed,) = report.failed
    assert failed.state == 'plugged'
    assert 'no driver yet' in failed.error
    assert failed.boot_id != sysfs.boot_id()
    assert host.calls.of('unprepareVAN') == []
    # The next plug of the same request tries again, and reports a failure.
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, requests)
    assert isinstance(caught.value.__cause__, OSError)
    host.calls.clear()
    vans = os_acc.plug(instance, requests)
    assert host.calls.log == [('prepareVAN', requests[1].uuid)]
    assert {v.error for v in vans} == {None}
    assert {v.boot_id for v in vans} == {sysfs.boot_id()}


def test_another_handle_after_a_reboot_is_an_error(host, reboot):
    from os_acc import objects

    instance, request = host.instance(), host.request()
    os_acc.plug(instance, [request])
    reboot()
    host.calls.on(
        'prepareVAN',
        lambda van: setattr(van, 'handle', objects.TestHandle(name='other')),
    )
    report = os_acc.recover()
    assert 'test/other' in report.failed[0].error
    (van,) = os_acc.get_vans()
    assert van.handle.name == f'made-{request.uuid}'


def test_an_instance_that_is_worked_on_is_left_alone(host):
    instance, requests = host.instance(), host.requests(1)
    working, done = threading.Event(), threading.Event()

    def work(van):
        working.set()
        done.wait(120)

    host.calls.on('plug', work)
    thread = threading.Thread(target=os_acc.plug, args=(instance, requests))
    thread.start()
    try:
        assert working.wait(120)
        report = os_acc.recover()
        assert report.busy == [instance.uuid]
        assert report.released == []
        assert host.calls.of('unplug') == []
    finally:
        done.set()
        thread.join()
    assert host.states() == {requests[0].uuid: 'plugged'}


def test_a_half_done_plug_is_undone_by_the_next_plug(host, crash):
    instance, requests = host.instance(), host.requests(1)
    crash('plug', lambda: os_acc.plug(instance, requests))
    os_acc.plug(instance, requests)
    steps = [step for step, _ in host.calls.log]
    assert steps == [
        'unplug',
        'unprepareVAN',
        'prepareVAN',
        'plug',
        'postplug',
    ]


def test_a_half_done_unplug_is_finished(host, crash):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)

    # A crash in unplug: after the rows are marked, before the first act.
    class Stop(BaseException):
        pass

    mark = journal.Journal.mark

    def stop(*args):
        mark(*args)
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.Journal, 'mark', stop)
        with pytest.raises(Stop):
            os_acc.unplug(instance)
    assert set(host.states().values()) == {'unplugging'}
    host.calls.clear()
    report = os_acc.recover()
    assert len(report.released) == 2
    assert host.calls.of('unplug') == uuids(reversed(requests))
    assert host.states() == {}


def interrupting(monkeypatch, uuid, error):
    """Raise an error when an instance is recovered."""
    unreadable = journal.Journal.unreadable

    def read(made, instance_uuid=None):
        if instance_uuid == uuid:
            raise error
        return unreadable(made, instance_uuid)

    monkeypatch.setattr(journal.Journal, 'unreadable', read)


def test_an_interruption_stops_the_recovery(host, crash, monkeypatch):
    """Here no thread can be started, so the caller does the work."""
    instance = host.instance()
    crash('plug', lambda: os_acc.plug(instance, host.requests(1)))

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, 'start', refuse)
    with monkeypatch.context() as patch:
        interrupting(patch, instance.uuid, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            os_acc.recover()
    assert len(os_acc.recover().released) == 1


def test_a_thread_that_ends_is_an_error_of_its_instance(
    host, crash, monkeypatch
):
    bad, good = host.instance(), host.instance()
    crash('plug', lambda: os_acc.plug(bad, host.requests(1)))
    crash('plug', lambda: os_acc.plug(good, host.requests(1)))
    with monkeypatch.context() as patch:
        interrupting(patch, bad.uuid, SystemExit)
        report = os_acc.recover()
    assert report.errors == {bad.uuid: 'its recovery was interrupted'}
    assert [van.instance_uuid for van in report.released] == [good.uuid]
    assert len(os_acc.recover().released) == 1


def test_a_row_that_cannot_be_read_stops_only_its_own_instance(host, crash):
    bad, good = host.instance(), host.instance()
    first, second = host.requests(1), host.requests(1)
    crash('plug', lambda: os_acc.plug(bad, first))
    crash('plug', lambda: os_acc.plug(good, second))
    with contextlib.closing(sqlite3.connect(os_acc._host.journal.path)) as db:
        db.execute(
            "UPDATE van SET van = '{}' WHERE uuid = ?", (first[0].uuid,)
        )
        db.commit()
    host.restart()
    assert host.calls.of('unprepareVAN') == uuids(second)
    report = os_acc.recover()
    assert list(report.unreadable) == [bad.uuid]
    assert first[0].uuid in report.unreadable[bad.uuid]
    # The VAN is still in the journal, and is not reported as released.
    assert list(os_acc.get_vans()) == []
    for call in (os_acc.plug, os_acc.unplug):
        with pytest.raises(exception.AttachException) as caught:
            call(bad, host.requests(1) if call is os_acc.plug else None)
        cause = caught.value.__cause__
        assert isinstance(cause, exception.JournalUnreadable)
        assert f'os-acc van forget {first[0].uuid}' in str(cause)
    assert len(os_acc.plug(host.instance(), host.requests(1))) == 1


def test_instances_are_recovered_in_parallel(host, crash):
    for _ in range(6):
        instance, requests = host.instance(), host.requests(1)
        crash('plug', lambda: os_acc.plug(instance, requests))  # noqa: B023
    together = threading.Barrier(6, timeout=300)
    host.calls.on('unprepareVAN', lambda van: together.wait())
    assert len(os_acc.recover().released) == 6
    assert host.states() == {}


def test_what_requested_a_function_is_recovered_first(host, reboot):
    host.driver.programs = True
    shares, requests = host.instance(), host.instance()

    def prepare(van):
        van.function_id = 'aes'

    host.calls.on('prepareVAN', prepare)
    (first,) = os_acc.plug(shares, host.requests(1))
    (second,) = os_acc.plug(requests, [host.request(function_id='aes')])
    host.calls.clear()
    reboot()
    host.calls.on('prepareVAN', prepare)
    report = os_acc.recover()
    assert host.calls.of('prepareVAN') == [second.uuid, first.uuid]
    assert len(report.restored) == 2


def test_no_error_of_one_instance_stops_the_others(host, crash, monkeypatch):
    from os_acc.attach import release

    bad, good = host.instance(), host.instance()
    first, second = host.requests(1), host.requests(1)
    crash('plug', lambda: os_acc.plug(bad, first))
    crash('plug', lambda: os_acc.plug(good, second))
    real = release.release

    def fail(host_, entries, step):
        if entries[0].van.instance_uuid == bad.uuid:
            raise ZeroDivisionError('odd')
        return real(host_, entries, step)

    with monkeypatch.context() as patch:
        patch.setattr(release, 'release', fail)
        report = os_acc.recover()
        assert report.errors == {bad.uuid: 'ZeroDivisionError: odd'}
        assert uuids(report.released) == uuids(second)
        host.restart()
    assert uuids(os_acc.recover().released) == uuids(first)
    assert host.states() == {}


def test_a_failed_van_has_its_error_in_the_report(host, crash, monkeypatch):
    """Also if the journal could not write it."""
    requests = host.requests(2)
    crash('plug', lambda: os_acc.plug(host.instance(), requests))
    host.calls.on('unprepareVAN', OSError('stuck'), requests[0].uuid)

    def fail(self, *args, **kwargs):
        raise exception.JournalError(path='j', reason='disk is full')

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, 'settle', fail)
        report = os_acc.recover()
    errors = {van.uuid: van.error for van in report.failed}
    assert 'stuck' in errors[requests[0].uuid]
    assert 'disk is full' in errors[requests[1].uuid]
    assert report.released == []


def test_a_surrogate_in_an_error_stops_nothing(host, crash):
    """As a file name that is not UTF-8 brings it into a driver's error."""
    bad, good = host.requests(1), host.requests(1)
    crash('plug', lambda: os_acc.plug(host.instance(), bad))
    crash('plug', lambda: os_acc.plug(host.instance(), good))
    host.calls.on('unprepareVAN', OSError('/dev/\udcff'), bad[0].uuid)
    report = os_acc.recover()
    assert uuids(report.released) == uuids(good)
    (failed,) = os_acc.get_vans()
    assert (failed.uuid, failed.state) == (bad[0].uuid, 'error')
    assert '/dev/\\udcff' in failed.error
    host.calls.clear()
    host.restart()
    assert host.states() == {}


def test_a_surrogate_in_an_error_of_an_unplug(host):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    host.calls.on('unprepareVAN', OSError('/dev/\udcff'), requests[0].uuid)
    with pytest.raises(exception.UnplugException, match='/dev/'):
        os_acc.unplug(instance)
    assert host.states() == {requests[0].uuid: 'error'}
    host.calls.clear()
    os_acc.recover()
    assert host.states() == {}


def test_a_busy_journal_stops_only_that_instance(host, crash, monkeypatch):
    bad, good = host.instance(), host.instance()
    first, second = host.requests(1), host.requests(1)
    crash('plug', lambda: os_acc.plug(bad, first))
    crash('plug', lambda: os_acc.plug(good, second))
    real = journal.Journal.entries

    def busy(self, instance_uuid=None):
        if instance_uuid == bad.uuid:
            raise exception.Timeout(what='another writer', seconds=30)
        return real(self, instance_uuid)

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, 'entries', busy)
        host.restart()
    assert host.calls.of('unprepareVAN') == uuids(second)
    assert set(host.states()) == set(uuids(first))


@pytest.mark.parametrize('handle', ['other', None])
def test_another_handle_that_is_saved_does_not_take_the_claim(
    host, reboot, handle
):
    from os_acc import objects

    (van,) = os_acc.plug(host.instance(), host.requests(1))
    reboot()
    refused = []

    def change(van):
        van.handle = handle and objects.TestHandle(name=handle)
        try:
            van.save()
        except exception.HandleChanged as err:
            refused.append(err)
            raise

    host.calls.on('prepareVAN', change)
    for _ in range(2):
        assert len(os_acc.recover().failed) == 1
        assert os_acc.get_vans()[0].handle == van.handle
    assert len(refused) == 2
    host.calls.clear()
    assert len(os_acc.recover().restored) == 1
