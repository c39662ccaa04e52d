# SPDX-License-Identifier: Apache-2.0

"""The driver fake, through the calls of os_acc."""

import dataclasses
import json
import pathlib
import threading
import time
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import loader
from os_acc import objects
from os_acc.kinds.fake.driver import hardware as fake_hardware

DATA = pathlib.Path(__file__).parent.parent / 'data'


class Host:
    """os_acc with only the driver fake and the plugin noop."""

    def __init__(self, tmp_path, monkeypatch):
        load_all = loader.load_all

        def fake_only():
            loaded = load_all()
            return dataclasses.replace(
                loaded, drivers={'fake': loaded.drivers['fake']}
            )

        monkeypatch.setattr(loader, 'load_all', fake_only)
        self.path = tmp_path / 'hardware'
        self.hardware = fake_hardware.Hardware(str(self.path))
        os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
        os_acc.initialize()
        self.set('hardware_path', str(self.path))

    @staticmethod
    def set(option, value):
        os_acc.CONF.set_override(option, value, 'os_acc_fake')

    @staticmethod
    def instance():
        return objects.InstanceInfo(
            uuid=uuid.uuid4(), name='guest', project_id='project'
        )

    @staticmethod
    def request(**values):
        return objects.AcceleratorRequest(
            uuid=uuid.uuid4(), **{'driver': 'fake', **values}
        )

    def plug(self, count=1, instance=None, progress=None, **values):
        """Plug for a new instance, unless one is given.

        :returns: the instance and its VANs
        """
        instance = instance or self.instance()
        requests = [self.request(**values) for _ in range(count)]
        return instance, os_acc.plug(instance, requests, progress=progress)

    def fails(self, cause, **kwargs):
        """Check that plug fails and leaves nothing behind.

        :returns: the cause
        """
        vans, used = list(os_acc.get_vans()), self.in_use()
        with pytest.raises(exception.PlugException) as caught:
            self.plug(**kwargs)
        assert caught.value.undo_errors == []
        assert list(os_acc.get_vans()) == vans
        assert self.in_use() == used
        assert isinstance(caught.value.__cause__, cause)
        return caught.value.__cause__

    def in_use(self):
        return self.hardware.in_use() if self.path.exists() else {}

    def programmed(self, device):
        """How often a device was programmed."""
        path = self.path / f'device-{device}'
        return json.loads(path.read_text())['programmed']


