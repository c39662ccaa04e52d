# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The driver cyborg, by os_acc's own calls, with a stand-in for Cyborg.

The helper process is the real one.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import cyborg_host
import devices
from hypothesis import given
from hypothesis import strategies as st
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.drivers import cyborg_listing

STAND_IN = pathlib.Path(__file__).parents[1] / 'stand_in'
FPGA = '0000:07:00.0'
VFS = ['0000:07:00.1', '0000:07:00.2']
OTHER = '0000:08:00.0'
VENDOR, PRODUCT = '0xACE0', '0x09c4'
F1, F2 = 'aaaa1111', 'bbbb2222'


def slot(address: str, **more: str) -> dict[str, str]:
    """The parts of an address, as Cyborg spells them."""
    domain, bus, rest = address.split(':')
    device, function = rest.split('.')
    parts = {'domain': domain, 'bus': bus, 'device': device}
    return {**parts, 'function': function, **more}


def device(by: str, address: str, *handles: Any, **more: Any) -> dict:
    return {
        'by': by,
        'vendor': VENDOR,
        'product': PRODUCT,
        'cpid': slot(address),
        'program': by == 'fpga',
        'attributes': [['rc', 'FPGA'], ['trait0', 'CUSTOM_ACME']],
        'handles': list(handles),
        **more,
    }


class Host:
    """What Cyborg's drivers find and do, and what they were asked."""

    def __init__(self, folder: pathlib.Path, kernel: Any) -> None:
        self.folder = folder
        self.kernel = kernel
        self.before = helpers()
        folder.mkdir()

    def tell(self, step: str, what: str) -> None:
        (self.folder / step).write_text(what)

    def find(self, *found: dict) -> None:
        self.tell('devices', json.dumps(found))

    def calls(self) -> list:
        path = self.folder / 'calls'
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def hanging(self) -> list[int]:
        """The helper that hangs, and its child."""
        text = cyborg_host.wait_for(self.folder / 'child')
        return [int(pid) for pid in text.split()]

    def image(self, name: str = 'image.gbs') -> str:
        path = self.folder / name
        path.write_text('bits')
        return str(path)


def option(name: str, value: Any) -> None:
    os_acc.CONF.set_override(name, value, 'os_acc_cyborg')


@pytest.fixture
def here(kernel, tmp_path, monkeypatch):
    devices.furnish(kernel)
    path = kernel.add_function(FPGA, '8086:09c4', 0x120000, 'fpga', totalvfs=2)
    kernel.write(str(path / 'sriov_numvfs'), '2')
    kernel.add_function(OTHER, '8086:09c4', 0x120000)
    gpu = kernel.pci / 'devices' / devices.GPU
    kernel.add_mdev_parent(gpu.resolve(), {'acme-1': 1, 'acme-2': 2}, 2)
    host = Host(tmp_path / 'stand-in', kernel)
    packages = tmp_path / 'packages/stand_in-17.0.0.dist-info'
    packages.mkdir(parents=True)
    (packages / 'METADATA').write_text('Name: stand-in\nVersion: 17.0.0\n')
    (packages / 'entry_points.txt').write_text(
        '[cyborg.accelerator.driver]\n'
        'plain = cyborg.drivers:Plain\n'
        'fpga = cyborg.drivers:FPGA\n'
        'broken = cyborg.nothing:Broken\n'
    )
    monkeypatch.setenv('PYTHONPATH', f'{STAND_IN}:{packages.parent}')
    monkeypatch.setenv('STAND_IN', str(host.folder))
    monkeypatch.setenv('STAND_IN_SYS', str(kernel.sys))
    host.find(
        device('fpga', FPGA, *(['PCI', slot(vf)] for vf in VFS)),
        device('fpga', OTHER, ['PCI', slot(OTHER)]),
        device(
            'plain',
            devices.GPU,
            *(
                ['MDEV', slot(devices.GPU, asked_type='acme-1', vgpu_mark='')]
                for _ in range(2)
            ),
            attributes=[['rc', 'VGPU']],
        ),
        device(
            'plain',
            '0000:0c:00.0',
            *(['TEST_PCI', slot(f'0000:0c:0{n}.0')] for n in range(1, 4)),
            attributes=[['rc', 'CUSTOM_TEST']],
        ),
    )
    before = kernel.snapshot()
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.CONF.set_override('drivers', ['cyborg'], 'os_acc')
    os_acc.initialize()
    option('enabled_drivers', ['plain', 'fpga'])
    option('discovery_interval', 0.0)
    yield host
    for owner in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=owner, name='', project_id=''))
    assert kernel.snapshot() == before


