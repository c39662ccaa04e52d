# SPDX-License-Identifier: Apache-2.0

"""os_acc.unplug: the order, and what happens after a failure."""

import threading
import time
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.attach import parallel


def uuids(vans):
    return [van.uuid for van in vans]


def test_unplug_all_last_plugged_first(host):
    instance = host.instance()
    first, second = host.requests(2), host.requests(2)
    os_acc.plug(instance, second)
    os_acc.plug(instance, first)
    host.calls.clear()
    assert os_acc.unplug(instance) == 4
    order = uuids(reversed([*second, *first]))
    assert host.calls.of('unplug') == order
    assert sorted(host.calls.of('unprepareVAN')) == sorted(order)
    assert [step for step, _ in host.calls.log[:4]] == ['unplug'] * 4
    assert host.states() == {}


def test_unplug_some(host):
    instance, requests = host.instance(), host.requests(3)
    os_acc.plug(instance, requests)
    assert os_acc.unplug(instance, requests[1:2]) == 1
    assert set(host.states()) == {requests[0].uuid, requests[2].uuid}


def test_unplug_what_is_not_there(host):
    instance = host.instance()
    assert os_acc.unplug(instance) == 0
    assert os_acc.unplug(instance, host.requests(2)) == 0
    assert host.calls.log == []


def test_unplug_of_an_empty_list_is_not_unplug_of_all(host):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    assert os_acc.unplug(instance, []) == 0
    assert host.states() == {requests[0].uuid: 'plugged'}


def test_unplug_leaves_other_instances_alone(host):
    mine, other = host.instance(), host.instance()
    os_acc.plug(mine, host.requests(1))
    kept = host.requests(1)
    os_acc.plug(other, kept)
    os_acc.unplug(mine)
    assert host.states() == {kept[0].uuid: 'plugged'}


def test_the_handle_is_free_after_unplug(host):
    handle = objects.PCIHandle(address='0000:01:00.0')
    for _ in range(2):
        instance = host.instance()
        os_acc.plug(instance, [host.request(handle=handle)])
        assert os_acc.unplug(instance) == 1


@pytest.mark.parametrize('step', ['unplug', 'unprepareVAN'])
@pytest.mark.parametrize(
    'error', [RuntimeError('stuck'), KeyboardInterrupt(), SystemExit(1)]
)
def test_unplug_goes_on_after_a_failure(host, step, error):
    instance, requests = host.instance(), host.requests(3)
    os_acc.plug(instance, requests)
    host.calls.clear()
    host.calls.on(step, error, requests[1].uuid)
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert caught.value.__cause__ is error
    (undo,) = caught.value.undo_errors
    assert requests[1].uuid in str(undo)
    assert instance.uuid in str(caught.value)
    (left,) = os_acc.get_vans(instance)
    assert (left.uuid, left.state) == (requests[1].uuid, 'error')
    assert step in left.error
    expected = [requests[2].uuid, requests[0].uuid]
    if step == 'unprepareVAN':
        expected.insert(1, requests[1].uuid)
    assert sorted(host.calls.of('unprepareVAN')) == sorted(expected)
    # A later unplug goes on from there, with what is still to do.
    host.calls.clear()
    assert os_acc.unplug(instance) == 1
    again = [s for s, _ in host.calls.log]
    assert again == ['unplug', 'unprepareVAN'][step == 'unprepareVAN' :]
    assert host.states() == {}


def test_all_failures_are_told(host):
    instance, requests = host.instance(), host.requests(3)
    os_acc.plug(instance, requests)
    host.calls.on('unplug', RuntimeError('one'), requests[0].uuid)
    host.calls.on('unprepareVAN', RuntimeError('two'), requests[2].uuid)
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert len(caught.value.undo_errors) == 2
    assert 'one' in str(caught.value)
    assert 'two' in str(caught.value)
    assert len(host.states()) == 2


