# SPDX-License-Identifier: Apache-2.0

"""OSAccFixture: os-acc in the tests of a service."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import fixture
from os_acc import objects
from os_acc.privileged import context

CONF = os_acc.CONF


@pytest.fixture
def acc(clean, tmp_path):
    with fixture.OSAccFixture(str(tmp_path / 'acc'), owner='nova') as made:
        yield made


def _plug(name='fake-0', hostname=None):
    instance = objects.InstanceInfo(uuid=uuid.uuid4())
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(),
        driver='fake',
        hostname=hostname,
        handle=objects.TestHandle(name=name),
    )
    os_acc.plug(instance, [request])
    return instance


def _instances():
    return [van.instance_uuid for van in os_acc.get_vans()]


def test_os_acc_is_initialized_in_the_directory(acc, tmp_path):
    instance = _plug()
    (van,) = os_acc.get_vans(instance)
    assert van.owner == 'nova'
    assert list((tmp_path / 'acc').glob('journal*'))
    assert os_acc.unplug(instance) == 1


def test_nothing_is_left_at_the_end(clean, tmp_path):
    before = CONF.os_acc.state_path
    with fixture.OSAccFixture(str(tmp_path / 'acc')):
        CONF.set_override('device_timeout', 7.0, 'os_acc')
        CONF.set_default('host', 'node-1', 'os_acc')
        assert CONF.os_acc.state_path == str(tmp_path / 'acc')
        assert not context.pctxt.client_mode
    assert context.pctxt.client_mode
    assert CONF.os_acc.device_timeout != 7.0
    assert CONF.os_acc.host != 'node-1'
    # What the fixture "clean" has set is an override too.
    assert CONF.os_acc.state_path not in (before, str(tmp_path / 'acc'))
    with pytest.raises(exception.LibraryNotInitialized):
        os_acc.get_vans()


def test_what_the_process_had_initialized_is_left_alone(host, tmp_path):
    instance = host.instance()
    os_acc.plug(instance, [host.request()])
    with fixture.OSAccFixture(str(tmp_path / 'acc')):
        assert _instances() == []
    assert _instances() == [instance.uuid]


def test_each_host_has_a_journal_of_its_own(acc):
    with acc.host('compute1'):
        first = _plug('fake-1', hostname='compute1')
    with acc.host('compute2'):
        assert _instances() == []
        second = _plug('fake-2', hostname='compute2')
        with acc.host('compute1'):
            assert _instances() == [first.uuid]
        assert _instances() == [second.uuid]
    assert _instances() == []


def test_each_host_has_a_name_of_its_own(acc):
    with acc.host('compute2'):
        with pytest.raises(exception.InvalidRequest, match='compute2'):
            _plug('fake-1', hostname='compute1')


def test_another_thread_is_not_on_the_host(acc):
    found = []
    with acc.host('compute1'):
        _plug(hostname='compute1')
        thread = threading.Thread(target=lambda: found.append(_instances()))
        thread.start()
        thread.join()
    assert found == [[]]


def test_the_journal_outlives_the_service(acc, tmp_path):
    with acc.host('compute1'):
        instance = _plug(hostname='compute1')
    acc.stop('compute1')
    with acc.host('compute1'):
        assert _instances() == [instance.uuid]
    acc.stop()
    with pytest.raises(exception.LibraryNotInitialized):
        os_acc.get_vans()
    acc.stop('a host that was never used')


class Service:
    def __init__(self, name):
        self.name = name

    def start(self):
        os_acc.initialize()

    def instances(self):
        return _instances()

    def crash(self):
        raise RuntimeError(_instances())


def test_the_methods_of_a_class_follow_their_object(acc):
    acc.follow(Service, lambda service: service.name)
    services = [Service('compute1'), Service('compute2')]
    with pytest.raises(exception.LibraryNotInitialized):
        services[0].instances()
    for each in services:
        each.start()
    with acc.host('compute1'):
        instance = _plug(hostname='compute1')
        assert services[1].instances() == []
    assert services[0].instances() == [instance.uuid]
    with pytest.raises(RuntimeError, match=instance.uuid):
        services[0].crash()
    assert _instances() == []


def test_a_class_is_as_before_at_the_end(clean, tmp_path):
    before = Service.start
    with fixture.OSAccFixture(str(tmp_path / 'acc')) as acc:
        acc.follow(Service, lambda service: service.name)
        assert Service.start is not before
    assert Service.start is before


def test_the_options_are_shared_but_for_host_and_path(acc):
    CONF.set_override('device_spec', ['nonsense'], 'os_acc')
    with acc.host('compute1'):
        assert os_acc.get_vans().objects == []
        CONF.clear_override('device_spec', 'os_acc')
        assert os_acc.host_info().plugin_info


def test_os_acc_does_not_need_the_package_fixtures():
    root = pathlib.Path(os_acc.__file__).parent
    names = [
        str(path.relative_to(root.parent))[:-3].replace('/', '.')
        for path in root.rglob('*.py')
        if 'import fixtures' in path.read_text()
    ]
    assert names == ['os_acc.fixture']
    code = (
        'import sys; sys.modules["fixtures"] = None\n'
        'import os_acc, os_acc.nova, os_acc.host, os_acc.operations.recovery'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
