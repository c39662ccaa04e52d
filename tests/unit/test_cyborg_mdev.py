# SPDX-License-Identifier: Apache-2.0

"""The driver cyborg: mediated devices."""

from __future__ import annotations

import errno

import cyborg_host
from cyborg_stand_in import OTHER
from cyborg_stand_in import cause
from cyborg_stand_in import device
from cyborg_stand_in import gpu
from cyborg_stand_in import plug
from cyborg_stand_in import slot
from cyborg_stand_in import stand_in_host  # noqa: F401, fixture "here"
import devices
import pytest

import os_acc
from os_acc import exception


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
    # os-acc did not create it, and does not remove it.
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
