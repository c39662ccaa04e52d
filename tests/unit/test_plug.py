# SPDX-License-Identifier: Apache-2.0

"""os_acc.plug: order, undo, idempotency, failures."""

import socket
import threading
import time
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.attach import exclusion
from os_acc.claims import holder


def fail(*args, **kwargs):
    """The journal's methods fail like this when it cannot be written."""
    raise exception.JournalError(path='j', reason='I/O error')


class Oops(BaseException):
    """A BaseException that is no Exception, as some libraries' timeouts."""


def uuids(vans):
    return [van.uuid for van in vans]


def test_plug_returns_vans_in_order_of_requests(host):
    instance, requests = host.instance(), host.requests(5)
    # The first VAN takes longest.
    host.calls.on('prepareVAN', lambda v: time.sleep(0.1), requests[0].uuid)
    vans = os_acc.plug(instance, requests)
    assert isinstance(vans, objects.VANList)
    assert uuids(vans) == uuids(requests)
    assert uuids(os_acc.get_vans(instance)) == uuids(requests)
    for van in vans:
        assert van.state == 'plugged'
        assert van.instance_uuid == instance.uuid
        assert van.driver == van.plugin == 'recording'
        assert van.handle == objects.TestHandle(name=f'made-{van.uuid}')
        assert van.guest_config == f'<test/made-{van.uuid} live=False>'
        assert van.error is None
    assert list(os_acc.get_vans()) == list(vans)


def test_plug_steps_come_in_the_order_of_the_design(host):
    instance, requests = host.instance(), host.requests(4)
    os_acc.plug(instance, requests)
    steps = [step for step, _ in host.calls.log]
    assert steps == ['prepareVAN'] * 4 + ['plug'] * 4 + ['postplug'] * 4
    assert host.calls.of('plug') == uuids(requests)
    assert host.calls.of('postplug') == uuids(requests)


def test_the_van_says_its_state_at_each_step(host):
    seen = {}
    for step in ('prepareVAN', 'plug', 'postplug', 'unplug', 'unprepareVAN'):
        host.calls.on(
            step,
            lambda van, step=step: seen.update(
                {step: host.states()[van.uuid]}
            ),
        )
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    os_acc.unplug(instance)
    assert seen == {
        'prepareVAN': 'preparing',
        'plug': 'plugging',
        'postplug': 'plugging',
        'unplug': 'unplugging',
        'unprepareVAN': 'unpreparing',
    }


def test_a_plug_reads_the_uuid_of_its_journal_once(host, monkeypatch):
    """Each step names the journal to the privileged half."""
    read, found = journal.Journal.identity, []

    def identity(self):
        found.append(read(self))
        return found[-1]

    seen = []
    for step in ('prepareVAN', 'plug', 'postplug'):
        host.calls.on(step, lambda van: seen.append(holder.current()))
    monkeypatch.setattr(journal.Journal, 'identity', identity)
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    assert len(found) == 1
    assert sorted(each.van for each in seen) == sorted(uuids(requests) * 3)
    assert {(each.journal, each.instance) for each in seen} == {
        (found[0], instance.uuid)
    }


def test_preparation_is_parallel(host):
    together = threading.Barrier(6, timeout=300)
    host.calls.on('prepareVAN', lambda van: together.wait())
    os_acc.plug(host.instance(), host.requests(6))


def test_max_workers_limits_the_preparation(host):
    os_acc.CONF.set_override('max_workers', 2, 'os_acc')
    running, most = set(), []

    def prepare(van):
        running.add(van.uuid)
        most.append(len(running))
        time.sleep(0.02)
        running.discard(van.uuid)

    host.calls.on('prepareVAN', prepare)
    os_acc.plug(host.instance(), host.requests(8))
    assert max(most) == 2


def test_plug_again_touches_nothing(host):
    instance, requests = host.instance(), host.requests(3)
    vans = os_acc.plug(instance, requests)
    host.calls.clear()
    again = os_acc.plug(instance, list(reversed(requests)))
    assert host.calls.log == []
    assert list(again) == list(reversed(list(vans)))


