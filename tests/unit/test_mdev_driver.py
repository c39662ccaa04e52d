# SPDX-License-Identifier: Apache-2.0

"""The driver mdev, by os_acc's own calls, on a kernel of files."""

from __future__ import annotations

import errno

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import mdev as linux_mdev
from os_acc.kernel import sysfs
from os_acc.privileged import notes
from os_acc.privileged.mdev import devices as records


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    before = kernel.snapshot()
    os_acc.initialize()
    yield kernel
    for owner in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=owner, name='', project_id=''))
    assert kernel.snapshot() == before


def cause(*requests) -> Exception:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def make(kernel, name: str, kind: str) -> None:
    path = kernel.sys / f'class/mdev_bus/mtty/mdev_supported_types/{kind}'
    kernel.write(str(path / 'create'), name)


def remove(kernel, name: str) -> None:
    kernel.write(str(kernel.mdev / name / 'remove'), '1')


def test_made_and_removed(here):
    instance, request = devices.instance(), devices.mdev()
    (van,) = os_acc.plug(instance, [request])
    assert (van.driver, van.device) == ('mdev', 'mtty')
    assert list(here.snapshot()[request.handle.uuid]) == ['mtty', 'mtty-1']
    assert os_acc.unplug(instance) == 1


def test_one_that_is_there_is_taken_and_left(here):
    request, instance = devices.mdev(), devices.instance()
    make(here, request.handle.uuid, 'mtty-1')
    there = here.snapshot()
    os_acc.plug(instance, [request])
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == there
    remove(here, request.handle.uuid)


def test_made_by_another_between_look_and_act(here, monkeypatch):
    """EEXIST, and it is the same: success."""
    request, instance = devices.mdev(), devices.instance()
    here.fail(
        '*/mtty-1/create', lambda: make(here, request.handle.uuid, 'mtty-1')
    )
    assert len(os_acc.plug(instance, [request])) == 1
    other = devices.mdev()
    here.fail(
        '*/mtty-1/create', lambda: make(here, other.handle.uuid, 'mtty-2')
    )
    err = cause(other)
    assert isinstance(err, exception.DeviceBusy)
    assert 'mtty-2' in str(err)
    remove(here, other.handle.uuid)
    os_acc.unplug(instance)


def test_one_that_vanishes_while_it_is_looked_at(here, monkeypatch):
    uuid = devices.mdev().handle.uuid
    make(here, uuid, 'mtty-1')
    read = sysfs.link

    def then_removed(path):
        found = read(path)
        if path.endswith('/mdev_type'):
            remove(here, uuid)
        return found

    monkeypatch.setattr(sysfs, 'link', then_removed)
    assert linux_mdev.find(uuid) is None


def test_another_type_under_the_uuid(here):
    request = devices.mdev()
    make(here, request.handle.uuid, 'mtty-2')
    err = cause(request)
    assert isinstance(err, exception.DeviceBusy)
    remove(here, request.handle.uuid)


def test_held_by_a_guest(here):
    request, instance = devices.mdev(), devices.instance()
    make(here, request.handle.uuid, 'mtty-1')
    group = (here.mdev / request.handle.uuid / 'iommu_group').readlink().name
    pid = here.hold(here.root / f'dev/vfio/{group}')
    assert f'process {pid}' in str(cause(request))
    here.end(pid)
    os_acc.plug(instance, [request])
    pid = here.hold(here.root / f'dev/vfio/{group}')
    with pytest.raises(exception.UnplugException, match=f'process {pid}'):
        os_acc.unplug(instance)
    here.end(pid)
    assert os_acc.unplug(instance) == 1
    remove(here, request.handle.uuid)


@pytest.mark.parametrize(
    ('number', 'kind', 'text'),
    [
        (errno.EUSERS, exception.DeviceBusy, 'capacity'),
        (errno.EINVAL, exception.DeviceError, 'UUID'),
        (errno.ENODEV, exception.DeviceError, 'going away'),
        (errno.EIO, exception.DeviceError, 'driver refused'),
    ],
)
def test_the_kernel_refuses(here, number, kind, text):
    here.fail('*/create', number)
    err = cause(devices.mdev())
    assert isinstance(err, kind)
    assert text in str(err)
    assert not os_acc.get_vans()


def test_capacity_rolls_back_the_others(here):
    before = here.snapshot()
    requests = [devices.mdev('mtty-2') for _ in range(13)]
    assert isinstance(cause(*requests), exception.DeviceBusy)
    assert here.snapshot() == before


@pytest.mark.parametrize('number', [errno.EAGAIN, errno.ENODEV])
def test_removal_is_tried_again(here, number):
    instance = devices.instance()
    os_acc.plug(instance, [devices.mdev()])
    here.fail('*/remove', number)
    assert os_acc.unplug(instance) == 1


def test_removal_refused(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.mdev()])
    here.fail('*/remove', errno.EBUSY)
    with pytest.raises(exception.UnplugException, match='busy'):
        os_acc.unplug(instance)
    here.fail('*/remove', errno.EIO)
    with pytest.raises(exception.UnplugException, match='remove'):
        os_acc.unplug(instance)
    assert os_acc.unplug(instance) == 1


