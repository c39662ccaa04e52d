# SPDX-License-Identifier: Apache-2.0

"""The public calls initialize, get_devices and host_info."""

import json
import os
import subprocess
import sys
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import loader
from os_acc import objects


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
    from os_acc.operations import recovery

    before = os_acc._host

    def fail(host, at_start):
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
    """Slow modules are imported only where they are used."""
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


def test_get_vans_by_uuid(host):
    instance, other = host.instance(), host.instance()
    (van,) = os_acc.plug(instance, host.requests(1))
    os_acc.plug(other, host.requests(1))
    for given in (instance, instance.uuid, instance.uuid.upper()):
        assert [v.uuid for v in os_acc.get_vans(given)] == [van.uuid]
    with pytest.raises(exception.InvalidRequest, match='an InstanceInfo or'):
        os_acc.get_vans('web-1')


def test_an_instance_needs_only_its_uuid(host):
    instance = objects.InstanceInfo(uuid=str(uuid.uuid4()))
    (van,) = os_acc.plug(instance, host.requests(1))
    host.restart()
    assert (instance.name, instance.project_id) == (None, None)
    assert os_acc.get_vans(instance)[0].uuid == van.uuid
    assert os_acc.unplug(instance) == 1


@pytest.fixture
def looker(host):
    os_acc.initialize(reset=True, read_only=True)
    return host


def test_read_only_looks(looker):
    assert [d.driver for d in os_acc.get_devices()] == ['recording']
    assert os_acc.host_info().driver_info
    assert list(os_acc.get_vans()) == []


@pytest.mark.parametrize(
    'call',
    [
        lambda host: os_acc.plug(host.instance(), host.requests(1)),
        lambda host: os_acc.unplug(host.instance()),
        lambda host: os_acc.recover(),
        lambda host: os_acc.program_device('dev0', None, 'aes'),
    ],
    ids=['plug', 'unplug', 'recover', 'program_device'],
)
def test_read_only_changes_nothing(looker, call, request):
    name = request.node.callspec.id
    with pytest.raises(exception.ReadOnly, match=f'os_acc.{name} '):
        call(looker)
    assert looker.calls.log == []


def test_read_only_creates_nothing_and_sees_the_journal_when_it_is_there(
    host, tmp_path
):
    directory = tmp_path / 'later'
    os_acc.CONF.set_override('state_path', str(directory), 'os_acc')
    os_acc.initialize(reset=True, read_only=True)
    assert list(os_acc.get_vans()) == []
    os_acc.get_devices()
    assert not directory.exists()
    looking, os_acc._host = os_acc._host, None
    os_acc.initialize()
    os_acc.plug(host.instance(), host.requests(1))
    writing, os_acc._host = os_acc._host, looking
    assert len(os_acc.get_vans()) == 1
    writing.close()


def test_read_only_recovers_nothing(host):
    host.calls.on('postplug', RuntimeError('boom'))
    host.calls.on('unprepareVAN', RuntimeError('stuck'))
    with pytest.raises(exception.PlugException):
        os_acc.plug(host.instance(), host.requests(1))
    host.calls.clear()
    os_acc.initialize(reset=True, read_only=True)
    assert host.calls.log == []
    assert list(host.states().values()) == ['error']


def test_another_users_directory_is_refused(host, tmp_path, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr(os, 'geteuid', lambda: owner + 1)
    before = os_acc._host
    with pytest.raises(exception.JournalError) as caught:
        os_acc.initialize(reset=True)
    assert f'user id {owner}' in str(caught.value)
    assert f'user id {owner + 1}' in str(caught.value)
    assert os_acc._host is before


def test_another_users_empty_directory_stays_empty(
    clean, tmp_path, monkeypatch
):
    (tmp_path / 'state').mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, 'geteuid', lambda: owner + 1)
    with pytest.raises(exception.JournalError):
        os_acc.initialize()
    assert list((tmp_path / 'state').iterdir()) == []


def test_a_missing_directory_below_another_users_is_refused_for_root(
    clean, tmp_path, monkeypatch
):
    os.makedirs(tmp_path / 'nova')
    real = os.stat

    def stat(path, *args, **kwargs):
        found = real(path, *args, **kwargs)
        if str(path) == str(tmp_path / 'nova'):
            found = os.stat_result([*found[:4], 162, *found[5:10]])
        return found

    monkeypatch.setattr(os, 'stat', stat)
    monkeypatch.setattr(os, 'geteuid', lambda: 0)
    path = tmp_path / 'nova' / 'os-acc'
    os_acc.CONF.set_override('state_path', str(path), 'os_acc')
    with pytest.raises(exception.JournalError, match='user id 162'):
        os_acc.initialize()
    assert not path.exists()


def test_initialize_after_read_only_changes_things(looker):
    os_acc.initialize()
    assert len(os_acc.plug(looker.instance(), looker.requests(1))) == 1
    os_acc.initialize(read_only=True)
    assert os_acc.plug(looker.instance(), looker.requests(1))