def request(handle: Any, **values: Any) -> objects.AcceleratorRequest:
    made = devices.wanted('FPGA')
    if handle is not None:
        made.handle, made.resource_class = handle, None
    for name, value in values.items():
        setattr(made, name, value)
    return made


def vf(number: int, **values: Any) -> objects.AcceleratorRequest:
    return request(objects.PCIHandle(address=VFS[number]), **values)


def gpu(kind: str = 'acme-1') -> objects.AcceleratorRequest:
    return devices.mdev(kind, parent=devices.GPU)


def plug(*requests: Any) -> tuple[objects.InstanceInfo, list]:
    instance = devices.instance()
    return instance, list(os_acc.plug(instance, list(requests)))


def cause(*requests: Any) -> Exception:
    """Why a plug fails, and is undone."""
    before = {van.uuid for van in os_acc.get_vans()}
    with pytest.raises(exception.PlugException) as caught:
        plug(*requests)
    assert caught.value.undo_errors == []
    assert {van.uuid for van in os_acc.get_vans()} == before
    return caught.value.__cause__


def found() -> dict[str, objects.Device]:
    listed = [d for d in os_acc.get_devices() if d.driver == 'cyborg']
    return {each.address: each for each in listed}


def driver() -> Any:
    return os_acc._attacher.extensions.drivers['cyborg']


def pids(here: Host) -> set[int]:
    """The helpers that a test has started."""
    return helpers() - here.before


def helpers() -> set[int]:
    text = subprocess.run(
        ['ps', '-o', 'pid=,args=', '--ppid', str(os.getpid())],
        capture_output=True,
        text=True,
    ).stdout
    lines = [line.split() for line in text.splitlines()]
    return {int(each[0]) for each in lines if 'cyborg_helper' in each[-1]}


def test_not_enabled(here):
    option('enabled_drivers', [])
    assert not driver().can_handle(vf(0))
    assert found() == {}
    err = cause(vf(0, driver='cyborg'))
    assert isinstance(err, exception.InvalidRequest)
    assert 'enabled_drivers' in str(err)
    assert pids(here) == set()


def test_devices(here):
    listed = found()
    assert sorted(listed) == [devices.GPU, FPGA, OTHER, '0000:0c:00.0']
    fpga = listed[FPGA]
    assert (fpga.vendor_id, fpga.product_id) == ('ace0', '09c4')
    assert (fpga.resource_class, fpga.programming) == ('FPGA', 'single')
    assert fpga.traits == ['CUSTOM_ACME']
    assert fpga.function_id is None
    assert (fpga.handles_total, fpga.handles_free) == (2, 2)
    assert listed[devices.GPU].programming == 'none'
    assert listed[devices.GPU].handles_total == 2
    assert listed[devices.GPU].numa_node == 1
    assert listed['0000:0c:00.0'].handles_total == 3
    with cyborg_host.creating(here.kernel, devices.GPU):
        plug(vf(0), gpu())
    listed = found()
    assert listed[FPGA].handles_free == listed[devices.GPU].handles_free == 1


def test_the_parent_does_not_load_cyborg(here):
    heavy = {'cyborg', 'eventlet', 'sqlalchemy'}
    before = {name for name in sys.modules if name.split('.')[0] in heavy}
    plug(vf(0, bitstream=here.image()))
    after = {name for name in sys.modules if name.split('.')[0] in heavy}
    assert (after, 'cyborg' in after) == (before, False)