def test_plug_more_touches_only_what_is_new(host):
    instance, requests = host.instance(), host.requests(3)
    os_acc.plug(instance, requests[1:2])
    host.calls.clear()
    vans = os_acc.plug(instance, requests)
    assert uuids(vans) == uuids(requests)
    assert sorted(host.calls.of('prepareVAN')) == sorted(
        [requests[0].uuid, requests[2].uuid]
    )


def test_plugged_with_another_request_is_refused(host):
    instance = host.instance()
    request = host.request(resource_class='FPGA')
    os_acc.plug(instance, [request])
    host.calls.clear()
    other = objects.AcceleratorRequest(uuid=request.uuid, resource_class='GPU')
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, [other])
    assert isinstance(caught.value.__cause__, exception.InvalidRequest)
    for text in ('resource_class', 'GPU', 'FPGA', request.uuid):
        assert text in str(caught.value)
    assert host.calls.log == []
    assert host.states() == {request.uuid: 'plugged'}


@pytest.mark.parametrize('step', ['prepareVAN', 'plug', 'postplug'])
@pytest.mark.parametrize('victim', [0, 1, 2])
@pytest.mark.parametrize('error', [RuntimeError('boom'), Oops('boom')])
def test_any_failure_undoes_all_of_the_call(host, step, victim, error):
    instance, kept = host.instance(), host.requests(1)
    os_acc.plug(instance, kept)
    before = list(os_acc.get_vans())
    host.calls.clear()
    requests = host.requests(3)
    host.calls.on(step, error, requests[victim].uuid)
    # What interrupts the caller's own thread, as eventlet.Timeout does, is
    # for the caller; prepareVAN runs in a thread of its own.
    interrupts = isinstance(error, Oops) and step != 'prepareVAN'
    expected = Oops if interrupts else exception.PlugException
    with pytest.raises(expected) as caught:
        os_acc.plug(instance, [*kept, *requests])
    if interrupts:
        assert caught.value is error
    else:
        assert caught.value.__cause__ is error
        assert caught.value.undo_errors == []
        for text in ('boom', requests[victim].uuid, step, instance.uuid):
            assert text in str(caught.value)
    assert list(os_acc.get_vans()) == before
    # What was begun is undone, and nothing else.
    plugged = host.calls.of('plug')
    assert host.calls.of('unplug') == list(reversed(plugged))
    prepared = host.calls.of('prepareVAN')
    undone = host.calls.of('unprepareVAN')
    assert sorted(undone) == sorted(prepared)
    assert kept[0].uuid not in undone


class Mute(Exception):
    """An error whose text needs an attribute that does not exist."""

    def __str__(self):
        raise AttributeError('request')


@pytest.mark.parametrize('step', ['prepareVAN', 'plug', 'postplug'])
def test_an_error_without_a_text_is_a_failure(host, step):
    host.calls.on(step, Mute())
    requests = host.requests(2)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), requests)
    assert isinstance(caught.value.__cause__, Mute)
    assert 'Mute: (no text: its __str__ raised Attr' in str(caught.value)
    assert not os_acc.get_vans().objects


def test_a_drivers_own_step_error_is_wrapped_as_any(host):
    """A StepFailed that a driver raises must not become its own cause."""
    own = exception.StepFailed(van='v', step='s', actor='a', err='e')
    host.calls.on('plug', own)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), host.requests(1))
    assert caught.value.__cause__ is own
    assert own.__cause__ is None
    assert "plug of plugin 'recording' failed: " in str(caught.value)


def test_an_undo_that_fails_without_a_text_stops_no_other(host):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    host.calls.on('unprepareVAN', Mute(), requests[1].uuid)
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert host.states() == {requests[1].uuid: 'error'}
    assert [v.uuid for v in os_acc.recover().failed] == [requests[1].uuid]


def test_what_ends_a_thread_of_preparation_is_a_failure(host):
    """The plug fails; no VAN is plugged without a device."""

    def exits(progress):
        if progress.step == 'prepareVAN':
            raise SystemExit(3)

    with pytest.raises(exception.PlugException, match='SystemExit: 3'):
        os_acc.plug(host.instance(), host.requests(2), progress=exits)
    assert not os_acc.get_vans().objects


