# SPDX-License-Identifier: Apache-2.0

"""The rule of programming, on fake devices and with a real command.

The hardware counts how often a device was really programmed.
"""

from __future__ import annotations

from concurrent import futures
import contextvars
import logging
import time
import uuid

import hypothesis
from hypothesis import strategies
import previews
import pytest
from stevedore import extension
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc import programming
from os_acc.kernel import sysfs
from os_acc.kinds.fake.driver import hardware as fake_hardware
from os_acc.programming import hooks as hooks_module

SINGLE, DYNAMIC = 'single', 'dynamic'


def make_instance():
    return objects.InstanceInfo(
        uuid=str(uuid.uuid4()), name='guest', project_id='project'
    )


class Rig:
    """One device with three handles."""

    address: str
    driver: str

    def request(self, function=None, **values):
        return objects.AcceleratorRequest(
            uuid=str(uuid.uuid4()),
            driver=self.driver,
            resource_class=self.resource_class,
            function_id=function,
            bitstream=self.bitstream(function),
            **values,
        )

    def plug(self, *functions):
        """Plug for a new instance.

        :returns: the instance
        """
        made = make_instance()
        os_acc.plug(made, [self.request(each) for each in functions])
        return made

    def fails(self, *functions):
        """:returns: the error that plug fails with"""
        with pytest.raises(exception.PlugException) as caught:
            self.plug(*functions)
        assert caught.value.undo_errors == []
        return caught.value.__cause__

    def at_once(self, *functions):
        """Plug each function for a new instance, all at the same time.

        :returns: for each function the instance, or the error
        """

        def one(function):
            try:
                return self.plug(function)
            except exception.PlugException as err:
                assert err.undo_errors == []
                return err.__cause__

        with futures.ThreadPoolExecutor(len(functions)) as pool:
            return list(pool.map(one, functions))

    def program(self, function, **kwargs):
        return os_acc.program_device(
            self.address, self.bitstream(function), function, **kwargs
        )

    def free(self):
        """What os-acc device free does, after the operator's check."""
        assert health.free(os_acc._get().journal, self.address)

    def records(self):
        journal = os_acc._get().journal
        return {
            each.region: (each.state, each.function_id)
            for each in journal.programs(self.address)
        }


class FakeRig(Rig):
    address, driver, resource_class = 'fpga', 'fake', 'CUSTOM_FAKE_PCI'

    def __init__(self, kind, tmp_path):
        self.hardware = fake_hardware.Hardware(str(tmp_path / 'hardware'))
        (tmp_path / 'hardware').mkdir()
        self.set('devices', [f'fpga:pci:3:{kind}'])
        self.set('hardware_path', self.hardware.path)
        self.set('discover', True)

    @staticmethod
    def set(name, value):
        os_acc.CONF.set_override(name, value, 'os_acc_fake')

    def bitstream(self, function):
        return None

    def count(self):
        names = ['fpga', 'fpga.0', 'fpga.1', 'fpga.2']
        return sum(self.hardware.times(name) for name in names)

    def inside(self, region=''):
        return self.hardware.function_of(f'fpga.{region}'.rstrip('.'))

    def slow(self):
        self.set('delays', {'program': '0.2'})

    def broken(self, fails):
        self.set('fail', ['program'] if fails else [])


class CommandRig(Rig):
    address, driver, resource_class = vendor_module.FPGA, 'fpga', 'FPGA'

    def __init__(self, kind, tmp_path, kernel):
        vendor_module.furnish(kernel)
        self.tool = vendor_module.Vendor(tmp_path / 'vendor')
        self.tool.configure(kind)

    def bitstream(self, function):
        return self.tool.bitstream(function) if function else None

    def count(self):
        return len(self.tool.calls())

    def inside(self, region=''):
        return self.tool.function(region)

    def slow(self):
        self.tool.mode('slow')

    def broken(self, fails):
        self.tool.mode('fail' if fails else 'ok')