def test_what_it_claims(here):
    assert driver().can_handle(vf(0))
    assert driver().can_handle(gpu())
    assert driver().can_handle(
        request(objects.TestHandle(name='0000:0c:01.0'))
    )
    assert not driver().can_handle(devices.pci(devices.NIC))
    assert not driver().can_handle(gpu('acme-2'))
    assert not driver().can_handle(devices.mdev())
    drc = objects.DRCHandle(drc_index=1)
    assert not driver().can_handle(request(drc))
    assert driver().can_handle(devices.wanted('FPGA', 'CUSTOM_ACME'))
    assert not driver().can_handle(devices.wanted('FPGA', 'CUSTOM_MORE'))
    assert not driver().can_handle(devices.wanted('PGPU'))
    # The generic driver has what Cyborg's drivers do not know.
    _, (van,) = plug(devices.pci(OTHER))
    assert van.driver == 'cyborg'
    _, (van,) = plug(devices.pci(devices.GPU))
    assert van.driver == 'pci'


def test_what_was_found_is_good_for_a_while(here):
    option('discovery_interval', 600.0)
    assert driver().can_handle(vf(0))
    here.find()
    assert driver().can_handle(vf(0))
    option('discovery_interval', 0.0)
    found()
    os_acc.initialize(reset=True)
    assert not driver().can_handle(vf(0))


def test_a_driver_of_cyborgs_that_fails(here):
    here.tell('discover-plain', 'raise')
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert 'plain: RuntimeError: the device is broken' in str(caught.value)
    assert {FPGA, OTHER} <= {d.address for d in caught.value.devices}
    # Not its device: it can be told.
    assert driver().can_handle(vf(0))
    # It could be its device.
    with pytest.raises(exception.NoMatchingDriver, match='broken'):
        plug(gpu())


@pytest.mark.parametrize(
    ('change', 'text'),
    [
        ({'cpid': []}, 'cpid_info'),
        ({'cpid': {'domain': '0000'}}, 'cpid_info'),
        ({'cpid': slot('0000:07:00.0') | {'bus': '-7'}}, 'cpid_info'),
        ({'handles': [['DRC', slot(FPGA)]]}, 'attach_type'),
        ({'handles': [['PCI', []]]}, 'attach_info'),
        ({'handles': [['MDEV', slot(FPGA)]]}, 'asked_type'),
    ],
)
def test_a_device_that_cannot_be(here, change, text):
    here.find(
        device('fpga', OTHER, ['PCI', slot(OTHER)]),
        device('plain', FPGA) | change,
    )
    with pytest.raises(exception.DiscoveryFailed, match=text) as caught:
        os_acc.get_devices()
    assert "Cyborg's plain" in str(caught.value)
    assert OTHER in [d.address for d in caught.value.devices]


def test_doctor(here, tmp_path):
    assert [
        (each.subject, each.verdict, each.text) for each in driver().diagnose()
    ] == [
        ("Cyborg's plain", 'ok', f'{devices.GPU}, 0000:0c:00.0'),
        ("Cyborg's fpga", 'ok', f'{FPGA}, {OTHER}'),
    ]
    here.tell('discover-fpga', 'raise')
    one, two = driver().diagnose()
    assert (one.verdict, two.verdict) == ('ok', 'error')
    assert 'the device is broken' in two.text
    here.tell('discover-plain', 'die')
    (one,) = driver().diagnose()
    assert one.verdict == 'error'
    assert 'signal 9' in one.text
    option('enabled_drivers', [])
    assert list(driver().diagnose()) == []