def test_an_error_of_several_lines_is_told_in_one(host):
    host.calls.on('prepareVAN', RuntimeError('not so:\n  bad register\n'))
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), host.requests(1))
    assert str(caught.value).endswith('RuntimeError: not so: bad register')


@pytest.mark.parametrize(
    'describe, why',
    [
        (lambda self: 1 / 0, 'raised ZeroDivisionError: division by zero'),
        (lambda self: None, 'gave a NoneType, expected objects.HostPlugin'),
    ],
)
def test_a_plugin_that_cannot_describe_itself(
    host, monkeypatch, describe, why
):
    monkeypatch.setattr(type(host.plugin), 'describe', describe)
    with pytest.raises(exception.NoMatchingPlugin) as caught:
        os_acc.plug(host.instance(), host.requests(1))
    assert f"Plugin 'recording' is unavailable: its describe() {why}" in str(
        caught.value
    )
    assert why in os_acc.host_info().load_errors['plugin recording']
    assert not os_acc.host_info().plugin_info


def test_after_a_failure_no_more_are_started(host):
    os_acc.CONF.set_override('max_workers', 1, 'os_acc')
    requests = host.requests(5)
    host.calls.on('prepareVAN', RuntimeError('boom'), requests[1].uuid)
    with pytest.raises(exception.PlugException):
        os_acc.plug(host.instance(), requests)
    assert host.calls.of('prepareVAN') == uuids(requests[:2])
    assert set(host.calls.of('unprepareVAN')) == set(uuids(requests[:2]))
    assert host.states() == {}


def test_a_sys_exit_of_a_driver_does_not_end_the_process(host):
    host.calls.on('prepareVAN', SystemExit(3))
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), host.requests(1))
    assert isinstance(caught.value.__cause__, SystemExit)
    assert host.states() == {}


@pytest.mark.parametrize('step', ['plug', 'postplug'])
def test_an_interrupt_of_the_caller_is_undone_and_passed_on(host, step):
    requests = host.requests(2)
    host.calls.on(step, KeyboardInterrupt(), requests[1].uuid)
    with pytest.raises(KeyboardInterrupt):
        os_acc.plug(host.instance(), requests)
    assert host.states() == {}
    assert len(host.calls.of('unprepareVAN')) == 2


def test_an_interrupt_while_preparing_waits_for_the_drivers(
    host, interruptible
):
    # The caller's thread gets the signal while it waits.
    import _thread

    requests = host.requests(3)
    ended = []
    together = threading.Barrier(3, timeout=300)

    def prepare(van):
        together.wait()
        if van.uuid == requests[0].uuid:
            _thread.interrupt_main()
        time.sleep(0.2)
        ended.append(van.uuid)

    host.calls.on('prepareVAN', prepare)
    host.calls.on('unprepareVAN', lambda van: ended.append('undo'))
    with pytest.raises(KeyboardInterrupt):
        os_acc.plug(host.instance(), requests)
    assert host.states() == {}
    assert ended[:3].count('undo') == 0
    assert ended[3:] == ['undo'] * 3


def test_a_failed_undo_is_told_kept_and_tried_again(host):
    instance, requests = host.instance(), host.requests(3)
    host.calls.on('plug', RuntimeError('boom'), requests[2].uuid)
    host.calls.on('unprepareVAN', OSError('stuck'), requests[1].uuid)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, requests)
    (undo,) = caught.value.undo_errors
    assert isinstance(undo.__cause__, OSError)
    assert 'boom' in str(caught.value)
    assert 'stuck' in str(caught.value)
    assert requests[1].uuid in str(undo)
    (left,) = os_acc.get_vans()
    assert (left.uuid, left.state) == (requests[1].uuid, 'error')
    assert 'stuck' in left.error
    # Others were undone nevertheless.
    assert set(host.calls.of('unprepareVAN')) == set(uuids(requests))
    host.calls.clear()
    report = os_acc.recover()
    assert uuids(report.released) == [requests[1].uuid]
    assert host.calls.log == [('unprepareVAN', requests[1].uuid)]
    assert host.states() == {}


