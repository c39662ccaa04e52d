# SPDX-License-Identifier: Apache-2.0

"""Pools: functions that are programmed before they are requested."""

from __future__ import annotations

import datetime
import os
import random
import sqlite3
import threading
import uuid

import pool_model
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc import progress
from os_acc.desired import documents
from os_acc.desired import pools
from os_acc.desired import regions
from os_acc.journal import demand
from os_acc.journal import events
from os_acc.kinds.fake.driver import driver as fake_driver
from os_acc.kinds.fake.driver import hardware as fake_hardware
from os_acc.operations import discovery

CLASS = 'CUSTOM_FAKE_PCI'


class Host:
    """Fake FPGAs, and a clock that a test can put forward."""

    def __init__(self, directory, regions=4):
        fake_driver.FakeDriver.load('fake')
        self.hardware = fake_hardware.Hardware(str(directory / 'hardware'))
        self.regions = [f'fpga.{number}' for number in range(regions)]
        self.passed = datetime.timedelta()
        for name, value in {
            'devices': [f'fpga:pci:{regions}:dynamic'],
            'hardware_path': self.hardware.path,
            'discover': True,
        }.items():
            os_acc.CONF.set_override(name, value, 'os_acc_fake')
        os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
        os_acc.initialize(reset=True)

    @property
    def now(self):
        return datetime.datetime.now(datetime.UTC) + self.passed

    def wait(self, seconds=regions.REST + 1):
        self.passed += datetime.timedelta(seconds=seconds)

    def apply(self, *found, **others):
        return os_acc.apply({'version': 1, 'pools': [*found], **others})

    def keep(self):
        report = pools.keep(os_acc._host, now=self.now)
        return [(each.name, each.after, each.result) for each in report.steps]

    def inside(self):
        return [self.hardware.function_of(r) or '' for r in self.regions]

    def hold(self, *functions):
        """Let the regions hold functions, as if for a long time."""
        for region, function in zip(self.regions, functions, strict=True):
            self.hardware.program(region, function)

    def states(self):
        return [
            (each.wanted, each.free, len(each.held))
            for each in pools.states(os_acc._host, self.now)
        ]


@pytest.fixture
def host(kernel, tmp_path):
    return Host(tmp_path)


def plug(*functions):
    instance = objects.InstanceInfo(uuid=str(uuid.uuid4()), name='guest')
    requests = [
        objects.AcceleratorRequest(
            uuid=str(uuid.uuid4()), resource_class=CLASS, function_id=function
        )
        for function in functions
    ]
    os_acc.plug(instance, requests)
    return instance


def test_the_minimum_is_programmed(host):
    host.apply({'function': 'aes', 'min_free': 2, 'max': 3})
    assert host.states() == [(2, 0, 0)]
    assert host.keep() == [
        ('fpga 0', 'aes', 'changed'),
        ('fpga 1', 'aes', 'changed'),
    ]
    assert host.keep() == []
    plug('aes')
    assert host.keep() == [('fpga 2', 'aes', 'changed')]
    plug('aes')
    assert host.keep() == [], 'three regions hold it'
    assert host.states() == [(2, 1, 3)]


def test_a_pool_waits_until_all_devices_are_seen(host, monkeypatch, caplog):
    """The region that holds its function may be one that is not seen."""
    host.hold('aes', '', '', '')
    host.apply({'function': 'aes', 'max': 1})
    (device,) = os_acc.get_devices()
    device.functions = {'1': None, '2': None, '3': None}

    def fail(of):
        raise exception.DiscoveryFailed([device], errors='a driver')

    with monkeypatch.context() as patch:
        patch.setattr(discovery, 'devices', fail)
        assert host.keep() == []
    assert host.inside() == ['aes', '', '', '']
    assert 'Pools wait until all devices are seen' in caplog.text


def test_a_region_whose_lock_another_process_holds(host, monkeypatch):
    """Another region gets the function, and nothing counts as failed."""
    host.apply({'function': 'aes'})
    program = pools.device_programming.program_device

    def refuse(*args):
        monkeypatch.setattr(
            pools.device_programming, 'program_device', program
        )
        raise exception.LockTimeout(what='the lock of fpga', seconds=1)

    monkeypatch.setattr(pools.device_programming, 'program_device', refuse)
    assert host.keep() == [
        ('fpga 0', 'aes', 'in the way'),
        ('fpga 1', 'aes', 'changed'),
    ]