def test_test_handles(here):
    handle = objects.TestHandle(name='0000:0c:02.0')
    instance, (van,) = plug(request(handle))
    assert (van.driver, van.device) == ('cyborg', '0000:0c:00.0')
    assert found()['0000:0c:00.0'].handles_free == 2
    assert os_acc.unplug(instance) == 1
    err = cause(
        request(objects.TestHandle(name='0000:0c:07.0'), driver='cyborg')
    )
    assert isinstance(err, exception.DeviceNotFound)


def test_a_function_in_use_is_refused(here):
    nic = device('plain', devices.NIC, ['PCI', slot(devices.NIC)])
    here.find(nic)
    flags = here.kernel.sys / 'class/net/eth0/flags'
    flags.write_text('0x1003\n')
    err = cause(devices.pci(devices.NIC))
    assert isinstance(err, exception.DeviceInUseByHost)


def test_outside_of_device_spec(here):
    devices.spec({'address': OTHER})
    for wanted in (vf(0), gpu()):
        err = cause(wanted)
        assert isinstance(err, exception.DeviceNotFound)
        assert 'device_spec' in str(err)
    with pytest.raises(exception.DeviceNotFound, match='device_spec'):
        driver().program(FPGA, here.image(), F1)
    assert here.calls() == []


# Programming.


def test_programmed_once_for_all_of_its_users(here):
    image = here.image()
    one, (van,) = plug(vf(0, bitstream=image, function_id=F1))
    assert (van.function_id, van.handle.managed) == (F1, True)
    controlpath = {'cpid_type': 'PCI', 'cpid_info': slot(FPGA)}
    assert here.calls() == [['program', controlpath, image]]
    plug(vf(1, bitstream=image, function_id=F1))
    assert len(here.calls()) == 1
    assert os_acc.unplug(one) == 1
    err = cause(vf(0, bitstream=image, function_id=F2))
    assert isinstance(err, exception.DeviceBusy)
    assert F1 in str(err)
    assert len(here.calls()) == 1


def test_another_function_when_nobody_uses_it(here):
    image = here.image()
    one, _ = plug(vf(0, bitstream=image, function_id=F1))
    os_acc.unplug(one)
    _, (van,) = plug(vf(0, bitstream=image, function_id=F2))
    assert van.function_id == F2
    assert len(here.calls()) == 2


def test_busy_names_the_holders(here):
    plain, _ = plug(vf(0))
    err = cause(vf(1, bitstream=here.image(), function_id=F1))
    assert isinstance(err, exception.DeviceBusy)
    assert plain.uuid in str(err)
    assert here.calls() == []


def test_a_function_that_is_in(here):
    here.tell('function', F1.upper())
    assert found()[FPGA].function_id == F1
    plug(vf(0))
    _, (van,) = plug(vf(1, function_id=F1))
    assert van.function_id == F1
    assert here.calls() == []


def test_a_function_that_is_not_in_takes_a_bitstream(here):
    err = cause(vf(0, function_id=F1))
    assert isinstance(err, exception.InvalidRequest)
    assert 'bitstream' in str(err)


@pytest.mark.parametrize('path', ['image.gbs', '/nowhere/image.gbs', '/tmp'])
def test_no_file(here, path):
    err = cause(vf(0, bitstream=path))
    assert isinstance(err, exception.InvalidRequest)
    assert repr(path) in str(err)
    assert here.calls() == []


def test_what_cannot_be_programmed(here):
    handle = objects.TestHandle(name='0000:0c:01.0')
    err = cause(request(handle, bitstream=here.image()))
    assert isinstance(err, exception.DeviceError)
    assert 'cannot program' in str(err)


@pytest.mark.parametrize(
    ('told', 'text'),
    [
        ('false', 'returned False'),
        ('raise', 'RuntimeError: the device is broken'),
        ('exit', 'SystemExit: 3'),
        ('die', 'was killed by signal 9'),
        ('leave', 'ended with exit code 4'),
    ],
)
def test_programming_fails(here, told, text):
    wanted = vf(0, bitstream=here.image(), function_id=F1)
    here.tell('program', told)
    err = cause(wanted)
    assert isinstance(err, exception.DeviceError)
    assert text in str(err)
    assert FPGA in str(err)
    here.tell('program', '')
    _, (van,) = plug(wanted)
    assert van.function_id == F1
    assert len(here.calls()) == 2