@pytest.fixture(params=['fake', 'command'])
def make(request, tmp_path, kernel):
    from os_acc.kinds.fake.driver.driver import FakeDriver

    FakeDriver.load('fake')

    def made(kind):
        rig = (
            FakeRig(kind, tmp_path)
            if request.param == 'fake'
            else CommandRig(kind, tmp_path, kernel)
        )
        os_acc.initialize()
        return rig

    return made


@pytest.fixture(params=['single', 'dynamic'])
def fake_rig(request, tmp_path, kernel):
    from os_acc.kinds.fake.driver.driver import FakeDriver

    FakeDriver.load('fake')
    made = FakeRig(request.param, tmp_path)
    os_acc.initialize()
    return made


@pytest.fixture(params=[SINGLE, DYNAMIC])
def kind(request):
    return request.param


@pytest.fixture
def rig(make, kind):
    return make(kind)


@pytest.fixture
def single(make):
    return make(SINGLE)


@pytest.fixture
def dynamic(make):
    return make(DYNAMIC)


# --- single or dynamic x same or other x free or in use x how many


def test_the_first_user_has_it_programmed(rig, kind):
    instance = rig.plug('aes')
    assert rig.count() == 1
    region = '' if kind == SINGLE else '0'
    assert rig.inside(region) == 'aes'
    assert rig.records() == {region: ('programmed', 'aes')}
    (van,) = os_acc.get_vans(instance)
    assert van.function_id == 'aes'


def test_same_function_free(rig):
    os_acc.unplug(rig.plug('aes'))
    rig.plug('aes')
    assert rig.count() == 1


def test_same_function_in_use_by_another(rig, kind):
    rig.plug('aes')
    rig.plug('aes')
    assert rig.count() == (1 if kind == SINGLE else 2)


def test_same_function_twice_for_one(rig, kind):
    rig.plug('aes', 'aes')
    assert rig.count() == (1 if kind == SINGLE else 2)


def test_same_function_at_once(rig, kind):
    rig.slow()
    found = rig.at_once('aes', 'aes', 'aes')
    assert all(isinstance(each, objects.InstanceInfo) for each in found)
    assert rig.count() == (1 if kind == SINGLE else 3)


def test_other_function_free(rig):
    os_acc.unplug(rig.plug('aes'))
    rig.plug('sha')
    assert rig.count() == 2


def test_other_function_in_use_of_a_single_device(single):
    holders = [single.plug('aes') for _ in range(2)]
    reason = single.fails('sha')
    assert isinstance(reason, exception.DeviceBusy)
    for holder in holders:
        assert f'instance {holder.uuid}' in str(reason)
    assert (single.count(), single.inside()) == (1, 'aes')
    for holder in holders:
        os_acc.unplug(holder)
    single.plug('sha')
    assert (single.count(), single.inside()) == (2, 'sha')


def test_other_function_in_use_of_a_dynamic_device(dynamic):
    dynamic.plug('aes')
    dynamic.plug('sha')
    assert [dynamic.inside(r) for r in '012'] == ['aes', 'sha', None]
    assert dynamic.count() == 2


def test_two_functions_for_one_on_a_single_device(single):
    reason = single.fails('aes', 'sha')
    assert isinstance(reason, exception.DeviceBusy)
    assert list(os_acc.get_vans()) == []
    assert single.count() == 1


def test_two_functions_for_one_on_a_dynamic_device(dynamic):
    """Each gets a region. A region may be busy when the second one asks."""
    dynamic.plug('aes', 'sha')
    inside = [dynamic.inside(region) for region in '012']
    assert sorted(filter(None, inside)) == ['aes', 'sha']
    assert dynamic.count() == 2


def test_other_functions_at_once_on_a_single_device(single):
    single.slow()
    found = single.at_once('aes', 'sha', 'fft')
    (winner,) = (f for f in found if isinstance(f, objects.InstanceInfo))
    losers = [f for f in found if f is not winner]
    assert {type(each) for each in losers} == {exception.DeviceBusy}
    for each in losers:
        assert f'instance {winner.uuid}' in str(each)
    assert single.count() == 1