def test_what_the_guest_will_not_let_go_is_not_unprepared(host):
    requests = host.requests(2)
    host.calls.on('postplug', RuntimeError('boom'))
    host.calls.on('unplug', TimeoutError('guest asleep'), requests[0].uuid)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), requests)
    assert host.calls.of('unprepareVAN') == [requests[1].uuid]
    assert len(caught.value.undo_errors) == 1
    host.calls.clear()
    os_acc.recover()
    assert host.calls.log == [
        ('unplug', requests[0].uuid),
        ('unprepareVAN', requests[0].uuid),
    ]


def test_plug_after_a_failed_undo_undoes_first(host):
    instance, requests = host.instance(), host.requests(1)
    host.calls.on('postplug', RuntimeError('boom'))
    host.calls.on('unprepareVAN', OSError('stuck'))
    with pytest.raises(exception.PlugException):
        os_acc.plug(instance, requests)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, requests)
    assert isinstance(caught.value.__cause__, OSError)
    host.calls.clear()
    os_acc.plug(instance, requests)
    steps = [step for step, _ in host.calls.log]
    assert steps == ['unprepareVAN', 'prepareVAN', 'plug', 'postplug']


def test_a_driver_that_sets_no_handle_fails(host, monkeypatch):
    monkeypatch.setattr(
        type(host.driver), 'prepareVAN', lambda self, *args: None
    )
    request = host.request(handle=objects.PCIHandle(address='0000:01:00.0'))
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), [request])
    assert isinstance(caught.value.__cause__, exception.HandleMissing)
    assert 'recording' in str(caught.value)
    assert host.calls.of('unprepareVAN') == [request.uuid]
    assert host.states() == {}


def test_a_handle_that_the_plugin_does_not_take_fails_untouched(host):
    request = host.request(handle=objects.DRCHandle(drc_index=0x21030011))
    with pytest.raises(exception.UnsupportedHandle) as caught:
        os_acc.plug(host.instance(), [host.request(), request])
    assert 'DRCHandle' in str(caught.value)
    assert host.calls.log == []


def test_a_driver_of_no_handle_that_the_plugin_takes_fails_untouched(host):
    host.driver.handle_types = ('MdevHandle',)
    with pytest.raises(exception.UnsupportedHandle):
        os_acc.plug(host.instance(), host.requests(1))
    assert host.calls.log == []


def test_a_driver_that_makes_a_handle_not_taken_is_undone(host):
    def prepare(van):
        van.handle = objects.DRCHandle(drc_index='21030011')

    host.calls.on('prepareVAN', prepare)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), host.requests(1))
    assert isinstance(caught.value.__cause__, exception.UnsupportedHandle)
    assert len(host.calls.of('unprepareVAN')) == 1


def test_one_handle_for_two_instances(host):
    handle = objects.PCIHandle(address='0000:0C:00.1')
    first = host.instance()
    (van,) = os_acc.plug(first, [host.request(handle=handle)])
    host.calls.clear()
    other = host.request(handle=objects.PCIHandle(address='0c:00.1'))
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), [host.request(), other])
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert first.uuid in str(caught.value)
    assert '0000:0c:00.1' in str(caught.value)
    assert host.calls.log == []
    assert host.states() == {van.uuid: 'plugged'}


def test_a_driver_that_finds_a_taken_handle_never_undoes_the_owner(host):
    """It saves the handle of another VAN, which its undo must not see."""
    handle = objects.TestHandle(name='the-one')
    first, second = host.request(), host.request()
    undone = []
    host.calls.on('unprepareVAN', lambda van: undone.append(van.handle))

    def prepare(van):
        van.handle = handle
        van.driver_data = {'touched': 'the-one'}

    # It does not call save(): the conflict is found after prepareVAN.
    host.calls.on('prepareVAN', prepare)
    os_acc.plug(host.instance(), [first])
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), [second])
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    (seen,) = undone
    assert seen != handle
    # It calls save().
    host.calls.on('prepareVAN', lambda van: (prepare(van), van.save()))
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), [second])
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert handle not in undone
    assert host.states() == {first.uuid: 'plugged'}


def test_one_van_uuid_for_two_instances(host):
    first, request = host.instance(), host.request()
    os_acc.plug(first, [request])
    host.calls.clear()
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), [request])
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert first.uuid in str(caught.value)
    assert host.calls.log == []
    assert host.states() == {request.uuid: 'plugged'}