def test_programming_that_lies(here):
    here.tell('reports', F2)
    err = cause(vf(0, bitstream=here.image(), function_id=F1))
    assert isinstance(err, exception.DeviceError)
    assert F2 in str(err)


def test_programming_that_loses_the_device(here):
    option('discovery_interval', 600.0)
    assert driver().can_handle(vf(0))
    here.find()
    with pytest.raises(exception.DeviceError, match='any more'):
        driver().program(FPGA, here.image(), F1)


def test_programming_that_hangs(here):
    wanted = vf(0, bitstream=here.image(), function_id=F1)
    option('program_timeout', 3.0)
    here.tell('program', 'hang')
    err = cause(wanted)
    assert isinstance(err, exception.Timeout)
    assert FPGA in str(err)
    assert all(cyborg_host.gone(pid) for pid in here.hanging())
    here.tell('program', '')
    option('program_timeout', 60.0)
    plug(wanted)


def test_others_go_on_while_one_hangs(here):
    here.tell('program', 'hang')
    errors = []
    wanted = vf(0, bitstream=here.image(), function_id=F1)
    thread = threading.Thread(target=lambda: errors.append(cause(wanted)))
    thread.start()
    hanging = here.hanging()
    assert FPGA in found()
    assert thread.is_alive()
    os.kill(hanging[0], signal.SIGKILL)
    thread.join()
    assert 'was killed by signal 9' in str(errors[0])
    assert all(cyborg_host.gone(pid) for pid in hanging)
    # One is kept.
    assert len(pids(here)) == 1


def test_programmed_again_after_a_reboot(here):
    image = here.image()
    plug(
        vf(0, bitstream=image, function_id=F1),
        vf(1, bitstream=image, function_id=F1),
    )
    assert len(here.calls()) == 1
    here.kernel.reboot()
    path = here.kernel.pci / 'devices' / FPGA / 'sriov_numvfs'
    here.kernel.write(str(path), '2')
    os_acc.initialize(reset=True)
    vans = os_acc.get_vans()
    assert [(van.state, van.error) for van in vans] == [('plugged', None)] * 2
    assert len(here.calls()) == 2


def test_two_at_once_with_one_function(here):
    image = here.image()
    _, vans = plug(*(vf(n, bitstream=image, function_id=F1) for n in (0, 1)))
    assert [van.function_id for van in vans] == [F1, F1]
    assert len(here.calls()) == 1


def test_selectors(here):
    image = here.image()
    wanted = [
        request(None, bitstream=image, function_id=name)
        for name in (F1, F2, 'cccc', F1, F1)
    ]
    _, (one,) = plug(wanted[0])
    _, (two,) = plug(wanted[1])
    assert {one.device, two.device} == {FPGA, OTHER}
    err = cause(wanted[2])
    assert isinstance(err, exception.DeviceNotFound)
    assert 'is busy' in str(err)
    _, (three,) = plug(wanted[3])
    assert (three.device, three.function_id) == (one.device, F1)
    err = cause(wanted[4])
    assert isinstance(err, exception.DeviceNotFound)
    assert 'taken' in str(err)
    assert len(here.calls()) == 2


# Mediated devices.


def test_mdev_made_by_cyborg_and_removed(here):
    wanted = gpu()
    with cyborg_host.creating(here.kernel, devices.GPU):
        instance, _ = plug(wanted)
    uuid = wanted.handle.uuid
    assert here.calls() == [['create_mdev', devices.GPU, 'acme-1', uuid]]
    assert here.kernel.snapshot()[uuid] == [devices.GPU, 'acme-1']
    assert os_acc.unplug(instance) == 1
    assert uuid not in here.kernel.snapshot()