def test_a_pool_respects_what_is_reserved(host):
    """For another function or a project: not for the pool."""
    host.apply(
        {'function': 'aes', 'min_free': 4},
        reserved=[
            {'device': 'fpga', 'region': '0', 'function': 'sha'},
            {'device': 'fpga', 'region': '1', 'project': 'finance'},
            {'device': 'fpga', 'region': '2', 'ahead_of_time': True},
            {'device': 'fpga', 'region': '3', 'function': 'aes'},
        ],
    )
    assert {name for name, _, _ in host.keep()} == {'fpga 2', 'fpga 3'}
    assert host.states() == [(4, 2, 2)]


def test_initialize_programs_nothing(host):
    host.apply({'function': 'aes'})
    os_acc.initialize(reset=True)
    assert host.inside() == ['', '', '', '']
    assert os_acc.keep_pools().results() == {'changed'}


def test_what_it_takes_first(host):
    """An empty region, what no pool keeps, what another pool can spare."""
    host.hold('sha', 'old', '', 'sha')
    host.apply(
        {'function': 'sha', 'min_free': 1}, {'function': 'aes', 'min_free': 4}
    )
    assert [name for name, *_ in host.keep()] == ['fpga 2', 'fpga 1', 'fpga 0']
    assert host.keep() == []
    assert host.states() == [(1, 1, 1), (4, 3, 3)]


def test_what_it_leaves_alone(host):
    host.hold('old', '', '', '')
    host.apply(
        {'function': 'aes', 'min_free': 4},
        functions=[{'device': 'fpga', 'region': '1', 'function': 'fixed'}],
    )
    instance = plug('sha')
    assert host.inside() == ['old', 'fixed', 'sha', '']
    host.wait()
    assert {name for name, *_ in host.keep()} == {'fpga 0', 'fpga 3'}
    os_acc.unplug(instance)
    assert host.inside()[2] == 'sha'


def test_a_region_rests_after_a_programming(host):
    os_acc.program_device('fpga', None, 'sha', '0')
    host.apply({'function': 'aes', 'min_free': 4})
    assert len(host.keep()) == 3
    assert host.keep() == []
    host.wait()
    assert host.keep() == [('fpga 0', 'aes', 'changed')]


def test_a_limit_for_each_hour(host):
    host.apply({'function': 'aes', 'min_free': 4, 'per_hour': 2})
    assert len(host.keep()) == 2
    assert host.keep() == []
    host.wait(3601)
    assert len(host.keep()) == 2


@pytest.mark.parametrize(
    ('hours', 'yes', 'no'),
    [('22-6', [22, 23, 0, 5], [6, 12, 21]), ('8-18', [8, 17], [7, 18])],
)
def test_hours(hours, yes, no):
    pool = documents.Pool('aes', hours=hours)
    assert all(map(pool.is_open, yes))
    assert not any(map(pool.is_open, no))


def test_it_waits_for_its_hours(host):
    hour = host.now.astimezone().hour
    host.apply(
        {'function': 'aes', 'hours': f'{(hour + 2) % 24}-{(hour + 8) % 24}'}
    )
    assert host.keep() == []
    host.wait(4 * 3600)
    assert host.keep() == [('fpga 0', 'aes', 'changed')]


def test_only_what_serves_it(host):
    host.apply(
        {'function': 'aes', 'traits': ['CUSTOM_OTHER']},
        {'function': 'sha', 'resource_class': 'CUSTOM_OTHER'},
        {'function': 'fft', 'traits': ['CUSTOM_FAKE_DEVICE']},
    )
    assert host.keep() == [('fpga 0', 'fft', 'changed')]


def test_a_programming_that_fails(host):
    os_acc.CONF.set_override('fail', ['program'], 'os_acc_fake')
    host.apply({'function': 'aes'})
    (step,) = pools.keep(os_acc._host, now=host.now).steps
    assert step.result == 'failed'
    assert 'told to fail' in step.reason


