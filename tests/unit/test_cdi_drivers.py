# SPDX-License-Identifier: Apache-2.0
"""The plugin cdi over the drivers idxd and nvme_of."""

from __future__ import annotations

import json
import uuid

import cdi_validator
import devices
import idxd_model
import nvme_of_model
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import device_files
from os_acc.privileged import container_specs
from os_acc.privileged import notes
from os_acc.privileged.nvme_of import notes as nvme_of_notes

DSA = '0000:6a:01.0'
A = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427'
EDITS = {
    'env': ['ACCELERATOR=1'],
    'mounts': [{'hostPath': '/usr/lib', 'containerPath': '/usr/lib'}],
    'hooks': [{'hookName': 'prestart', 'path': '/bin/true', 'timeout': 5}],
}


@pytest.fixture
def here(kernel):
    """A host whose plugin is cdi, with specs in the directory ``specs``."""
    conf = os_acc.CONF
    conf.set_override('plugin', 'cdi', 'os_acc')
    kernel.specs = kernel.root / 'run/cdi'
    conf.set_override('device_timeout', 60.0, 'os_acc')
    return kernel


def start(here):
    os_acc.initialize()
    os_acc.CONF.set_override('spec_dir', str(here.specs), 'os_acc_cdi')


def edits(here) -> dict:
    """What the only spec adds to a container."""
    (path,) = here.specs.iterdir()
    text = path.read_text()
    cdi_validator.check(text)
    assert list(cdi_validator.faults(text)) == []
    (device,) = json.loads(text)['devices']
    return device['containerEdits']


def nodes(here) -> list[tuple]:
    return [
        (each['path'], each['type'], each['major'], each['minor'])
        for each in edits(here)['deviceNodes']
    ]


def written(van, handle=None, name=None):
    primitive = (handle or van.handle).obj_to_primitive()
    return container_specs.write(
        name or van.uuid, van.instance_uuid, primitive
    )


# --- idxd


@pytest.fixture
def dsa(here, monkeypatch):
    made = idxd_model.Idxd(here).add(DSA)
    idxd_model.show_files(monkeypatch)
    devices.spec({'idxd': DSA, 'wq_size': 16, **EDITS})
    start(here)
    return made


def test_a_work_queue(dsa, here):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('CUSTOM_DSA')])
    assert van.guest_config == f'os-acc.openstack.org/accelerator={van.uuid}'
    minor = dsa.queues[0].minor
    assert nodes(here) == [('/dev/dsa/wq0.0', 'c', 240, minor)]
    found = edits(here)
    assert found['env'] == EDITS['env']
    assert found['mounts'][0]['hostPath'] == '/usr/lib'
    assert found['hooks'] == EDITS['hooks']
    os_acc.unplug(instance)
    assert list(here.specs.iterdir()) == []
    assert dsa.state == 'disabled'


def test_a_work_queue_keeps_its_spec(dsa, here):
    """The entry is for something else by now."""
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('CUSTOM_DSA')])
    devices.spec({'address': DSA, 'env': ['OTHER=1']})
    written(van)
    assert 'env' not in edits(here)
    os_acc.unplug(instance)


def test_a_work_queue_of_another_van(dsa, here):
    instance = devices.instance()
    one, other = os_acc.plug(
        instance, [devices.wanted('CUSTOM_DSA') for _ in range(2)]
    )
    with pytest.raises(exception.DeviceNotFound, match='does not have it'):
        written(one, other.handle)
    with pytest.raises(exception.DeviceNotFound, match='does not have it'):
        written(one, name=str(uuid.uuid4()))
    os_acc.unplug(instance)
    with pytest.raises(exception.DeviceNotFound, match='does not have it'):
        written(one)


@pytest.mark.parametrize(
    ('field', 'value', 'text'),
    [
        ('path', '/dev/dsa/wq0.1', 'has changed'),
        ('minor', 99, 'has changed'),
        ('permissions', 'rwm', 'at most rw'),
    ],
)
def test_another_file_than_that_of_the_work_queue(
    dsa, here, field, value, text
):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('CUSTOM_DSA')])
    handle = objects.DeviceFileHandle.obj_from_primitive(
        van.handle.obj_to_primitive()
    )
    setattr(handle.files[0], field, value)
    with pytest.raises(exception.ExceptionBase, match=text):
        written(van, handle)
    handle.files = []
    with pytest.raises(exception.DeviceNotFound, match='has changed'):
        written(van, handle)
    os_acc.unplug(instance)


def test_a_work_queue_that_was_disabled(dsa, here):
    """os_acc.plug() enables it again, and writes its new number."""
    instance = devices.instance()
    request = devices.wanted('CUSTOM_DSA')
    (van,) = os_acc.plug(instance, [request])
    before = nodes(here)
    here.write(str(here.sys / 'bus/dsa/drivers/user/unbind'), 'wq0.0')
    with pytest.raises(exception.DeviceNotFound, match='does not have it'):
        written(van)
    os_acc.plug(instance, [request])
    assert dsa.queues[0].state == 'enabled'
    assert nodes(here) != before
    assert nodes(here)[0][3] == dsa.queues[0].minor
    os_acc.unplug(instance)


# --- nvme_of


@pytest.fixture
def fabric(here, monkeypatch):
    made = nvme_of_model.Fabric(here)
    made.install(monkeypatch)
    made.target(A)
    target = {
        'nqn': nvme_of_model.NQN,
        'portals': [['192.0.2.1', 4420, 'tcp']],
        'namespaces': [A.removeprefix('uuid.')],
    }
    devices.spec({'nvme_of': target, 'resource_class': 'CUSTOM_FAST', **EDITS})
    start(here)
    return made


def test_a_namespace(fabric, here):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('CUSTOM_FAST')])
    name = fabric.block(A)
    number = (here.sys / f'class/block/{name}/dev').read_text()
    there = device_files.parse(number, 'b')
    assert nodes(here) == [(f'/dev/{name}', *there)]
    assert edits(here)['env'] == EDITS['env']
    # The VAN keeps it without an entry.
    devices.spec()
    written(van)
    assert 'env' not in edits(here)
    os_acc.unplug(instance)
    assert list(here.specs.iterdir()) == []
    assert fabric.connections() == []


def test_a_namespace_that_no_van_has(fabric, here):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('CUSTOM_FAST')])
    note = nvme_of_notes.read(A)
    nvme_of_notes.write(
        A, nvme_of_notes.Note(note.instance, False, note.target)
    )
    with pytest.raises(exception.DeviceNotFound, match='no VAN has it'):
        written(van)
    nvme_of_notes.write(A, note)
    os_acc.unplug(instance)
    assert notes.files.names() == []
    with pytest.raises(exception.DeviceNotFound, match='no VAN has it'):
        written(van)


@pytest.mark.parametrize('name', ['uuid.1', '../pci-0000:01:00.0', '.'])
def test_a_name_that_is_none(fabric, here, name):
    handle = objects.BlockHandle(path='/dev/disk/by-id/x', wwn='uuid.1')
    primitive = handle.obj_to_primitive()
    primitive['versioned_object.data']['wwn'] = name
    with pytest.raises(exception.ExceptionBase):
        container_specs.write(str(uuid.uuid4()), str(uuid.uuid4()), primitive)
    assert not here.specs.exists()