def test_a_late_unplug_does_not_touch_the_next_owner(host):
    old, new, request = host.instance(), host.instance(), host.request()
    os_acc.plug(old, [request])
    os_acc.unplug(old)
    os_acc.plug(new, [request])
    host.calls.clear()
    assert os_acc.unplug(old, [request]) == 0
    assert os_acc.unplug(old) == 0
    assert host.calls.log == []
    assert host.states() == {request.uuid: 'plugged'}


def bad_calls(host):
    request = host.request()
    unset = objects.AcceleratorRequest()
    handle = objects.TestHandle(name='one')
    return {
        'empty': ([], 'requests'),
        'none': (None, 'requests'),
        'text': ('abc', 'requests'),
        'dict': ({'uuid': request.uuid}, 'requests'),
        'raw ARQ': ([{'uuid': request.uuid}], 'request'),
        'no uuid': ([unset], 'uuid'),
        'twice': ([request, request], request.uuid),
        'handle twice': (
            [host.request(handle=handle), host.request(handle=handle)],
            'test/one',
        ),
        'handle unset': (
            [host.request(handle=objects.PCIHandle())],
            'address',
        ),
        'not bound': ([host.request(state='BindFailed')], 'BindFailed'),
        'not mine': (
            [host.request(instance_uuid=request.uuid)],
            'instance_uuid',
        ),
        'no driver': ([host.request(driver='nix')], 'nix'),
    }


@pytest.mark.parametrize(
    'case',
    [
        'empty',
        'none',
        'text',
        'dict',
        'raw ARQ',
        'no uuid',
        'twice',
        'handle twice',
        'handle unset',
        'not bound',
        'not mine',
        'no driver',
    ],
)
def test_bad_requests_are_refused_before_anything(host, case):
    requests, text = bad_calls(host)[case]
    expected = (
        exception.NoMatchingDriver
        if case == 'no driver'
        else exception.InvalidRequest
    )
    with pytest.raises(expected) as caught:
        os_acc.plug(host.instance(), requests)
    assert text in str(caught.value)
    assert host.calls.log == []
    assert host.states() == {}


def test_not_bound_has_its_own_error(host):
    with pytest.raises(exception.ARQNotBound):
        os_acc.plug(host.instance(), [host.request(state='Unbound')])


@pytest.mark.parametrize(
    'instance', [None, 'uuid', objects.InstanceInfo(name='x', project_id='y')]
)
def test_bad_instance_is_refused(host, instance):
    with pytest.raises(exception.InvalidRequest):
        os_acc.plug(instance, host.requests(1))
    with pytest.raises(exception.InvalidRequest):
        os_acc.unplug(instance)


def test_an_instance_needs_only_its_uuid(host):
    instance = objects.InstanceInfo(uuid=uuid.uuid4())
    os_acc.plug(instance, host.requests(1))
    host.restart()
    assert len(os_acc.get_vans(instance)) == 1
    assert os_acc.unplug(instance) == 1


def test_a_missing_plugin_is_said(host):
    os_acc.CONF.set_override('plugin', 'nix', 'os_acc')
    host.errors['plugin nix'] = 'ImportError: no nix'
    with pytest.raises(exception.NoMatchingPlugin) as caught:
        os_acc.plug(host.instance(), host.requests(1))
    assert 'no nix' in str(caught.value)


def test_live_is_passed_on(host):
    instance, requests = host.instance(), host.requests(1)
    (van,) = os_acc.plug(instance, requests, live=True)
    assert van.guest_config.endswith('live=True>')


def test_live_without_support_is_refused_before_anything(host):
    host.plugin.supports_live = False
    instance, requests = host.instance(), host.requests(1)
    with pytest.raises(exception.LiveNotSupported):
        os_acc.plug(instance, requests, live=True)
    assert host.calls.log == []
    os_acc.plug(instance, requests)
    host.calls.clear()
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance, live=True)
    assert isinstance(caught.value.__cause__, exception.LiveNotSupported)
    assert host.calls.log == []
    assert host.states() == {requests[0].uuid: 'plugged'}


