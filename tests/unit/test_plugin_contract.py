# SPDX-License-Identifier: Apache-2.0

"""What a plugin may do besides plug and unplug, and a plugin for one call."""

from __future__ import annotations

import pytest
from recording import RecordingPlugin

import os_acc
from os_acc import exception
from os_acc import finding
from os_acc import loader
from os_acc import objects
from os_acc import plugin
from os_acc.doctor import extensions
from os_acc.operations import discovery


class Keeper(RecordingPlugin):
    """A plugin that keeps something on the host for each VAN."""

    kept: set[str]
    errors: dict[str, Exception]

    def describe(self) -> objects.HostPluginInfo:
        described = super().describe()
        described.guest_config_format = 'cdi-device'
        return described

    def plug(self, van, instance_info, live) -> None:
        super().plug(van, instance_info, live)
        self.kept.add(van.uuid)

    def restore(self, van, instance_info) -> None:
        self.calls('restore', van)
        if 'restore' in self.errors:
            raise self.errors['restore']
        self.kept.add(van.uuid)
        van.guest_config = f'restored {instance_info.name}'

    def is_intact(self, van) -> bool:
        if 'is_intact' in self.errors:
            raise self.errors['is_intact']
        return van.uuid in self.kept

    def unplug(self, van, instance_info, live) -> None:
        super().unplug(van, instance_info, live)
        self.kept.discard(van.uuid)

    def diagnose(self):
        return [finding.Finding('keeper', finding.OK, 'is used')]

    def leftovers(self, van_uuids):
        return [
            finding.Finding(each, finding.WARNING, 'left')
            for each in self.kept - set(van_uuids)
        ]


@pytest.fixture
def keeper(host, monkeypatch):
    """The host has this plugin beside its own."""
    made = Keeper.load('keeper')
    made.calls, made.kept, made.errors = host.calls, set(), {}
    plugins = {'recording': host.plugin, 'keeper': made}
    monkeypatch.setattr(
        loader,
        'load_all',
        lambda: loader.Extensions(host.drivers, plugins, {}),
    )
    host.restart()
    return made


@pytest.fixture
def plugged(host, keeper):
    """Two VANs of the plugin, the instance and the requests."""
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests, plugin='keeper')
    host.calls.clear()
    return instance, requests


def uuids(requests):
    return [each.uuid for each in requests]


# --- a plugin for one call


def test_the_plugin_of_one_call(host, keeper):
    instance, request, later = host.instance(), host.request(), host.request()
    (van,) = os_acc.plug(instance, [request], plugin='keeper')
    assert van.plugin == 'keeper'
    assert keeper.kept == {van.uuid}
    # The other one of the same instance gets the host's plugin.
    again, other = os_acc.plug(instance, [request, later])
    assert (again.plugin, other.plugin) == ('keeper', 'recording')
    assert os_acc.unplug(instance) == 2
    assert keeper.kept == set()


def test_another_plugin_than_before_is_refused(host, keeper, plugged):
    instance, requests = plugged
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, requests, plugin='recording')
    cause = caught.value.__cause__
    assert isinstance(cause, exception.InvalidRequest)
    assert cause.kwargs['field'] == 'plugin'
    assert "'keeper'" in str(cause)
    assert host.calls.log == []
    os_acc.plug(instance, requests, plugin='keeper')
    os_acc.plug(instance, requests)


def test_a_plugin_that_is_not_loaded(host):
    with pytest.raises(exception.NoMatchingPlugin, match='recording'):
        os_acc.plug(host.instance(), [host.request()], plugin='nothing')
    assert host.calls.log == []


# --- restore


def test_restore_follows_the_device_half_after_a_reboot(
    host, keeper, plugged, monkeypatch
):
    instance, requests = plugged
    keeper.kept.clear()
    monkeypatch.setattr('os_acc.kernel.sysfs.boot_id', lambda: 'next')
    report = os_acc.recover()
    assert sorted(van.uuid for van in report.restored) == sorted(
        uuids(requests)
    )
    steps = [step for step, _ in host.calls.log]
    assert steps == ['prepareVAN'] * 2 + ['restore'] * 2
    assert {van.guest_config for van in os_acc.get_vans()} == {
        'restored guest'
    }
    host.calls.clear()
    os_acc.plug(instance, requests)
    assert host.calls.log == []


def test_a_plugin_without_the_methods(host, monkeypatch):
    instance, requests = host.instance(), host.requests(1)
    (before,) = os_acc.plug(instance, requests)
    assert 'restore' not in vars(RecordingPlugin)
    assert plugin.PluginBase.is_intact(host.plugin, before) is True
    assert list(plugin.PluginBase.leftovers(host.plugin, [])) == []
    monkeypatch.setattr('os_acc.kernel.sysfs.boot_id', lambda: 'next')
    os_acc.recover()
    (after,) = os_acc.get_vans()
    assert after.guest_config == before.guest_config