def test_other_functions_at_once_on_a_dynamic_device(dynamic):
    dynamic.slow()
    found = dynamic.at_once('aes', 'sha')
    assert all(isinstance(each, objects.InstanceInfo) for each in found)
    assert dynamic.count() == 2
    assert sorted(each or '' for each in map(dynamic.inside, '012')) == [
        '',
        'aes',
        'sha',
    ]


def test_a_request_without_a_function_shares_and_occupies_the_device(single):
    single.program('aes')
    instance = single.plug(None)
    assert [van.function_id for van in os_acc.get_vans()] == ['aes']
    assert isinstance(single.fails('sha'), exception.DeviceBusy)
    single.plug('aes')
    assert single.count() == 1
    os_acc.unplug(instance)


# --- a preview asks the same rule


_STEPS = strategies.lists(
    strategies.lists(
        strategies.sampled_from(['aes', 'sha', None]), min_size=1, max_size=4
    )
    | strategies.integers(0, 3),
    min_size=2,
    max_size=7,
)


@hypothesis.settings(
    max_examples=10,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(steps=_STEPS)
@hypothesis.example(steps=[['aes'], ['sha']])
@hypothesis.example(steps=[['aes', 'sha']])
@hypothesis.example(steps=[[None, 'aes']])
@hypothesis.example(steps=[['aes', 'aes', 'aes'], ['aes'], 0, ['sha']])
def test_a_preview_fails_where_the_plug_does(fake_rig, tmp_path, steps):
    """Plugs of some functions at once, and unplugs of the nth instance."""
    there = []
    for step in steps:
        if isinstance(step, int):
            if step < len(there):
                os_acc.unplug(there.pop(step))
            continue
        # Of one plug, the requests are served in any order: one without a
        # function may come before or after the one that programs the device.
        named = next(filter(None, step), None)
        step = [each or named for each in step]
        requests = [fake_rig.request(each) for each in step]
        made = previews.agrees(tmp_path, requests)
        there += [made] * (made is not None)
    for each in there:
        os_acc.unplug(each)


def test_a_preview_of_a_function(rig, kind, tmp_path):
    assert previews.agrees(tmp_path, [rig.request('aes')])
    other = previews.agrees(tmp_path, [rig.request('sha')])
    assert bool(other) == (kind == DYNAMIC)
    assert previews.agrees(tmp_path, [rig.request(None)])


def test_a_preview_of_a_broken_slot(single, tmp_path):
    single.broken(True)
    single.fails('aes')
    single.broken(False)
    assert previews.agrees(tmp_path, [single.request('aes')]) is None
    single.free()
    assert previews.agrees(tmp_path, [single.request(None)]) is None
    assert previews.agrees(tmp_path, [single.request('aes')])


# --- the administrator


def test_program_ahead_of_use(single):
    assert single.program('aes') is True
    assert single.program('aes') is False
    single.plug('aes')
    assert single.program('aes') is False
    with pytest.raises(exception.DeviceBusy, match='instance'):
        single.program('sha')
    assert single.count() == 1


def test_program_a_region_ahead_of_use(dynamic):
    assert dynamic.program('sha', region='2') is True
    assert dynamic.program('sha', region='2') is False
    dynamic.plug('sha')
    assert dynamic.count() == 1
    with pytest.raises(exception.DeviceBusy):
        dynamic.program('aes', region='2')
    assert dynamic.program('aes', region='0') is True


def test_regions_that_do_not_exist(make):
    rig = make(SINGLE)
    with pytest.raises(exception.InvalidRequest, match='region'):
        rig.program('aes', region='0')
    assert rig.count() == 0


@pytest.mark.parametrize('region', [None, '3', 'x'])
def test_a_dynamic_device_is_not_programmed_as_a_whole(dynamic, region):
    with pytest.raises(exception.InvalidRequest, match='region'):
        dynamic.program('aes', region=region)
    assert dynamic.count() == 0


def test_arguments_are_checked(single):
    for address, bitstream, function, error in (
        ('nowhere', None, 'aes', exception.DeviceNotFound),
        ('../..', None, 'aes', exception.InvalidRequest),
        (single.address, None, None, exception.InvalidRequest),
        (single.address, None, '--force', exception.InvalidRequest),
        (single.address, 'ftp://x/y', 'aes', exception.InvalidRequest),
    ):
        with pytest.raises(error):
            os_acc.program_device(address, bitstream, function)
    assert single.count() == 0
    assert single.records() == {}


def test_progress_of_the_administrator(single):
    events = []
    single.program('aes', progress=events.append)
    assert {event.device for event in events} == {single.address}
    assert {event.step for event in events} == {'program_device'}
    assert (events[0].status, events[-1].status) == ('started', 'done')
    assert 'programming' in [event.message for event in events]
    events.clear()
    single.broken(True)
    with pytest.raises(Exception, match=r'fail|board'):
        single.program('sha', progress=events.append)
    assert events[-1].status == 'failed'


# --- failures


def test_a_device_whose_programming_failed(single):
    single.broken(True)
    assert 'busy' not in str(single.fails('aes'))
    ((state, function),) = single.records().values()
    assert (state, function) == ('error', 'aes')
    # Nobody gets it, whatever is wanted, until an operator has freed it.
    single.broken(False)
    before = single.count()
    for wanted in ('aes', 'sha', None):
        reason = single.fails(wanted)
        assert 'its programming failed' in str(reason)
    assert single.count() == before
    single.free()
    # A request without a function fails.
    reason = single.fails(None)
    assert isinstance(reason, exception.DeviceError)
    assert 'Program it again' in str(reason)
    single.plug('aes')
    assert single.inside() == 'aes'
    single.plug(None)


def test_a_failure_leaves_the_other_regions_alone(dynamic):
    dynamic.plug('aes')
    dynamic.broken(True)
    dynamic.fails('sha')
    dynamic.broken(False)
    assert dynamic.records() == {
        '0': ('programmed', 'aes'),
        '1': ('error', 'sha'),
    }
    # No region is given out, until an operator has freed the device.
    assert 'its programming failed' in str(dynamic.fails('aes'))
    dynamic.free()
    # A region that is not in error is preferred.
    instance = dynamic.plug(None)
    (van,) = os_acc.get_vans(instance)
    assert van.driver_data['region'] == '2'


def test_after_a_reboot_it_is_programmed_again(single, monkeypatch):
    for _ in range(2):
        single.plug('aes')
    monkeypatch.setattr(sysfs, 'boot_id', lambda: 'another')
    if isinstance(single, FakeRig):
        single.hardware.program('fpga', 'factory')  # counts
    report = os_acc.recover()
    assert len(report.restored) == 2, [v.error for v in report.failed]
    assert single.inside() == 'aes'
    assert single.count() == (3 if isinstance(single, FakeRig) else 2)


@pytest.mark.parametrize('by_plug', [False, True])
def test_a_van_without_a_function_shares_after_a_reboot(
    single, monkeypatch, by_plug
):
    """The VAN without a function is restored first and must not block the
    function of the other one.
    """
    single.program('aes')
    first, wanted = make_instance(), single.request(None)
    os_acc.plug(first, [wanted])
    single.plug('aes')
    monkeypatch.setattr(sysfs, 'boot_id', lambda: 'another')
    if isinstance(single, FakeRig):
        single.hardware.program('fpga', 'factory')  # counts
    if by_plug:
        os_acc.plug(first, [wanted])
    os_acc.recover()
    assert [van.error for van in os_acc.get_vans()] == [None, None]
    assert [van.function_id for van in os_acc.get_vans()] == ['aes', 'aes']
    assert single.inside() == 'aes'
    assert single.count() == (3 if isinstance(single, FakeRig) else 2)


def test_a_van_without_a_function_alone_gets_none_after_a_reboot(
    single, monkeypatch
):
    single.program('aes')
    single.plug(None)
    monkeypatch.setattr(sysfs, 'boot_id', lambda: 'another')
    report = os_acc.recover()
    assert [van.error for van in report.failed] == []
    assert single.count() == 1


def test_interrupted_in_another_process(single):
    """The journal as a killed process leaves it; see tests/functional."""
    single.program('aes')
    journal = os_acc._get().journal
    (record,) = journal.programs(single.address)
    journal.save_program(
        type(record)(**{**vars(record), 'state': 'programming'})
    )
    assert isinstance(single.fails(None), exception.DeviceError)
    driver = os_acc._get().extensions.drivers[single.driver]
    # Another process is programming it: recover() leaves it alone.
    with driver.lock(programming.Slot(driver, single.address).lock_name):
        os_acc.recover()
        assert single.records() == {'': ('programming', 'aes')}
    os_acc.recover()
    assert single.records() == {'': ('error', 'aes')}
    single.plug('aes')
    assert single.count() == 2


# --- show_device


def test_show(single):
    driver = os_acc._get().extensions.drivers[single.driver]
    assert driver.show_device('elsewhere') is None
    shown = driver.show_device(single.address)
    assert (shown['programming'], shown['function']) == ('single', None)
    assert shown['can be programmed now'] == 'yes'
    instance = single.plug('aes')
    shown = driver.show_device(single.address)
    assert shown['function'] == 'aes'
    assert shown['can be programmed now'] == 'no: it is in use'
    (user,) = shown['users']
    assert instance.uuid in user and 'with aes' in user
    (device,) = (
        d for d in os_acc.get_devices() if d.address == single.address
    )
    assert (device.function_id, device.programming) == ('aes', 'single')


def test_show_regions(dynamic):
    driver = os_acc._get().extensions.drivers[dynamic.driver]
    instance = dynamic.plug('aes')
    shown = driver.show_device(dynamic.address)
    assert len(shown['regions']) == 3
    assert 'function aes' in shown['regions'][0]
    assert instance.uuid in shown['regions'][0]
    assert 'can be programmed now yes' in shown['regions'][1]


# --- hooks


class Hook:
    name = 'hook'

    def __init__(self, do):
        self.load = lambda: do


@pytest.fixture
def hooks(monkeypatch):
    found = []
    cache = extension.ExtensionManager.ENTRY_POINT_CACHE
    monkeypatch.setitem(cache, hooks_module.GROUP, found)
    return found


def test_a_hook_is_called(single, hooks):
    told = []
    hooks.append(Hook(told.append))
    single.program('aes')
    single.program('aes')
    single.plug('aes')
    (event,) = told
    assert len(event.handles) > 2
    assert event == hooks_module.ProgrammedEvent(
        device=single.address,
        driver=single.driver,
        chip_serial=None,
        region='',
        function_id='aes',
        state='programmed',
        handles=event.handles,
    )


def test_a_hook_runs_in_the_context_of_its_caller(single, hooks):
    """So its calls of os_acc are for the host that a test has selected."""
    variable, told = contextvars.ContextVar('variable', default=None), []
    hooks.append(Hook(lambda *args: told.append(variable.get())))
    variable.set('selected')
    single.program('aes')
    assert told == ['selected']


def test_a_hook_that_fails_changes_nothing(single, hooks, caplog):
    caplog.set_level(logging.ERROR)
    os_acc.CONF.set_override('hook_timeout', 0.2, 'os_acc')
    told = []

    def fail(event):
        raise RuntimeError('no conductor')

    hooks += [
        Hook(fail),
        Hook(lambda *args: time.sleep(2)),
        Hook(told.append),
    ]
    assert single.program('aes') is True
    assert [event.function_id for event in told] == ['aes']
    assert 'no conductor' in caplog.text
    assert "Waited 0.2 s for hook 'hook'" in caplog.text
    assert single.records() == {'': ('programmed', 'aes')}


def test_a_hook_is_called_after_a_failure(rig, kind, hooks):
    told = []
    hooks.append(Hook(told.append))
    region = '1' if kind == DYNAMIC else None
    rig.broken(True)
    with pytest.raises((exception.DeviceError, RuntimeError)) as caught:
        rig.program('aes', region=region)
    (event,) = told
    assert (event.device, event.state) == (rig.address, 'error')
    assert (event.region, event.function_id) == (region or '', None)
    assert event.reason == exception.describe(caught.value)
    rig.broken(False)
    rig.program('aes', region=region)
    assert [each.state for each in told] == ['error', 'programmed']