def test_progress_tells_each_step(host):
    seen = []
    instance, requests = host.instance(), host.requests(2)
    host.calls.on(
        'prepareVAN', lambda van: van.report_progress(0.5, 'half way')
    )
    os_acc.plug(instance, requests, progress=seen.append)
    for request in requests:
        mine = [e for e in seen if e.van_uuid == request.uuid]
        assert [(e.step, e.status) for e in mine] == [
            ('prepareVAN', 'started'),
            ('prepareVAN', 'running'),
            ('prepareVAN', 'done'),
            ('plug', 'started'),
            ('plug', 'done'),
            ('postplug', 'started'),
            ('postplug', 'done'),
        ]
        assert (mine[1].fraction, mine[1].message) == (0.5, 'half way')
        assert {e.instance_uuid for e in mine} == {instance.uuid}
    seen.clear()
    os_acc.unplug(instance, progress=seen.append)
    assert [e.step for e in seen if e.status == 'done'] == [
        'unplug',
        'unplug',
        'unprepareVAN',
        'unprepareVAN',
    ]


def test_progress_tells_the_failure_and_its_undo(host):
    seen = []
    host.calls.on('plug', RuntimeError('boom'))
    with pytest.raises(exception.PlugException):
        os_acc.plug(host.instance(), host.requests(1), progress=seen.append)
    assert [(e.step, e.status) for e in seen[2:]] == [
        ('plug', 'started'),
        ('plug', 'failed'),
        ('unplug', 'started'),
        ('unplug', 'done'),
        ('unprepareVAN', 'started'),
        ('unprepareVAN', 'done'),
    ]
    assert 'boom' in seen[3].message


def test_a_failing_progress_callback_changes_nothing(host, caplog):
    def callback(event):
        raise RuntimeError('no screen')

    vans = os_acc.plug(host.instance(), host.requests(2), progress=callback)
    assert len(vans) == 2
    assert 'no screen' in caplog.text


def test_log_lines_have_the_ids(host, caplog):
    caplog.set_level('DEBUG')
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    ids = f'[instance: {instance.uuid}] [van: {requests[0].uuid}]'
    lines = [r.getMessage() for r in caplog.records if ids in r.getMessage()]
    for step in ('prepareVAN', 'plug', 'postplug', 'plugged'):
        assert any(step in line for line in lines)


def test_the_returned_vans_are_copies(host):
    instance = host.instance()
    (van,) = os_acc.plug(instance, host.requests(1))
    with pytest.raises(exception.JournalError):
        van.save()


def test_a_lock_that_is_held_too_long_is_a_timeout(host):
    os_acc.CONF.set_override('lock_timeout', 0.1, 'os_acc')
    host.restart()
    instance, requests = host.instance(), host.requests(1)
    holding, done = threading.Event(), threading.Event()

    def hold(van):
        holding.set()
        done.wait(120)

    host.calls.on('plug', hold)
    thread = threading.Thread(target=os_acc.plug, args=(instance, requests))
    thread.start()
    assert holding.wait(120)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, requests)
    done.set()
    thread.join()
    assert isinstance(caught.value.__cause__, exception.Timeout)
    assert instance.uuid in str(caught.value.__cause__)


@pytest.mark.parametrize('broken', ['mark', 'settle'])
def test_a_journal_that_fails_in_the_undo_is_told(host, monkeypatch, broken):
    """The devices are released also if the journal cannot be written."""
    instance, requests = host.instance(), host.requests(2)
    host.calls.on('postplug', RuntimeError('boom'))
    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, broken, fail)
        with pytest.raises(exception.PlugException) as caught:
            os_acc.plug(instance, requests)
    if broken == 'settle':
        (undo,) = caught.value.undo_errors
        assert isinstance(undo, exception.JournalError)
    else:
        assert caught.value.undo_errors == []
        assert host.states() == {}
    assert set(host.calls.of('unprepareVAN')) == set(uuids(requests))
    os_acc.recover()
    assert host.states() == {}


@pytest.mark.parametrize('when', ['add', 'save_all'])
def test_a_journal_that_fails_in_the_plug_undoes_it(host, monkeypatch, when):
    instance, requests = host.instance(), host.requests(2)
    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, when, fail)
        with pytest.raises(exception.PlugException) as caught:
            os_acc.plug(instance, requests)
    assert isinstance(caught.value.__cause__, exception.JournalError)
    assert host.calls.of('plug') == []
    assert host.states() == {}


