# SPDX-License-Identifier: Apache-2.0
"""Work queues that the drivers idxd and devfile could both give out."""

from __future__ import annotations

import uuid

import devices
import idxd_model
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.claims import reader
from os_acc.kinds.devfile import groups as file_groups
from os_acc.privileged import notes
from os_acc.privileged.devfile import device_files as privileged
from os_acc.privileged.idxd import queues as privileged_idxd
from os_acc.spec import device_spec

DSA = '0000:6a:01.0'
QUEUES = {'idxd': DSA, 'wq_size': 16}
FILES = {'devices': '/dev/dsa/*', 'resource_class': 'CUSTOM_FILE'}
SECONDS = 30.0


@pytest.fixture
def dsa(kernel, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    made = idxd_model.Idxd(kernel).add(DSA)
    idxd_model.show_files(monkeypatch)
    devices.spec(QUEUES, FILES)
    os_acc.initialize()
    return made


def queue(number):
    return named(f'{DSA}-wq{number}')


def file(number):
    return named(f'{DSA}+dsa+wq.{number}+dsa-wq.{number}')


def named(name):
    handle = objects.DeviceFileHandle(name=name, files=[])
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def plug(*requests):
    instance = devices.instance()
    return instance, list(os_acc.plug(instance, list(requests)))


def states(driver):
    return {
        each.handle.identity: (each.state, each.reason)
        for device in os_acc.get_devices()
        for each in device.handles
        if device.driver == driver
    }


def by_hand(kernel, number, name='mine'):
    """An operator enables a work queue of a device that is enabled."""
    directory = kernel.pci / 'devices' / DSA / f'dsa0/wq0.{number}'
    for key, value in {
        'type': 'user',
        'name': name,
        'driver_name': 'user',
    }.items():
        kernel.write(str(directory / key), value)
    bind = kernel.sys / 'bus/dsa/drivers/user/bind'
    kernel.write(str(bind), directory.name)


def test_the_file_of_a_work_queue_of_idxd(dsa, kernel):
    instance, (van,) = plug(devices.wanted('CUSTOM_DSA'))
    (state, reason) = states('devfile')[f'file/{file(0).handle.name}']
    assert state == 'used'
    assert f'has file/{DSA}-wq0' in reason
    for request in (file(0), devices.wanted('CUSTOM_FILE')):
        text = str(devices.refused(request))
        assert f'instance {instance.uuid} has file/{DSA}-wq0' in text
    # So does root, which knows no VANs.
    (node,) = [[x.path, x.type, x.major, x.minor] for x in van.handle.files]
    name = file(0).handle.name
    with pytest.raises(exception.DeviceBusy, match=f'for VAN {van.uuid}'):
        privileged.take(name, '', [node], SECONDS)
    assert notes.files.names() == [f'idxd-{DSA}-wq0']
    # And os-acc after the journal was lost.
    label = f'os-acc-{uuid.uuid4()}'
    by_hand(kernel, 1, label)
    assert label.removeprefix('os-acc-') in str(devices.refused(file(1)))
    assert os_acc.unplug(instance) == 1


def test_a_work_queue_whose_file_a_van_has(dsa, kernel):
    one, _ = plug(queue(0))
    by_hand(kernel, 1)
    other, (van,) = plug(file(1))
    assert (van.driver, van.device) == ('devfile', DSA)
    # The operator disables it, and idxd could configure it.
    unbind = kernel.sys / 'bus/dsa/drivers/user/unbind'
    kernel.write(str(unbind), 'wq0.1')
    text = str(devices.refused(queue(1)))
    assert f'instance {other.uuid} (VAN {van.uuid}) has the device file' in (
        text
    )
    assert states('idxd')[f'file/{DSA}-wq1'][0] == 'used'
    assert states('idxd')[f'file/{DSA}-wq2'] == ('free', None)
    # So does root, by its own notes.
    with pytest.raises(exception.DeviceBusy, match='a VAN has the device'):
        privileged_idxd.enable(DSA, 1, str(uuid.uuid4()), SECONDS)
    # Another work queue is free, and the first choice skips this one.
    third, (next_one,) = plug(devices.wanted('CUSTOM_DSA'))
    assert next_one.handle.name == f'{DSA}-wq2'
    # It is plugged again although a VAN has a file of the device.
    os_acc.plug(
        third,
        [
            objects.AcceleratorRequest(
                uuid=next_one.uuid, resource_class='CUSTOM_DSA'
            )
        ],
    )
    for each in (one, third):
        assert os_acc.unplug(each) == 1
    # Nobody but the VAN with the file is left: idxd sets up nothing.
    assert dsa.state == 'disabled'
    text = str(devices.refused(queue(0)))
    assert 'has the device file of its work queue 1' in text
    assert os_acc.unplug(other) == 1
    fourth, _ = plug(queue(1))
    assert os_acc.unplug(fourth) == 1


def test_a_work_queue_whose_file_comes_with_that_of_another(dsa, kernel):
    both = {'devices': '/dev/dsa/wq0.1', 'with': '/dev/dsa/wq0.2'}
    devices.spec(QUEUES, both)
    plug(queue(0))
    for number in (1, 2):
        by_hand(kernel, number)
    instance, (van,) = plug(file(1))
    numbers = tuple(f'c {x.major}:{x.minor}' for x in van.handle.files)
    known = reader.Reader(device_spec.Specs())
    behind = known.files(van.handle.name, numbers)
    assert behind.queues == ((DSA, 1), (DSA, 2))
    unbind = kernel.sys / 'bus/dsa/drivers/user/unbind'
    kernel.write(str(unbind), 'wq0.2')
    assert f'instance {instance.uuid}' in str(devices.refused(queue(2)))
    assert states('idxd')[f'file/{DSA}-wq2'][0] == 'used'


def test_a_queue_of_a_lost_van_that_comes_with_another_file(dsa, kernel):
    plug(queue(0))
    by_hand(kernel, 1, f'os-acc-{uuid.uuid4()}')
    there = kernel.file(DSA, 'misc/acc0')
    there.mkdir(parents=True)
    (there / 'dev').write_text('250:0\n')
    (kernel.sys / 'dev/char/250:0').symlink_to(there.resolve())
    kernel.write_file('dev/dsa/acc0', '')
    kernel.write_file('dev/number/acc0', 'c 250:0')
    entry = {'devices': '/dev/dsa/acc0', 'with': '/dev/dsa/wq0.1'}
    devices.spec(QUEUES, {**entry, 'resource_class': 'CUSTOM_FILE'})
    text = str(devices.refused(devices.wanted('CUSTOM_FILE')))
    assert dsa.queues[1].name.removeprefix('os-acc-') in text


def test_a_device_that_others_have_enabled(dsa, kernel):
    """That a VAN has a file of it does not make it a device of os-acc."""
    device = kernel.pci / 'devices' / DSA / 'dsa0'
    for path, value in {
        'wq0.0/size': '16',
        'wq0.0/group_id': '0',
        'wq0.1/size': '16',
        'wq0.1/group_id': '0',
        'engine0.0/group_id': '0',
    }.items():
        kernel.write(str(device / path), value)
    bind = kernel.sys / 'bus/dsa/drivers/idxd/bind'
    for number in (0, 1):
        dsa.queues[number].threshold = 16
    kernel.write(str(bind), 'dsa0')
    by_hand(kernel, 0)
    instance, _ = plug(file(0))
    text = str(devices.refused(queue(1)))
    assert 'somebody else has enabled dsa0' in text
    assert os_acc.unplug(instance) == 1


def test_an_entry_is_kept_with_what_a_container_gets(clean):
    entry = {
        'devices': ['/dev/acc*'],
        'env': ['A=1', 'B='],
        'mounts': [
            {
                'hostPath': '/opt/lib',
                'containerPath': '/lib/acc',
                'type': 'bind',
                'options': ['ro', 'rbind'],
            },
            {'hostPath': '/a', 'containerPath': '/b'},
        ],
        'hooks': [
            {
                'hookName': 'createRuntime',
                'path': '/bin/hook',
                'args': ['hook', ''],
                'env': ['C=1'],
                'timeout': 5,
            },
            {'hookName': 'poststop', 'path': '/bin/hook'},
        ],
    }
    devices.spec(entry)
    (spec,) = device_spec.load(os_acc.CONF).entries
    again = file_groups.from_text(file_groups.to_text(spec))
    assert again.edits == spec.edits
    assert len(again.hooks) == len(again.mounts) == len(again.env) == 2