@pytest.mark.parametrize(
    ('kind', 'parent', 'text'),
    [
        ('mtty-9', 'mtty', 'it has the types mtty-1, mtty-2'),
        ('mtty-1', 'nothing', 'no mediated devices'),
    ],
)
def test_no_such_type_or_parent(here, kind, parent, text):
    err = cause(devices.mdev(kind, parent=parent))
    assert isinstance(err, exception.DeviceNotFound)
    assert text in str(err)


def test_device_spec_names_parents_and_types(here):
    devices.spec({'address': 'mtty', 'mdev_types': ['mtty-2']})
    assert 'mtty-2' in str(cause(devices.mdev('mtty-1')))
    devices.spec({'address': '0000:*'})
    assert 'device_spec' in str(cause(devices.mdev('mtty-1')))
    assert here.writes == []


def test_after_a_reboot(here):
    instance, request = devices.instance(), devices.mdev()
    os_acc.plug(instance, [request])
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    assert (here.mdev / request.handle.uuid).exists()
    assert os_acc.unplug(instance) == 1


def test_owner_external(here):
    os_acc.CONF.set_override('owner', 'external', 'os_acc_mdev')
    os_acc.CONF.set_override('device_timeout', 0.1, 'os_acc')
    request, instance = devices.mdev(), devices.instance()
    assert 'owner = external' in str(cause(request))
    make(here, request.handle.uuid, 'mtty-1')
    there = here.snapshot()
    os_acc.plug(instance, [request])
    os_acc.unplug(instance)
    assert here.snapshot() == there
    remove(here, request.handle.uuid)


def test_one_that_is_left_is_cleaned_when_it_is_closed(here, tmp_path):
    os_acc.CONF.set_override('owner', 'external', 'os_acc_mdev')
    said = tmp_path / 'said'
    request, instance = devices.mdev(), devices.instance()
    uuid = request.handle.uuid
    make(here, uuid, 'mtty-1')
    os_acc.plug(instance, [request])
    os_acc.CONF.set_override(
        'cleaning_command', f"sh -c 'echo $0 >> {said}' {{address}}", 'os_acc'
    )
    group = (here.mdev / uuid / 'iommu_group').readlink().name
    pid = here.hold(here.root / f'dev/vfio/{group}')
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    assert not said.exists()
    here.end(pid)
    assert os_acc.unplug(instance) == 1
    assert said.read_text() == f'{uuid}\n'
    remove(here, uuid)


def test_an_mdev_that_the_agent_removed_first(here):
    """Cyborg gives the next ARQ the same UUID: nothing is left of the VAN."""
    os_acc.CONF.set_override('owner', 'cyborg', 'os_acc_mdev')
    request, instance = devices.mdev(), devices.instance()
    uuid = request.handle.uuid
    os_acc.plug(instance, [request])
    kinds = [records.mdevs.read(uuid), notes.files.read(f'mdev-{uuid}')]
    assert None not in kinds
    remove(here, uuid)
    assert os_acc.unplug(instance) == 1
    assert records.mdevs.read(uuid) is None
    assert notes.files.read(f'mdev-{uuid}') is None


def test_owner_cyborg(here):
    os_acc.CONF.set_override('owner', 'cyborg', 'os_acc_mdev')
    request, instance = devices.mdev(), devices.instance()
    uuid = request.handle.uuid
    # It is missing, as after a reboot: os-acc makes it, and leaves it to the
    # agent.
    os_acc.plug(instance, [request])
    os_acc.unplug(instance)
    assert (here.mdev / uuid).exists()
    os_acc.plug(instance, [request])
    here.reboot()
    assert len(os_acc.recover().restored) == 1
    os_acc.unplug(instance)
    remove(here, uuid)
    # What os-acc has chosen itself, no agent would remove.
    there = here.snapshot()
    os_acc.plug(instance, [devices.wanted('CUSTOM_MDEV_MTTY_1')])
    os_acc.unplug(instance)
    assert here.snapshot() == there


def test_selected_by_class(here):
    instance = devices.instance()
    vans = os_acc.plug(
        instance,
        [
            devices.wanted('CUSTOM_MDEV_MTTY_1'),
            devices.wanted('CUSTOM_MDEV_MTTY_2', 'CUSTOM_MDEV_MTTY_2'),
        ],
    )
    assert [van.handle.type for van in vans] == ['mtty-1', 'mtty-2']
    (device,) = [d for d in os_acc.get_devices() if d.driver == 'mdev']
    assert (device.handles_total, device.handles_free) == (23, 21)
    err = cause(devices.wanted('CUSTOM_MDEV_OTHER'))
    assert isinstance(err, exception.DeviceNotFound)
    os_acc.unplug(instance)


def test_selected_by_a_class_of_device_spec(here):
    devices.spec(
        {
            'address': 'mtty',
            'mdev_types': 'mtty-2',
            'resource_class': 'VGPU',
            'traits': ['CUSTOM_SERIAL'],
        }
    )
    instance = devices.instance()
    wanted = [devices.wanted('VGPU', 'CUSTOM_SERIAL') for _ in range(12)]
    os_acc.plug(instance, wanted)
    err = cause(devices.wanted('VGPU'))
    assert 'no capacity is left' in str(err)
    os_acc.unplug(instance)


@pytest.mark.parametrize(
    'name',
    ['', '../x', 'AAAAAAAA-1111-4222-8333-444455556666', 'a/b', None, 7],
)
def test_what_is_no_uuid_is_no_path(name):
    with pytest.raises(exception.InvalidRequest):
        linux_mdev.directory(name)