def test_an_interrupt_of_the_first_write_is_undone(host, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(LostCommit, 'wanted', lambda self, entries: True)
        LostCommit(patch, 'add', KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            os_acc.plug(host.instance(), host.requests(2))
    assert host.calls.log == []
    assert host.states() == {}


@pytest.mark.parametrize('readable', [True, False])
def test_a_journal_that_fails_from_the_last_write_on(
    host, monkeypatch, readable, caplog
):
    """Devices are released only if the journal says they are not plugged."""
    instance, requests = host.instance(), host.requests(2)
    with monkeypatch.context() as patch:

        def break_down(van):
            for name in ('save_all', 'mark', 'settle'):
                patch.setattr(journal.Journal, name, fail)
            if not readable:
                patch.setattr(journal.Journal, 'vans', fail)

        host.calls.on('postplug', break_down)
        with pytest.raises(exception.PlugException):
            os_acc.plug(instance, requests)
    assert set(host.calls.of('unprepareVAN')) == set(
        uuids(requests) if readable else []
    )
    assert ('Cannot read the states' in caplog.text) == (not readable)
    assert set(host.states().values()) == {'plugging'}
    os_acc.recover()
    assert host.states() == {}


def test_any_error_of_the_journal_in_the_undo_is_told(host, monkeypatch):
    """An error that is not os-acc's own is raised as a JournalError."""
    host.calls.on('postplug', RuntimeError('boom'))

    def fail(self, *args, **kwargs):
        raise ValueError('no such codec')

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, 'settle', fail)
        with pytest.raises(exception.PlugException) as caught:
            os_acc.plug(host.instance(), host.requests(1))
    (undo,) = caught.value.undo_errors
    assert isinstance(undo, exception.JournalError)
    assert isinstance(undo.__cause__, ValueError)
    assert 'no such codec' in str(undo)


def test_a_driver_that_sets_no_function_fails(host, monkeypatch):
    """A guest that asked for a function does not get a device without it."""
    monkeypatch.setattr(host.driver, 'programs', True)
    with pytest.raises(exception.PlugException, match='aes') as caught:
        os_acc.plug(host.instance(), [host.request(function_id='aes')])
    assert isinstance(caught.value.__cause__, exception.FunctionMissing)
    assert host.states() == {}


def test_a_driver_may_leave_the_device_unset(host, monkeypatch):
    def prepare(van, request, instance_info):
        van.handle = objects.TestHandle(name='mine')
        van.save()

    monkeypatch.setattr(host.driver, 'prepareVAN', prepare)
    (van,) = os_acc.plug(host.instance(), host.requests(1))
    assert (van.device, van.state) == (None, 'plugged')


def test_plug_needs_initialize(clean):
    for call in (
        lambda: os_acc.plug(None, []),
        lambda: os_acc.unplug(None),
        lambda: os_acc.get_vans(),
        lambda: os_acc.get_devices(),
        lambda: os_acc.host_info(),
        lambda: os_acc.recover(),
    ):
        with pytest.raises(exception.LibraryNotInitialized):
            call()


class LostCommit:
    """A commit that is durable, and whose caller is told that it failed."""

    def __init__(self, patch, method, error, then=()):
        real = getattr(journal.Journal, method)
        self.armed = True

        def lose(journal_, *args, **kwargs):
            real(journal_, *args, **kwargs)
            if self.armed and self.wanted(*args, **kwargs):
                self.armed = False
                for name in then:
                    patch.setattr(journal.Journal, name, fail)
                raise error

        patch.setattr(journal.Journal, method, lose)

    @staticmethod
    def wanted(vans, **kwargs):
        """The last one of a plug."""
        return {van.state for van in vans} == {'plugged'}


@pytest.mark.parametrize(
    'error',
    [
        exception.JournalError(path='j', reason='I/O error'),
        KeyboardInterrupt(),
    ],
)
def test_the_last_commit_is_lost_and_the_journal_with_it(
    host, monkeypatch, error
):
    """The row says "plugged": then the device must be there too."""
    instance, requests = host.instance(), host.requests(2)
    with monkeypatch.context() as patch:
        LostCommit(patch, 'save_all', error, ['mark', 'settle'])
        with pytest.raises((exception.PlugException, KeyboardInterrupt)):
            os_acc.plug(instance, requests)
    assert host.calls.of('unprepareVAN') == []
    assert host.calls.of('unplug') == []
    assert set(host.states().values()) == {'plugged'}
    host.calls.clear()
    assert uuids(os_acc.plug(instance, requests)) == uuids(requests)
    assert host.calls.log == []


def test_the_last_commit_is_lost_and_the_plug_is_undone(host, monkeypatch):
    instance, requests = host.instance(), host.requests(2)
    error = exception.JournalError(path='j', reason='I/O error')
    with monkeypatch.context() as patch:
        LostCommit(patch, 'save_all', error, ['settle'])
        with pytest.raises(exception.PlugException):
            os_acc.plug(instance, requests)
    assert len(host.calls.of('unprepareVAN')) == 2
    assert 'plugged' not in host.states().values()
    os_acc.recover()
    assert host.states() == {}


def test_the_first_commit_is_lost(host, monkeypatch):
    """The rows that it left are deleted, or the caller is told of them."""
    instance, requests = host.instance(), host.requests(2)
    error = exception.JournalError(path='j', reason='I/O error')
    monkeypatch.setattr(LostCommit, 'wanted', lambda self, entries: True)
    with monkeypatch.context() as patch:
        LostCommit(patch, 'add', error)
        with pytest.raises(exception.PlugException) as caught:
            os_acc.plug(instance, requests)
    assert caught.value.undo_errors == []
    assert host.states() == {}
    with monkeypatch.context() as patch:
        LostCommit(patch, 'add', error, ['settle'])
        with pytest.raises(exception.PlugException) as caught:
            os_acc.plug(instance, requests)
    assert 'I/O error' in str(caught.value.undo_errors[0])
    assert set(host.states()) == set(uuids(requests))
    assert host.calls.log == []
    os_acc.recover()
    assert host.states() == {}


def test_an_arq_of_another_host_is_refused(host):
    os_acc.CONF.set_override('host', 'node-1', 'os_acc')
    request = host.request(hostname='node-2')
    with pytest.raises(exception.InvalidRequest) as caught:
        os_acc.plug(host.instance(), [request])
    assert "'node-1'" in str(caught.value)
    assert "'node-2'" in str(caught.value)
    assert request.uuid in str(caught.value)
    assert host.calls.log == []
    os_acc.plug(host.instance(), [host.request(hostname='node-1')])


def test_the_host_is_named_as_nova_names_it(host):
    own = host.request(hostname=socket.gethostname())
    assert len(os_acc.plug(host.instance(), [own])) == 1


def test_a_rollback_leaves_the_row_of_another_instance_alone(
    host, monkeypatch
):
    owner, other, request = host.instance(), host.instance(), host.request()
    os_acc.plug(owner, [request])
    host.calls.clear()

    def busy(self, entries):
        raise exception.JournalError(path='j', reason='busy')

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, 'add', busy)
        with pytest.raises(exception.PlugException):
            os_acc.plug(other, [request])
    os_acc.recover()
    assert host.states() == {request.uuid: 'plugged'}
    assert host.calls.log == []


@pytest.mark.parametrize(
    'error', [OSError('I/O error'), exception.DeviceBusy('x'), SystemExit(1)]
)
def test_a_device_that_could_not_be_checked_is_left_alone(
    host, monkeypatch, error
):
    """Another VAN may have what excludes it, so nothing of it is undone."""

    def fail(self, van):
        raise error

    undone = []
    monkeypatch.setattr(exclusion.Exclusion, 'check', fail)
    host.calls.on(
        'unprepareVAN',
        lambda van: undone.append((van.handle, dict(van.driver_data))),
    )
    with pytest.raises(exception.PlugException):
        os_acc.plug(host.instance(), host.requests(1))
    assert host.calls.of('prepareVAN') == []
    assert undone == [(None, {})]
    assert host.states() == {}