def test_mdev_by_class(here):
    with cyborg_host.creating(here.kernel, devices.GPU):
        instance, vans = plug(devices.wanted('VGPU'), devices.wanted('VGPU'))
        err = cause(devices.wanted('VGPU'))
    assert [van.handle.uuid for van in vans] == [van.uuid for van in vans]
    assert isinstance(err, exception.DeviceNotFound)
    assert 'taken' in str(err)
    assert os_acc.unplug(instance) == 2


def test_mdev_that_is_there(here):
    wanted = gpu()
    uuid = wanted.handle.uuid
    types = here.kernel.sys / 'class/mdev_bus' / devices.GPU
    create = types / 'mdev_supported_types/acme-1/create'
    here.kernel.write(str(create), uuid)
    instance, _ = plug(wanted)
    assert here.calls() == []
    os_acc.unplug(instance)
    # Who made it removes it.
    assert uuid in here.kernel.snapshot()
    here.kernel.write(str(here.kernel.mdev / uuid / 'remove'), '1')
    create = types / 'mdev_supported_types/acme-2/create'
    here.kernel.write(str(create), uuid)
    err = cause(wanted)
    assert isinstance(err, exception.DeviceBusy)
    assert 'acme-2' in str(err)
    here.kernel.write(str(here.kernel.mdev / uuid / 'remove'), '1')


@pytest.mark.parametrize(
    ('kind', 'same'), [('acme-1', True), ('acme-2', False)]
)
def test_mdev_that_somebody_makes_at_the_same_time(here, kind, same):
    here.tell('create_mdev', f'other {kind} {errno.EEXIST}')
    wanted = gpu()
    uuid = wanted.handle.uuid
    with cyborg_host.creating(here.kernel, devices.GPU):
        if same:
            instance, _ = plug(wanted)
            assert os_acc.unplug(instance) == 1
            return
        err = cause(wanted)
    assert isinstance(err, exception.DeviceBusy)
    assert kind in str(err)
    here.kernel.write(str(here.kernel.mdev / uuid / 'remove'), '1')


@pytest.mark.parametrize(
    ('number', 'kind', 'text'),
    [
        (errno.EUSERS, exception.DeviceBusy, 'capacity'),
        (errno.ENOSPC, exception.DeviceBusy, 'capacity'),
        (errno.EEXIST, exception.DeviceError, 'File exists'),
        (errno.EIO, exception.DeviceError, 'Input/output'),
    ],
)
def test_mdev_refused_by_the_kernel(here, number, kind, text):
    here.tell('create_mdev', f'errno {number}')
    err = cause(gpu())
    assert isinstance(err, kind)
    assert text in str(err)


def test_mdev_exhausted(here):
    with cyborg_host.creating(here.kernel, devices.GPU):
        plug(gpu(), gpu())
        err = cause(gpu())
    assert isinstance(err, exception.DeviceBusy)
    assert 'no capacity' in str(err)
    assert len(here.calls()) == 2


def test_mdev_of_a_type_that_is_gone(here):
    here.find(
        device('plain', OTHER, ['MDEV', slot(OTHER, asked_type='acme-1')])
    )
    err = cause(devices.mdev('acme-1', parent=OTHER))
    assert isinstance(err, exception.DeviceNotFound)
    assert here.calls() == []


# The process.


def test_one_process_serves_all_calls(here, caplog):
    caplog.set_level(logging.INFO)
    assert pids(here) == set()
    found()
    (pid,) = pids(here)
    found()
    assert pids(here) == {pid}
    assert caplog.text.count('runs in a process of its own') == 1


def test_a_process_that_died_in_between(here):
    found()
    (pid,) = pids(here)
    os.kill(pid, signal.SIGKILL)
    assert cyborg_host.gone(pid)
    assert FPGA in found()
    assert len(pids(here)) == 1