def test_a_bitstream_that_is_wrong_spoils_two_devices_at_most(host):
    cards = ['card0', 'card1', 'card2', 'card3']
    os_acc.CONF.set_override(
        'devices', [f'{name}:pci:1:single' for name in cards], 'os_acc_fake'
    )
    os_acc.CONF.set_override('fail', ['program'], 'os_acc_fake')
    host.apply({'function': 'aes', 'min_free': 4})
    failed = []
    for _ in range(4):
        failed += [name for name, *_ in host.keep()]
        host.wait()
    assert failed == cards[:2]
    (state,) = pools.states(os_acc._host, host.now)
    assert (state.failed, state.acts) == (2, False)
    os_acc.CONF.clear_override('fail', 'os_acc_fake')
    for name in failed:
        os_acc.program_device(name, None, 'aes')
    assert [name for name, *_ in host.keep()] == cards[2:]


def test_a_pool_that_fails_does_not_stop_the_others(host):
    host.apply(
        {'function': 'aes', 'min_free': 2, 'bitstream': '/no/such/file'},
        {'function': 'sha', 'min_free': 2},
    )
    for _ in range(2):
        found = host.keep()
        assert [each for each in found if each[1] == 'aes'] == [
            ('fpga 0', 'aes', 'failed')
        ]
    assert host.inside().count('sha') == 2


def test_another_process_is_at_it(host):
    host.apply({'function': 'aes'})
    with os_acc._host.locks.document(0):
        assert host.keep() == []
    assert host.keep() != []


def test_a_document_that_changes_meanwhile(host):
    """What it puts into a region comes after the programming of the pool."""
    host.apply({'function': 'aes'})
    functions = [{'device': 'fpga', 'region': '0', 'function': 'fixed'}]
    errors = []

    def apply():
        try:
            host.apply(functions=functions)
        except exception.LockTimeout as err:
            errors.append(err)

    def change(told):
        if told.status == progress.STARTED:
            thread = threading.Thread(target=apply)
            thread.start()
            thread.join()

    os_acc._host.locks.timeout = 0
    os_acc.keep_pools(change)
    assert len(errors) == 1, 'the document waits for the programming'
    host.apply(functions=functions)
    assert host.inside()[0] == 'fixed'


def test_a_clock_that_was_wrong(host):
    """Times far in the future neither let regions rest nor reach a limit."""
    host.apply({'function': 'aes', 'min_free': 2, 'per_hour': 2})
    assert len(host.keep()) == 2
    host.wait(-400 * 24 * 3600)
    host.hold('', '', '', '')
    assert len(host.keep()) == 2


# --- demand


def test_a_demand_is_counted(host):
    plug(*['sha'] * 4)
    for _ in range(2):
        with pytest.raises(exception.PlugException):
            plug('aes')
    with pytest.raises(exception.PlugException):
        plug(None)
    found = os_acc._host.journal.demand()
    assert [
        (each.resource_class, each.traits, each.function_id, each.count)
        for each in found
    ] == [(CLASS, (), 'aes', 2), (CLASS, (), None, 1)]
    assert found[0].first_at < found[0].last_at < found[1].last_at
    told = [
        each
        for each in os_acc._host.journal.events()
        if each.operation == 'demand'
    ]
    assert [each.reason for each in told] == [
        f'{CLASS}, function aes',
        f'{CLASS}, function aes',
        CLASS,
    ]


def test_another_failure_is_no_demand(host):
    os_acc.CONF.set_override('fail', ['prepareVAN'], 'os_acc_fake')
    with pytest.raises(exception.PlugException):
        plug('aes')
    assert os_acc._host.journal.demand() == []


def test_the_kinds_of_demand_are_bounded(host, monkeypatch):
    monkeypatch.setattr('os_acc.journal.demand.MOST', 3)
    plug(*['sha'] * 4)
    for number in range(5):
        with pytest.raises(exception.PlugException):
            plug(f'f{number}')
    found = os_acc._host.journal.demand()
    assert [each.function_id for each in found] == ['f2', 'f3', 'f4']


def test_a_demand_that_cannot_be_written(host, monkeypatch, caplog):
    """The plug fails for its own reason."""

    def fail(*_):
        raise sqlite3.OperationalError('disk I/O error')

    plug(*['sha'] * 4)
    monkeypatch.setattr('os_acc.journal.demand.add', fail)
    with pytest.raises(exception.PlugException, match='no fake device'):
        plug('aes')
    assert 'A demand is not written' in caplog.text