@pytest.fixture
def fake(clean, tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


# --- which requests, which handles


def arqs(name):
    answer = json.loads((DATA / f'bound-arqs-{name}.json').read_text())
    requests = objects.AcceleratorRequest.from_arqs(answer['arqs'])
    # They are bound to the host on which they were recorded.
    os_acc.CONF.set_override('host', requests[0].hostname, 'os_acc')
    return requests, objects.InstanceInfo(
        uuid=requests[0].instance_uuid, name='guest', project_id='project'
    )


def test_an_arq_of_cyborgs_fake_driver_is_claimed(fake):
    requests, instance = arqs('fake')
    vans = os_acc.plug(instance, requests)
    assert [van.driver for van in vans] == ['fake', 'fake']
    assert [van.handle for van in vans] == [r.handle for r in requests]
    assert fake.in_use() == {
        van.handle.identity: {'van': van.uuid, 'instance': instance.uuid}
        for van in vans
    }
    assert os_acc.unplug(instance) == 2
    assert fake.in_use() == {}


def test_an_arq_of_a_real_device_is_not_claimed(fake):
    requests, instance = arqs('pci-mdev')
    for request in requests:
        with pytest.raises(exception.NoMatchingDriver) as caught:
            os_acc.plug(instance, [request])
        assert 'none of fake claims it' in str(caught.value)
    assert not fake.path.exists()


def test_an_arq_that_names_the_driver_is_taken(fake):
    requests, instance = arqs('pci-mdev')
    for request in requests:
        request.driver = 'fake'
    vans = os_acc.plug(instance, requests)
    assert [van.handle.identity for van in vans] == [
        'pci/0000:66:00.0',
        'mdev/21ceb89a-693d-421b-81d4-4e4e73b85c6d',
    ]
    assert sorted(fake.in_use()) == sorted(v.handle.identity for v in vans)


def test_arqs_with_a_function_and_without_are_different_devices(fake):
    requests, instance = arqs('pci-mdev')
    for request in requests:
        request.driver = 'fake'
    requests[0].function_id = 'aes'
    vans = os_acc.plug(instance, requests)
    assert [van.function_id for van in vans] == ['aes', None]
    assert [van.device for van in vans] == [
        'fake:pci:0000:66:00.0',
        'fake:mdev:21ceb89a-693d-421b-81d4-4e4e73b85c6d',
    ]


def test_a_selector_alone_is_not_claimed(fake):
    with pytest.raises(exception.NoMatchingDriver):
        fake.plug(driver=None, resource_class='CUSTOM_FAKE_TEST')


def test_a_selector_is_claimed_if_the_devices_are_reported(fake):
    fake.set('discover', True)
    _, (van,) = fake.plug(driver=None, resource_class='CUSTOM_FAKE_TEST')
    assert van.device == 'fake0'
    with pytest.raises(exception.NoMatchingDriver):
        fake.plug(driver=None, resource_class='CUSTOM_FAKE_PCI')


@pytest.mark.parametrize('kind', ['test', 'pci'])
def test_a_reported_handle_is_claimed_on_its_own_device(fake, kind):
    fake.set('devices', [f'card:{kind}:2:single'])
    fake.set('discover', True)
    (device,) = os_acc.get_devices()
    handle = device.handles[1].handle
    _, (van,) = fake.plug(driver=None, handle=handle, function_id='aes')
    assert (van.device, van.handle) == ('card', handle)
    (device,) = os_acc.get_devices()
    assert device.functions == {'': 'aes'}
    assert [each.state for each in device.handles] == ['free', 'used']


@pytest.mark.parametrize(
    ('kind', 'cls'),
    [
        ('test', objects.TestHandle),
        ('pci', objects.PCIHandle),
        ('mdev', objects.MdevHandle),
        ('drc', objects.DRCHandle),
    ],
)
def test_handles_of_each_type(fake, kind, cls):
    fake.set('devices', [f'dev0:{kind}:20'])
    instance, vans = fake.plug(20)
    assert {type(van.handle) for van in vans} == {cls}
    assert {van.device for van in vans} == {'dev0'}
    assert len({van.handle.identity for van in vans}) == 20
    assert set(fake.in_use()) == {van.handle.identity for van in vans}
    assert os_acc.unplug(instance) == 20
    assert fake.in_use() == {}
    # A new process gives out the same handles.
    os_acc.initialize(reset=True)
    _, again = fake.plug(20)
    assert {v.handle.identity for v in again} == {
        v.handle.identity for v in vans
    }


def test_no_two_devices_share_a_handle(fake):
    kinds = ('pci', 'mdev', 'drc', 'test')
    fake.set('devices', [f'{k}{n}:{k}:3' for k in kinds for n in range(2)])
    _, vans = fake.plug(24)
    assert len({van.handle.identity for van in vans}) == 24


def test_the_resource_class_chooses_the_device(fake):
    fake.set('devices', ['a:test:2', 'b:pci:2', 'c:mdev:2', 'd:pci:2'])
    _, (mdev,) = fake.plug(resource_class='CUSTOM_FAKE_MDEV')
    assert (mdev.device, mdev.handle.obj_name()) == ('c', 'MdevHandle')
    _, pci = fake.plug(4, resource_class='CUSTOM_FAKE_PCI')
    assert sorted(van.device for van in pci) == ['b', 'b', 'd', 'd']
    _, (any_one,) = fake.plug()
    assert any_one.device == 'a'


def test_a_function_needs_a_device_that_can_be_programmed(fake):
    fake.set('devices', ['plain:pci:4', 'fpga:pci:1:single'])
    _, (van,) = fake.plug(function_id='aes')
    assert (van.device, van.function_id) == ('fpga', 'aes')
    # A request without a function goes to any device with a free handle.
    _, (other,) = fake.plug()
    assert (other.device, other.function_id) == ('plain', None)


def test_no_handle_is_left(fake):
    fake.set('devices', ['a:test:2', 'b:pci:1'])
    fake.plug(3)
    reason = fake.fails(exception.DeviceNotFound)
    assert 'no fake device has a free handle' in str(reason)


def test_no_handle_is_left_of_a_resource_class(fake):
    fake.set('devices', ['a:test:2', 'b:pci:1'])
    kwargs = {'resource_class': 'CUSTOM_FAKE_PCI'}
    # The first of the two handles is released again.
    fake.fails(exception.DeviceNotFound, count=2, **kwargs)
    instance, _ = fake.plug(**kwargs)
    fake.fails(exception.DeviceNotFound, **kwargs)
    os_acc.unplug(instance)
    fake.plug(**kwargs)


def test_no_device_is_of_a_resource_class(fake):
    reason = fake.fails(exception.DeviceNotFound, resource_class='CUSTOM_X')
    assert 'no fake device is of CUSTOM_X with' in str(reason)


def test_many_at_once_get_a_handle_each(fake):
    fake.set('devices', ['a:test:12', 'b:pci:12'])
    start, failed = threading.Barrier(6), []

    def work():
        start.wait()
        try:
            fake.plug(4)
        except Exception as err:
            failed.append(err)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(fake.in_use()) == 24


def test_a_handle_that_another_van_has_is_seen(fake):
    """The hardware refuses it, although the journal does not know."""
    handle = objects.TestHandle(name='h')
    stranger = str(uuid.uuid4())
    fake.hardware.take(handle.identity, stranger, str(uuid.uuid4()))
    reason = fake.fails(exception.DeviceBusy, handle=handle)
    assert stranger in str(reason)
    assert list(fake.in_use()) == ['test/h']


def test_what_is_gone_already_is_unplugged(fake):
    instance, (van,) = fake.plug()
    fake.hardware.give_back(van.handle.identity, van.uuid)
    assert fake.in_use() == {}
    assert os_acc.unplug(instance) == 1


def test_a_half_written_file_is_no_handle_in_use(fake):
    fake.plug()
    (fake.path / '.new-x1').write_text('{')
    assert len(fake.in_use()) == 1


def test_the_hardware_lies_beside_the_journal_by_default(fake, tmp_path):
    fake.set('hardware_path', '')
    fake.plug()
    (file,) = (tmp_path / 'state' / 'fake-hardware').iterdir()
    assert file.name == 'handle-test%2Ffake0-0'


# --- discovery


def test_devices_are_not_discovered_by_default(fake):
    assert os_acc.get_devices() == []


def test_devices_are_discovered_on_demand(fake):
    fake.set('devices', ['nic:pci:4', 'fpga:mdev:3:dynamic'])
    fake.set('discover', True)
    nic, fpga = os_acc.get_devices()
    assert nic == objects.Device(
        address='nic',
        driver='fake',
        vendor_id='fa4e',
        product_id='0000',
        resource_class='CUSTOM_FAKE_PCI',
        traits=['CUSTOM_FAKE_DEVICE'],
        handles_total=4,
        handles_free=4,
        handles=[
            objects.DeviceHandleInfo(
                handle=objects.PCIHandle(address=f'ffff:00:00.{number}'),
                state='free',
            )
            for number in range(4)
        ],
        programming='none',
        function_id=None,
    )
    assert (fpga.resource_class, fpga.product_id) == (
        'CUSTOM_FAKE_MDEV',
        '0001',
    )
    assert fpga.programming == 'dynamic'
    instance, vans = fake.plug(2, function_id='aes')
    _, fpga = os_acc.get_devices()
    assert (fpga.handles_free, fpga.handles_total) == (1, 3)
    assert fpga.function_id == 'aes'
    assert [each.region for each in fpga.handles] == ['0', '1', '2']
    by_holder = {each.holder: each for each in fpga.handles}
    for van in vans:
        info = by_holder[van.uuid]
        assert (info.handle, info.state) == (van.handle, 'used')
        assert fpga.functions[info.region] == 'aes'
    assert by_holder[None].state == 'free'
    assert fpga.functions[by_holder[None].region] is None
    os_acc.unplug(instance)
    assert [d.handles_free for d in os_acc.get_devices()] == [4, 3]


def test_discovery_that_fails(fake):
    fake.set('discover', True)
    fake.set('fail', ['get_devices'])
    with pytest.raises(exception.DiscoveryFailed, match='get_devices'):
        os_acc.get_devices()


@pytest.mark.parametrize(
    'text',
    [
        'nic',
        'nic:pci',
        'nic:pci:',
        'nic:pci:many',
        'nic:pci:-1',
        'nic:pci:257',
        'nic:pci:1000',
        'nic:usb:4',
        'nic:PCI:4',
        'nic:pci:4:',
        'nic:pci:4:often',
        'nic:pci:4:single:more',
        '../nic:pci:4',
        'a nic:pci:4',
        ':pci:4',
        '',
    ],
)
def test_a_device_that_is_written_wrongly(fake, text):
    fake.set('devices', ['good:pci:1', text])
    fake.set('discover', True)
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    for part in ('[os_acc_fake]', 'devices', repr(text), 'NAME:TYPE:HANDLES'):
        assert part in str(caught.value)
    assert repr(text) in str(fake.fails(exception.InvalidRequest))


def test_as_many_handles_as_a_device_may_have(fake):
    fake.set('devices', ['a:pci:256', 'b:drc:256', 'c:pci:0'])
    fake.set('discover', True)
    totals = [device.handles_total for device in os_acc.get_devices()]
    assert totals == [256, 256, 0]


# --- slow and failing


@pytest.mark.parametrize('step', ['prepareVAN', 'postplug', 'program'])
def test_a_step_of_plug_takes_its_time(fake, step):
    fake.set('devices', ['fpga:pci:1:single'])
    instance, _ = fake.plug(function_id='sha')
    os_acc.unplug(instance)
    fake.set('delays', {step: '0.3'})
    start = time.monotonic()
    instance, _ = fake.plug(function_id='aes')
    assert time.monotonic() - start >= 0.3
    fake.set('delays', {step: '60'})
    start = time.monotonic()
    os_acc.unplug(instance)
    assert time.monotonic() - start < 60


def test_unplug_takes_its_time(fake):
    fake.set('delays', {'unprepareVAN': '60'})
    start = time.monotonic()
    instance, _ = fake.plug()
    assert time.monotonic() - start < 60
    fake.set('delays', {'unprepareVAN': '0.3'})
    start = time.monotonic()
    os_acc.unplug(instance)
    assert time.monotonic() - start >= 0.3


def test_discovery_takes_its_time(fake):
    fake.set('delays', {'get_devices': '0.3'})
    start = time.monotonic()
    os_acc.get_devices()
    assert time.monotonic() - start >= 0.3


@pytest.mark.parametrize(
    ('step', 'count'),
    # A second VAN of the device that fails may be told first: unhealthy.
    [('prepareVAN', 2), ('postplug', 2), ('program', 1)],
)
def test_a_step_of_plug_fails(fake, step, count):
    fake.set('devices', ['fpga:pci:4:single'])
    fake.set('fail', [step])
    reason = fake.fails(RuntimeError, count=count, function_id='aes')
    assert f'told to fail at {step}' in str(reason)


def test_a_step_fails_for_one_van(fake):
    first, second = (fake.request() for _ in range(2))
    fake.set('fail', [f'prepareVAN@{second.uuid}'])
    os_acc.plug(fake.instance(), [first])
    with pytest.raises(exception.PlugException, match=second.uuid):
        os_acc.plug(fake.instance(), [second])
    assert [van.uuid for van in os_acc.get_vans()] == [first.uuid]


def test_unplug_fails_and_recovers(fake):
    instance, vans = fake.plug(2)
    fake.set('fail', [f'unprepareVAN@{vans[0].uuid}'])
    with pytest.raises(exception.UnplugException, match='unprepareVAN'):
        os_acc.unplug(instance)
    assert list(fake.in_use()) == [vans[0].handle.identity]
    fake.set('fail', [])
    report = os_acc.recover()
    assert [van.uuid for van in report.released] == [vans[0].uuid]
    assert fake.in_use() == {}


# --- programming


@pytest.fixture
def fpga(fake):
    fake.set('devices', ['fpga:pci:3:single'])
    return fake


def test_a_device_is_programmed_for_its_first_user(fpga):
    instance, (van,) = fpga.plug(function_id='aes')
    assert van.function_id == 'aes'
    assert fpga.hardware.function_of('fpga') == 'aes'
    assert fpga.programmed('fpga') == 1
    os_acc.unplug(instance)
    # The device keeps its function for the next user.
    assert fpga.hardware.function_of('fpga') == 'aes'


def test_the_same_function_is_shared_and_not_programmed_again(fpga):
    fpga.plug(function_id='aes')
    fpga.plug(2, function_id='aes')
    assert len(fpga.in_use()) == 3
    assert fpga.programmed('fpga') == 1


def test_one_plug_programs_once_for_all_of_its_vans(fpga):
    fpga.plug(3, function_id='aes')
    assert fpga.programmed('fpga') == 1


def test_plug_again_does_not_program_again(fpga):
    instance, request = fpga.instance(), fpga.request(function_id='aes')
    first = os_acc.plug(instance, [request])
    assert os_acc.plug(instance, [request]) == first
    assert fpga.programmed('fpga') == 1


def test_another_function_while_it_is_in_use(fpga):
    holders = [fpga.plug(function_id='aes')[0] for _ in range(2)]
    reason = fpga.fails(exception.DeviceBusy, function_id='sha')
    assert 'fpga is busy: it is programmed with aes and used by instance' in (
        str(reason)
    )
    for holder in holders:
        assert f'instance {holder.uuid}' in str(reason)
    assert fpga.hardware.function_of('fpga') == 'aes'
    assert fpga.programmed('fpga') == 1


def test_another_function_when_it_is_free(fpga):
    instance, _ = fpga.plug(2, function_id='aes')
    os_acc.unplug(instance)
    fpga.plug(function_id='sha')
    assert fpga.hardware.function_of('fpga') == 'sha'
    assert fpga.programmed('fpga') == 2


def test_who_asks_for_no_function_holds_what_is_in(fpga):
    instance, (van,) = fpga.plug()
    assert van.function_id is None
    reason = fpga.fails(exception.DeviceBusy, function_id='aes')
    assert f'instance {instance.uuid} (VAN {van.uuid})' in str(reason)
    os_acc.unplug(instance)
    fpga.plug(function_id='aes')
    assert fpga.hardware.function_of('fpga') == 'aes'
    _, (van,) = fpga.plug()
    assert van.function_id == 'aes'


def test_two_functions_in_one_plug_do_not_fit_on_one_device(fpga):
    requests = [fpga.request(function_id=f) for f in ('aes', 'sha')]
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(fpga.instance(), requests)
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert fpga.in_use() == {}


def test_programming_tells_how_far_it_is(fpga):
    events = []
    fpga.set('delays', {'program': '0.05'})
    _, (van,) = fpga.plug(function_id='aes', progress=events.append)
    running = [e for e in events if e.status == 'running']
    fractions = [e.fraction for e in running]
    assert fractions == pytest.approx([n / 20 for n in range(1, 21)])
    assert {(e.step, e.message, e.van_uuid) for e in running} == {
        ('prepareVAN', 'programming', van.uuid)
    }
    events.clear()
    fpga.plug(function_id='aes', progress=events.append)
    assert [e for e in events if e.status == 'running'] == []
