# SPDX-License-Identifier: Apache-2.0

"""Mediated devices on a real kernel, with its own sample driver mtty."""

from __future__ import annotations

import os

import pytest
import use

import os_acc
from os_acc import exception
from os_acc.kernel import mdev
from os_acc.kernel import mdev_types


def test_types_are_listed(configured):
    types = {each.name: each.available for each in mdev_types.types(use.MTTY)}
    assert types == {'mtty-1': 24, 'mtty-2': 12}
    (device,) = [d for d in os_acc.get_devices() if d.address == use.MTTY]
    assert device.handles_total == 24
    assert 'CUSTOM_MDEV_MTTY_2' in device.traits


def test_made_found_again_and_removed(configured, snapshot):
    before = snapshot()
    instance, request = use.instance(), use.mdev_request()
    (van,) = os_acc.plug(instance, [request])
    uuid = request.handle.uuid
    assert mdev.find(uuid) == mdev.Mdev(uuid, use.MTTY, 'mtty-1')
    assert uuid in van.guest_config
    assert os.path.exists(use.mdev_file(uuid))
    assert os_acc.plug(instance, [request])[0].uuid == van.uuid
    assert os_acc.unplug(instance) == 1
    assert snapshot() == before


def _make(uuid: str, kind: str) -> None:
    path = f'/sys/class/mdev_bus/mtty/mdev_supported_types/{kind}/create'
    with open(path, 'w') as file:
        file.write(uuid)


def _remove(uuid: str) -> None:
    with open(f'/sys/bus/mdev/devices/{uuid}/remove', 'w') as file:
        file.write('1')


def test_one_that_is_there_is_taken_and_left(configured, snapshot):
    request, instance = use.mdev_request(), use.instance()
    _make(request.handle.uuid, 'mtty-1')
    there = snapshot()
    os_acc.plug(instance, [request])
    os_acc.unplug(instance)
    assert snapshot() == there
    _remove(request.handle.uuid)


def test_one_of_another_type_is_refused(configured, snapshot):
    request = use.mdev_request('mtty-1')
    _make(request.handle.uuid, 'mtty-2')
    there = snapshot()
    with pytest.raises(exception.PlugException, match='mtty-2') as caught:
        os_acc.plug(use.instance(), [request])
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert snapshot() == there
    assert not os_acc.get_vans()
    _remove(request.handle.uuid)


def test_no_capacity_is_an_error_and_rolls_back(configured, snapshot):
    before = snapshot()
    requests = [use.mdev_request('mtty-2') for _ in range(13)]
    with pytest.raises(exception.PlugException, match='capacity') as caught:
        os_acc.plug(use.instance(), requests)
    assert isinstance(caught.value.__cause__, exception.DeviceBusy)
    assert caught.value.undo_errors == []
    assert not os_acc.get_vans()
    assert snapshot() == before


def test_made_by_another_service(configured, snapshot):
    configured.set_override('owner', 'external', 'os_acc_mdev')
    configured.set_override('device_timeout', 0.5, 'os_acc')
    request, instance = use.mdev_request(), use.instance()
    with pytest.raises(exception.PlugException, match='owner = external'):
        os_acc.plug(instance, [request])
    _make(request.handle.uuid, 'mtty-1')
    there = snapshot()
    os_acc.plug(instance, [request])
    os_acc.unplug(instance)
    assert snapshot() == there
    _remove(request.handle.uuid)


def test_a_guest_that_has_it_keeps_it(configured, held, snapshot):
    before = snapshot()
    request, instance = use.mdev_request(), use.instance()
    os_acc.plug(instance, [request])
    configured.set_override('release_timeout', 0.2, 'os_acc')
    guest = use.Holder(use.mdev_file(request.handle.uuid))
    with pytest.raises(exception.UnplugException, match=str(guest.pid)):
        os_acc.unplug(instance)
    assert mdev.find(request.handle.uuid) is not None
    guest.end()
    assert os_acc.unplug(instance) == 1
    assert snapshot() == before