def test_a_driver_that_is_gone_keeps_its_vans(host):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    host.drivers.clear()
    host.errors['driver recording'] = 'ImportError: removed'
    host.restart()
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    assert isinstance(caught.value.__cause__, exception.NoMatchingDriver)
    assert 'removed' in str(caught.value)
    assert host.states() == {requests[0].uuid: 'error'}
    host.drivers['recording'] = host.driver
    assert os_acc.unplug(instance) == 1


def test_unplug_live_is_passed_on_and_remembered(host):
    seen = []
    original = host.plugin.unplug

    def unplug(van, instance_info, live):
        seen.append(live)
        original(van, instance_info, live)

    host.plugin.unplug = unplug
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests, live=False)
    host.calls.on('unplug', RuntimeError('asleep'))
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance, live=True)
    host.calls.clear()
    os_acc.recover()
    assert seen == [True, True]
    assert host.states() == {}


@pytest.mark.parametrize('requests', ['abc', {'a': 1}, 7, [None], [{}]])
def test_bad_requests_are_refused(host, requests):
    instance, there = host.instance(), host.requests(1)
    os_acc.plug(instance, there)
    with pytest.raises(exception.InvalidRequest):
        os_acc.unplug(instance, requests)
    assert host.states() == {there[0].uuid: 'plugged'}


def test_device_halves_are_released_in_parallel(host):
    instance, requests = host.instance(), host.requests(6)
    os_acc.plug(instance, requests)
    together = threading.Barrier(6, timeout=300)
    host.calls.on('unprepareVAN', lambda van: together.wait())
    assert os_acc.unplug(instance) == 6
    assert host.states() == {}


def test_max_workers_limits_the_release(host):
    os_acc.CONF.set_override('max_workers', 2, 'os_acc')
    instance = host.instance()
    os_acc.plug(instance, host.requests(6))
    running, most = set(), []

    def unprepare(van):
        running.add(van.uuid)
        most.append(len(running))
        time.sleep(0.02)
        running.discard(van.uuid)

    host.calls.on('unprepareVAN', unprepare)
    assert os_acc.unplug(instance) == 6
    assert max(most) == 2


@pytest.mark.parametrize(
    'given',
    [
        lambda request, van: request,
        lambda request, van: van,
        lambda request, van: van.uuid,
        lambda request, van: van.uuid.upper(),
        lambda request, van: uuid.UUID(van.uuid),
    ],
)
def test_unplug_takes_requests_vans_and_uuids(host, given):
    instance, requests = host.instance(), host.requests(2)
    vans = os_acc.plug(instance, requests)
    assert os_acc.unplug(instance, [given(requests[0], vans[0])]) == 1
    assert host.states() == {requests[1].uuid: 'plugged'}


def test_unplug_takes_what_plug_returned(host):
    instance = host.instance()
    vans = os_acc.plug(instance, host.requests(2))
    assert os_acc.unplug(instance, vans) == 2


@pytest.mark.parametrize(
    'given', ['no uuid', '7b4a1e525d0c4e498a532b8f6d1c', 3]
)
def test_what_unplug_does_not_take_is_named(host, given):
    instance = host.instance()
    os_acc.plug(instance, host.requests(1))
    with pytest.raises(exception.InvalidRequest) as caught:
        os_acc.unplug(instance, [given])
    assert 'AcceleratorRequests, VANs or UUIDs' in str(caught.value)
    assert repr(given) in str(caught.value)
    assert len(host.states()) == 1


class GreenTimeout(BaseException):
    """As eventlet.Timeout: it is no Exception, and is for the caller."""


@pytest.mark.parametrize('victim', [0, 1])
def test_an_interruption_of_an_undo_is_passed_on_when_the_rest_is_undone(
    host, victim
):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    host.calls.on('unplug', GreenTimeout(), requests[victim].uuid)
    with pytest.raises(GreenTimeout):
        os_acc.unplug(instance)
    assert host.states() == {requests[victim].uuid: 'error'}
    host.calls.clear()
    assert os_acc.unplug(instance) == 1