def test_what_is_printed_is_logged(here, caplog):
    caplog.set_level(logging.INFO)
    here.tell('program', 'print')
    plug(vf(0, bitstream=here.image(), function_id=F1))
    deadline = time.monotonic() + 20
    while 'from the tool' not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
    assert 'from the tool' in caplog.text
    assert 'this is no answer' in caplog.text


def test_cyborg_is_not_installed(here, tmp_path, monkeypatch):
    (tmp_path / 'none').mkdir()
    (tmp_path / 'none/cyborg.py').write_text(
        'raise ModuleNotFoundError("No module named \'cyborg\'")\n'
    )
    monkeypatch.setenv('PYTHONPATH', str(tmp_path / 'none'))
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert 'openstack-cyborg is not installed' in str(caught.value)
    assert sys.executable in str(caught.value)
    assert pids(here) == set()


@pytest.mark.parametrize(
    ('name', 'value', 'text'),
    [
        ('enabled_drivers', ['plain', 'nobody'], "no driver 'nobody'"),
        ('enabled_drivers', ['broken'], "driver 'broken' does not load"),
        ('python', '/nowhere/python', 'does not start: No such file'),
        ('python', '/bin/false', 'ended with exit code 1'),
        ('config_files', ['/nowhere/cyborg.conf'], '/nowhere/cyborg.conf'),
    ],
)
def test_wrong_options(here, name, value, text):
    option(name, value)
    with pytest.raises(exception.DiscoveryFailed, match=text):
        os_acc.get_devices()
    assert pids(here) == set()


def test_a_helper_that_does_not_answer(here, tmp_path):
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\nsleep 600\n')
    python.chmod(0o755)
    option('python', str(python))
    option('timeout', 0.5)
    with pytest.raises(exception.DiscoveryFailed, match='Waited'):
        os_acc.get_devices()
    assert pids(here) == set()


def test_a_fork_has_its_own(here):
    found()
    (pid,) = pids(here)
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = driver().can_handle(vf(0)) and pid not in pids(here)
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cyborg_host.alive(pid)
    assert FPGA in found()
    assert pids(here) == {pid}


def test_it_ends_with_its_parent(here):
    here.tell('program', 'hang')
    code = (
        'import sys, time\n'
        'from os_acc.drivers import cyborg_process\n'
        'helpers = cyborg_process.Helpers("", ["fpga"], [])\n'
        'helpers.call("program", 60, "hang", driver="fpga",\n'
        '             controlpath_id={}, image="")\n'
    )
    root = pathlib.Path(os_acc.__file__).parents[1]
    path = f'{os.environ["PYTHONPATH"]}:{root}'
    parent = subprocess.Popen(
        [sys.executable, '-c', code], env={**os.environ, 'PYTHONPATH': path}
    )
    hanging = here.hanging()
    parent.kill()
    parent.wait()
    assert all(cyborg_host.gone(pid) for pid in hanging)


@given(
    st.tuples(
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFF),
        st.integers(0, 0x1F),
        st.integers(0, 7),
    ),
    st.booleans(),
)
def test_addresses_in_any_spelling(parts, padded):
    widths = (4, 2, 2, 1) if padded else (0, 0, 0, 0)
    keys = ('domain', 'bus', 'device', 'function')
    info = {
        key: f'{part:0{width}X}' if width else f'{part:x}'
        for key, part, width in zip(keys, parts, widths, strict=True)
    }
    answer = {
        'driver': 'plain',
        'vendor': VENDOR,
        'board': '',
        'programmable': False,
        'cpid_type': 'PCI',
        'cpid_info': json.dumps(info),
        'deployables': [
            {'attributes': [], 'handles': [['PCI', json.dumps(info)]]}
        ],
    }
    (read,), errors = cyborg_listing.read({'devices': [answer], 'errors': {}})
    assert errors == {}
    assert read.address == '%04x:%02x:%02x.%x' % parts
    assert read.has(objects.PCIHandle(address=read.address))
    # program() gets it as Cyborg has spelled it.
    assert read.controlpath_id['cpid_info'] == info
