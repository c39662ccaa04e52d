# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The face: initialize, get_devices, host_info."""

import json
import subprocess
import sys

import pytest

import os_acc
from os_acc import exception
from os_acc import loader


def test_initialize_twice_loads_once(host, monkeypatch):
    loaded = []
    monkeypatch.setattr(loader, 'load_all', lambda: loaded.append(1))
    os_acc.initialize()
    assert loaded == []


def test_initialize_recovers(host):
    instance, requests = host.instance(), host.requests(1)
    host.calls.on('postplug', RuntimeError('boom'))
    host.calls.on('unprepareVAN', RuntimeError('stuck'))
    with pytest.raises(exception.PlugException):
        os_acc.plug(instance, requests)
    host.calls.clear()
    host.restart()
    assert host.calls.log == [('unprepareVAN', requests[0].uuid)]


def test_initialize_that_fails_can_be_repeated(host, monkeypatch):
    from os_acc import recovery

    before = os_acc._host

    def fail(attacher):
        raise exception.JournalError(path='x', reason='full')

    with monkeypatch.context() as patch:
        patch.setattr(recovery, 'recover', fail)
        with pytest.raises(exception.JournalError):
            os_acc.initialize(reset=True)
    assert os_acc._host is before
    os_acc.get_vans()


def test_initialize_without_a_usable_state_path_says_what_to_do(
    clean, tmp_path
):
    (tmp_path / 'state').write_text('a file')
    with pytest.raises(exception.JournalError) as caught:
        os_acc.initialize()
    assert 'state_path' in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(exception.LibraryNotInitialized):
        os_acc.get_vans()


def test_get_devices(host):
    (device,) = os_acc.get_devices()
    assert (device.address, device.driver) == ('dev0', 'recording')


@pytest.mark.parametrize(
    'given, why',
    [
        (None, "TypeError: 'NoneType' object is not iterable"),
        (['dev1'], 'get_devices() gave a str, expected objects.Device'),
    ],
)
def test_get_devices_names_the_driver_that_gives_something_else(
    host, given, why
):
    class Odd(type(host.driver)):
        def get_devices(self):
            return given

    host.drivers['odd'] = Odd.load('odd')
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert f"driver 'odd': {why}" in str(caught.value)
    assert [device.address for device in caught.value.devices] == ['dev0']


def test_get_devices_does_not_hide_a_driver_that_fails(host):
    class Broken(type(host.driver)):
        def get_devices(self):
            raise OSError('no bus')

    host.drivers['broken'] = Broken.load('broken')
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert 'broken' in str(caught.value)
    assert 'no bus' in str(caught.value)
    assert [d.driver for d in caught.value.devices] == ['recording']


def test_host_info(host):
    host.driver.handle_types = ('PCIHandle',)
    host.errors['plugin broken'] = 'ImportError: no module'
    info = os_acc.host_info()
    plugin = info.get_plugin('recording')
    assert plugin.has_handle('TestHandle')
    assert plugin.get_handle('PCIHandle').get_common_version() == '1.0'
    assert info.get_driver('recording').has_handle('PCIHandle')
    assert info.load_errors == {'plugin broken': 'ImportError: no module'}


def test_host_info_of_permitted_handles(host):
    assert os_acc.host_info(['DRCHandle']).plugin_info == []
    info = os_acc.host_info(['PCIHandle'])
    names = [i.handle_object_name for i in info.plugin_info[0].handle_info]
    assert names == ['PCIHandle']


def test_a_driver_uses_locks_and_journal(host):
    instance, requests = host.instance(), host.requests(2)
    on_device = []

    def prepare(van):
        with host.driver.lock('dev0'):
            on_device.append([v.uuid for v in host.driver.vans_on('dev0')])

    host.calls.on('prepareVAN', prepare)
    os_acc.plug(instance, requests)
    assert sorted(max(on_device, key=len)) == sorted(r.uuid for r in requests)


def test_a_driver_that_is_not_connected_says_so(host):
    driver = type(host.driver).load('alone')
    with pytest.raises(exception.LibraryNotInitialized):
        driver.lock('dev0')
    with pytest.raises(exception.LibraryNotInitialized):
        driver.vans_on('dev0')


def test_import_is_light():
    """What is heavy loads only where it is used."""
    code = (
        'import json, sys, os_acc; os_acc.objects; os_acc.exception;'
        'print(json.dumps(sorted(sys.modules)))'
    )
    out = subprocess.run(
        [sys.executable, '-c', code], check=True, capture_output=True
    )
    loaded = set(json.loads(out.stdout))
    heavy = {
        'cliff',
        'libvirt',
        'lxml',
        'oslo_messaging',
        'oslo_privsep',
        'oslo_versionedobjects',
        'pypowervm',
        'pyudev',
        'sqlite3',
    }
    assert not loaded & heavy