def test_a_request_for_a_handle_is_no_demand(host):
    plug(*['sha'] * 4)
    (device,) = os_acc.get_devices()
    request = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), handle=device.handles[0].handle
    )
    with pytest.raises(exception.PlugException):
        os_acc.plug(objects.InstanceInfo(uuid=str(uuid.uuid4())), [request])
    assert os_acc._host.journal.demand() == []


def test_what_was_demanded_is_programmed(host):
    host.apply({'function': 'aes', 'on_demand': True})
    instance = plug(*['sha'] * 4)
    assert host.keep() == []
    with pytest.raises(exception.PlugException):
        plug('aes')
    assert host.keep() == [], 'all regions are in use'
    os_acc.unplug(instance)
    host.wait()
    assert host.keep() == [('fpga 0', 'aes', 'changed')]
    times = host.hardware.times('fpga.0')
    plug('aes')
    assert host.hardware.times('fpga.0') == times, 'it was ready'
    host.wait(pools.DEMAND_AGE)
    assert host.states() == [(0, 0, 1)]


def test_a_demand_of_another_resource_class(host):
    host.apply({'function': 'aes', 'on_demand': True, 'resource_class': CLASS})
    for name, wanted in (('CUSTOM_OTHER', 0), (None, 1)):
        found = demand.Demand(name, (), 'aes', 1, events.now(), events.now())
        os_acc._host.journal.note_demand([found], [])
        assert host.states() == [(wanted, 0, 0)]


# --- the document


@pytest.mark.parametrize(
    ('pool', 'expected'),
    [
        ({}, 'pools[0].function is None, expected a value'),
        ({'function': 'aes', 'minfree': 1}, "did you mean 'min_free'?"),
        ({'function': 'aes', 'min_free': -1}, 'pools[0].min_free is -1'),
        ({'function': 'aes', 'min_free': 3, 'max': 2}, 'at least min_free'),
        ({'function': 'aes', 'hours': '8-24'}, 'pools[0].hours'),
        ({'function': 'aes', 'after': 'burn'}, 'keep or clear'),
        ({'function': 'aes', 'traits': ['X' * 300]}, 'pools[0].traits'),
        ({'function': 'aes', 'bitstream': 'ftp://x'}, 'pools[0].bitstream'),
    ],
)
def test_a_pool_that_is_wrong(pool, expected):
    with pytest.raises(exception.InvalidRequest) as caught:
        documents.read({'version': 1, 'pools': [pool]})
    assert expected in str(caught.value)


def test_two_pools_of_one_function(tmp_path):
    path = tmp_path / 'host.yaml'
    path.write_text(
        'version: 1\npools:\n- {function: aes}\n- {function: AES}\n'
    )
    with pytest.raises(exception.InvalidRequest) as caught:
        documents.from_files(str(path))
    assert 'line 4' in str(caught.value)
    assert 'each function once' in str(caught.value)


def test_a_document_is_written_as_it_was_read():
    pool = {
        'function': 'aes',
        'resource_class': CLASS,
        'traits': ['CUSTOM_A'],
        'bitstream': '/srv/aes.bin',
        'min_free': 0,
        'max': 4,
        'on_demand': True,
        'hours': '22-6',
        'per_hour': 3,
        'after': 'clear',
    }
    document = {'version': 1, 'pools': [pool, {'function': 'sha'}]}
    written = documents.read(document).as_object()
    assert written['pools'] == document['pools']
    assert documents.read(written) == documents.read(document)


def test_apply_tells_pools_that_change(host):
    aes, sha = {'function': 'aes', 'min_free': 2}, {'function': 'sha'}
    told = [
        [(s.name, s.before, s.after, s.result) for s in host.apply(*p).steps]
        for p in ([aes], [aes, sha], [sha])
    ]
    assert told == [
        [('aes', 'no pool', '2 free', 'changed')],
        [
            ('aes', '2 free', '2 free', 'unchanged'),
            ('sha', 'no pool', '1 free', 'changed'),
        ],
        [
            ('aes', '2 free', 'no pool', 'changed'),
            ('sha', '1 free', '1 free', 'unchanged'),
        ],
    ]