def test_an_interruption_while_device_halves_are_released(host, interruptible):
    import _thread

    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    together = threading.Barrier(2, timeout=300)

    def unprepare(van):
        if together.wait() == 0:
            _thread.interrupt_main()
        time.sleep(0.2)

    host.calls.on('unprepareVAN', unprepare)
    with pytest.raises(KeyboardInterrupt):
        os_acc.unplug(instance)
    assert host.states() == {}


def test_a_journal_that_cannot_mark_the_rows_keeps_every_device(
    host, monkeypatch
):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    host.calls.clear()

    def fail(self, entries, state):
        for entry in entries:
            entry.van.state = state
        raise exception.JournalError(path='j', reason='disk is full')

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, 'mark', fail)
        with pytest.raises(exception.UnplugException) as caught:
            os_acc.unplug(instance)
    assert 'disk is full' in str(caught.value)
    assert host.calls.log == []
    assert set(host.states().values()) == {'plugged'}
    assert os_acc.unplug(instance) == 2


@pytest.mark.parametrize('started', [0, 1])
def test_without_threads_the_caller_releases_all(host, monkeypatch, started):
    """As at the end of the interpreter, or with too many threads."""
    instance, requests = host.instance(), host.requests(3)
    os_acc.plug(instance, requests)
    count = iter(range(9))
    start = threading.Thread.start

    def fail(self):
        if next(count) >= started:
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', fail)
        assert os_acc.unplug(instance) == 3
    assert len(host.calls.of('unprepareVAN')) == 3
    assert host.states() == {}


@pytest.mark.parametrize('step', ['unplug', 'unprepareVAN'])
@pytest.mark.parametrize('status', ['started', 'done'])
@pytest.mark.parametrize('error', [SystemExit, GreenTimeout])
def test_a_callback_that_ends_a_step_loses_no_device(
    host, step, status, error
):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    host.calls.clear()

    def callback(event):
        if (event.step, event.status) == (step, status):
            raise error

    with pytest.raises((exception.UnplugException, GreenTimeout, SystemExit)):
        os_acc.unplug(instance, progress=callback)
    # Every VAN without a row is undone.
    undone = set(host.calls.of('unprepareVAN'))
    assert undone | set(host.states()) == set(uuids(requests))
    assert os_acc.unplug(instance) == 2
    assert host.states() == {}


def test_a_mark_that_fails_in_between_is_no_failure(host, monkeypatch):
    instance = host.instance()
    os_acc.plug(instance, host.requests(1))
    mark = journal.Journal.mark

    def fail(self, entries, state):
        if state == 'unpreparing':
            raise exception.JournalError(path='j', reason='I/O error')
        mark(self, entries, state)

    monkeypatch.setattr(journal.Journal, 'mark', fail)
    assert os_acc.unplug(instance) == 1
    assert host.states() == {}


def test_parallel_waits_if_the_start_of_a_thread_is_interrupted(monkeypatch):
    start, done = threading.Thread.start, []

    def interrupted(self):
        start(self)
        raise GreenTimeout

    def act(item):
        time.sleep(0.2)
        done.append(item)

    monkeypatch.setattr(threading.Thread, 'start', interrupted)
    with pytest.raises(GreenTimeout):
        parallel.run(act, [1, 2], 4)
    assert sorted(done) == [1, 2]


def test_parallel_starts_no_thread_when_nothing_waits(monkeypatch):
    start, started, done = threading.Thread.start, [], []

    def finish(self):
        """The first thread does all before the second one would start."""
        started.append(self.name)
        start(self)
        self.join()

    monkeypatch.setattr(threading.Thread, 'start', finish)
    parallel.run(done.append, range(4), 4)
    assert done == [0, 1, 2, 3]
    assert started == ['os-acc-0']


def test_parallel_survives_a_step_that_raises():
    done = []

    def act(item):
        done.append(item)
        raise SystemExit

    parallel.run(act, range(4), 2)
    assert sorted(done) == [0, 1, 2, 3]