def test_a_restore_that_fails_is_tried_again(
    host, keeper, plugged, monkeypatch
):
    instance, requests = plugged
    monkeypatch.setattr('os_acc.kernel.sysfs.boot_id', lambda: 'next')
    keeper.errors['restore'] = OSError(28, 'No space left on device')
    report = os_acc.recover()
    assert len(report.failed) == 2
    for van in os_acc.get_vans():
        assert van.state == 'plugged'
        assert "restore of plugin 'keeper'" in van.error
        assert 'No space left' in van.error
        assert van.boot_id != 'next'
    with pytest.raises(exception.PlugException, match='No space'):
        os_acc.plug(instance, requests)
    keeper.errors.clear()
    os_acc.plug(instance, requests)
    assert [van.error for van in os_acc.get_vans()] == [None, None]
    assert {van.boot_id for van in os_acc.get_vans()} == {'next'}


def test_what_could_not_be_prepared_is_not_restored(
    host, keeper, plugged, monkeypatch
):
    _, requests = plugged
    monkeypatch.setattr('os_acc.kernel.sysfs.boot_id', lambda: 'next')
    first = requests[0].uuid
    host.calls.on('prepareVAN', RuntimeError('gone'), first)
    os_acc.recover()
    assert host.calls.of('restore') == uuids(requests[1:])


# --- is_intact


def test_only_what_is_missing_is_made_again(host, keeper, plugged):
    instance, requests = plugged
    keeper.kept.remove(requests[1].uuid)
    after = os_acc.plug(instance, requests)
    assert host.calls.log == [('restore', requests[1].uuid)]
    assert [van.guest_config for van in after] == [
        os_acc.get_vans()[0].guest_config,
        'restored guest',
    ]
    assert os_acc.get_vans()[1].guest_config == 'restored guest'


def test_a_plugin_that_cannot_tell(host, keeper, plugged):
    instance, requests = plugged
    keeper.errors['is_intact'] = OSError(5, 'Input/output error')
    with pytest.raises(
        exception.PlugException, match=r"is_intact of the plugin.*'keeper'"
    ):
        os_acc.plug(instance, requests)
    assert host.calls.log == []
    assert set(host.states().values()) == {'plugged'}


def test_what_is_missing_cannot_be_made_again(host, keeper, plugged):
    instance, requests = plugged
    keeper.kept.clear()
    keeper.errors['restore'] = RuntimeError('the directory is gone')
    with pytest.raises(exception.PlugException, match='directory is gone'):
        os_acc.plug(instance, requests)
    assert set(host.states().values()) == {'plugged'}


def test_what_the_driver_has_lost_is_prepared_then_restored(
    host, keeper, plugged, monkeypatch
):
    instance, requests = plugged
    monkeypatch.setattr(host.driver, 'is_intact', lambda van: False)
    os_acc.plug(instance, requests)
    steps = [step for step, _ in host.calls.log]
    assert steps == ['prepareVAN'] * 2 + ['restore'] * 2


# --- time_left


def test_the_vans_of_a_release_share_the_time(host, monkeypatch):
    now = [100.0]
    monkeypatch.setattr('os_acc.attach.steps.time.monotonic', lambda: now[0])
    instance = host.instance()
    os_acc.plug(instance, host.requests(3))
    left: list[float] = []

    def wait(van):
        left.append(van.time_left(10.0))
        now[0] += 6.0

    host.calls.on('unplug', wait)
    os_acc.unplug(instance)
    assert left == [10.0, 4.0, 0.0]
    # The next release has its own time.
    os_acc.plug(instance, host.requests(1))
    os_acc.unplug(instance)
    assert left[3:] == [10.0]


def test_the_time_of_a_copy():
    assert objects.VAN().time_left(7.0) == 7.0


# --- what a plugin says of itself


def test_the_format_of_guest_config(host, keeper):
    formats = {
        each.plugin_name: each.guest_config_format
        for each in os_acc.host_info().plugin_info
    }
    assert formats == {'recording': None, 'keeper': 'cdi-device'}
    (info,) = [
        each
        for each in os_acc.host_info().plugin_info
        if each.plugin_name == 'keeper'
    ]
    older = info.obj_to_primitive(target_version='1.0')
    assert 'guest_config_format' not in str(older)
    read = objects.HostPluginInfo.obj_from_primitive(older)
    assert read.guest_config_format is None


@pytest.mark.parametrize(
    ('name', 'format_name'),
    [
        ('libvirt', 'libvirt-xml'),
        ('powervm', 'powervm-json'),
        ('cdi', 'cdi-device'),
        ('noop', None),
    ],
)
def test_the_formats_of_this_release(clean, name, format_name):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    info = os_acc.host_info().get_plugin(name)
    assert info.guest_config_format == format_name


def test_the_doctor_asks_the_plugins_in_use(host, keeper, plugged):
    keeper.kept.add('gone')

    def said():
        return {
            each.subject: each.text
            for each in extensions.findings(os_acc._host)
            if each.subject in ('keeper', 'gone')
        }

    assert said() == {'keeper': 'is used', 'gone': 'left'}
    os_acc.unplug(plugged[0])
    assert said() == {'gone': 'left'}


def test_the_doctor_without_a_journal(host, keeper, monkeypatch):
    def fail(*args):
        raise exception.JournalError(path='x', reason='damaged')

    monkeypatch.setattr(discovery, 'examine', lambda driver: _Nothing)
    keeper.kept.add('gone')
    monkeypatch.setattr(os_acc._host.journal, 'vans', fail)
    subjects = [x.subject for x in extensions.findings(os_acc._host)]
    assert 'gone' not in subjects


class _Nothing:
    devices = ()
    faults = ()