def test_export_leaves_regions_to_the_pools(host):
    from os_acc.desired import export

    fixed = {'device': 'fpga', 'region': '3', 'function': 'aes'}
    host.apply({'function': 'aes'}, functions=[fixed])
    os_acc.program_device('fpga', None, 'sha', '1')
    host.keep()
    found = export.export(os_acc._host)
    assert found['pools'] == [{'function': 'aes'}]
    assert found['functions'] == [
        {'device': 'fpga', 'region': '1', 'function': 'sha'},
        fixed,
    ]
    assert documents.read(found)


# --- random loads


def test_the_choice_of_regions_under_a_random_load():
    """4,000 steps against the rules, in a model without a device."""
    model = pool_model.run(4000, random.randrange(2**32))
    assert model.seen['programmed'] > 50
    assert model.seen['killed']


def _killed(act, before):
    """Run a call in a process that is killed at its first programming.

    :param before: whether it is killed before the device is changed
    """
    pid = os.fork()
    if not pid:
        real = fake_hardware.Hardware.program

        def program(self, device, function):
            if not before:
                real(self, device, function)
            os._exit(9)

        fake_hardware.Hardware.program = program
        try:
            act()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_a_kill_in_a_programming_is_made_good(host):
    for before in (True, False):
        host.apply({'function': 'aes', 'min_free': 1})
        _killed(host.keep, before)
        os_acc.recover()
        host.wait()
        if host.states()[0][1] == 0:
            assert host.keep() == [('fpga 0', 'aes', 'changed')]
        assert host.inside()[0] == 'aes'
        assert host.states() == [(1, 1, 1)]
        host.hardware.program('fpga.0', '')


@pytest.mark.timeout(300)
def test_random_steps_with_fake_devices(host):
    """The same with os_acc's calls: plug, unplug, failure and kill."""
    drawn = random.Random(random.randrange(2**32))
    host.apply(
        {'function': 'aes', 'min_free': 2, 'max': 3, 'per_hour': 1000},
        {'function': 'sha', 'on_demand': True, 'after': 'clear'},
    )
    plugged = []
    for _ in range(int(os.environ.get('OS_ACC_POOL_STEPS', '60'))):
        act = drawn.choice(['plug', 'unplug', 'tick', 'tick', 'fail', 'kill'])
        if act == 'plug':
            try:
                plugged.append(plug(drawn.choice(['aes', 'sha', 'fft'])))
            except exception.PlugException:
                assert len(plugged) == 4 or _broken(host)
        elif act == 'unplug' and plugged:
            os_acc.unplug(plugged.pop(drawn.randrange(len(plugged))))
        elif act == 'tick':
            host.wait()
            _tick(host)
        elif act == 'fail':
            os_acc.CONF.set_override('fail', ['program'], 'os_acc_fake')
            host.wait()
            _tick(host, calm=False)
            os_acc.CONF.set_override('fail', [], 'os_acc_fake')
            _mend(host)
        elif act == 'kill':
            host.wait()
            _killed(host.keep, drawn.random() < 0.5)
            os_acc.recover()


def _used():
    return {
        van.handle.identity: van.driver_data['region']
        for van in os_acc.get_vans()
    }.values()


def _broken(host):
    return any(each.error for each in os_acc._host.journal.programs())


def _mend(host):
    """The administrator programs what has failed."""
    for each in os_acc._host.journal.programs():
        if each.state == 'error':
            os_acc.program_device('fpga', None, 'old', each.region)


def _tick(host, calm=True):
    """Keep the pools, and check what was programmed."""
    used = {f'fpga.{region}' for region in _used()}
    before = {r: host.hardware.times(r) for r in host.regions}
    inside = dict(zip(host.regions, host.inside(), strict=True))
    host.keep()
    changed = {r for r in host.regions if host.hardware.times(r) > before[r]}
    assert not changed & used, 'a region in use was programmed'
    if not calm:
        return
    aes = [r for r in host.regions if host.inside()[int(r[-1])] == 'aes']
    free = [r for r in aes if r not in used]
    idle = [r for r in host.regions if r not in used]
    # A pool takes nothing that the other one needs.
    _, (wanted, sha, _) = host.states()
    rest = len(idle) - min(wanted, sha)
    assert len(free) >= min(2, rest) or len(aes) >= 3, inside
    assert host.keep() == [], 'it flaps'
