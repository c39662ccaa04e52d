# SPDX-License-Identifier: Apache-2.0
"""The hook that writes function traits to Placement, and its client."""

from __future__ import annotations

from concurrent import futures
import logging
import subprocess
import sys
import threading
import types

from keystoneauth1 import loading
from oslo_config import cfg
import placement_double
import pytest

import os_acc
from os_acc import exception
from os_acc import loader as acc_loader
from os_acc.cyborg import connections
from os_acc.cyborg import names
from os_acc.cyborg import programmed
from os_acc.kinds.fake.driver import driver as fake_driver
from os_acc.placement import client as placement_client
from os_acc.placement import inventory
from os_acc.programming import hooks

NAME = 'compute1_fpga'
UUID = names.provider_uuid(NAME)
AES, SHA = names.function_trait('aes'), names.function_trait('sha')
OTHER = 'CUSTOM_FPGA_INTEL'
GROUP = 'test_placement'


@pytest.fixture
def placement():
    with placement_double.serving() as server:
        yield server


@pytest.fixture
def connected(placement):
    """keystoneauth's adapter, by a group of the configuration."""
    conf, options = cfg.CONF, ('auth_type', 'endpoint_override')
    loading.register_auth_conf_options(conf, GROUP)
    loading.register_adapter_conf_options(conf, GROUP)
    for name, value in zip(options, ('none', placement.url), strict=True):
        conf.set_override(name, value, GROUP)
    yield connections.by_group(connections.PLACEMENT, conf, GROUP)
    for name in options:
        conf.clear_override(name, GROUP)


@pytest.fixture
def client(connected):
    return placement_client.Client(connected)


def set_option(name, value, group='os_acc_placement'):
    os_acc.CONF.set_override(name, value, group)


@pytest.fixture
def make(tmp_path, kernel, placement, connected):
    fake_driver.FakeDriver.load('fake')

    def made(programming, count=3):
        set_option(
            'devices', [f'fpga:pci:{count}:{programming}'], 'os_acc_fake'
        )
        set_option('hardware_path', str(tmp_path / 'hardware'), 'os_acc_fake')
        set_option('discover', True, 'os_acc_fake')
        set_option('host', 'compute1')
        set_option('auth_section', GROUP)
        set_option('update_traits', True)
        os_acc.initialize()
        placement.add(UUID, NAME, OTHER, FPGA=3)

    return made


def event(function):
    return hooks.ProgrammedEvent(
        device='fpga',
        driver='fake',
        chip_serial=None,
        region='',
        function_id=function,
        state=hooks.PROGRAMMED if function else hooks.CLEARED,
    )


def program(function, region=None):
    return os_acc.program_device('fpga', None, function, region)


def traits(placement):
    return placement.providers[UUID]['traits']


# --- the client


def test_the_client_reads_a_provider(client, placement):
    placement.add(UUID, NAME, OTHER, FPGA=3)
    assert client.inventories(UUID) == {'FPGA': inventory.Inventory(3, 0)}
    assert client.traits(UUID) == placement_client.Traits(
        frozenset({OTHER}), 3
    )
    assert {each[2] for each in placement.asked} == {'placement 1.23'}


def test_the_client_finds_no_provider(client, placement):
    assert client.inventories(UUID) is None
    assert client.traits(UUID) is None
    assert client.set_traits(UUID, [], 0) is False


def test_the_client_sets_traits(client, placement):
    placement.add(UUID, NAME, OTHER)
    assert client.set_traits(UUID, [OTHER, AES], 3) is False
    client.create_trait(AES)
    client.create_trait(AES)
    assert client.set_traits(UUID, [OTHER, AES], 2) is False
    assert traits(placement) == {OTHER}
    assert client.set_traits(UUID, [OTHER, AES], 3) is True
    assert client.traits(UUID) == placement_client.Traits(
        frozenset({OTHER, AES}), 4
    )


@pytest.mark.parametrize('status', [200, 403, 404, 500])
def test_the_client_refuses_answers_of_others(client, placement, status):
    """Another web server is behind the address, or Placement is broken."""
    placement.status[f'/resource_providers/{UUID}/traits'] = status
    with pytest.raises(exception.RemoteServiceError, match='placement') as err:
        client.traits(UUID)
    assert f'/resource_providers/{UUID}/traits' in str(err.value)


def test_the_client_tells_why_placement_refuses(client, placement):
    placement.status['/traits/lower'] = 400
    with pytest.raises(
        exception.RemoteServiceError,
        match=r'PUT /traits/lower: HTTP 400: .*no',
    ):
        client.create_trait('lower')


def test_placement_fails_for_a_moment(client, placement):
    """Its database is locked, or it is restarted behind a proxy."""

    class Once(dict):
        def __getitem__(self, path):
            return self.pop(path)

    path = f'/resource_providers/{UUID}/traits'
    placement.add(UUID, NAME, OTHER)
    placement.status = Once({path: 503})
    assert client.traits(UUID).names == {OTHER}
    assert [each[1] for each in placement.asked] == [path, path]


def test_nobody_answers(client, placement):
    placement.server_close()
    with pytest.raises(exception.RemoteServiceError, match='placement'):
        client.traits(UUID)


# --- connections


def test_a_group_without_auth_type():
    with pytest.raises(exception.RemoteServiceError, match='auth_type') as err:
        connections.by_group(connections.PLACEMENT, cfg.CONF, 'empty_group')
    assert '[empty_group]' in str(err.value)


def test_a_group_that_a_service_has_registered(placement):
    """nova-compute has other defaults, and keeps them."""
    conf = cfg.ConfigOpts()
    options = loading.get_adapter_conf_options(include_deprecated=False)
    options = [each for each in options if 'version' not in each.name]
    cfg.set_defaults(
        options,
        service_type='placement',
        valid_interfaces=['internal', 'public'],
    )
    conf.register_opts(options, 'placement')
    loading.register_session_conf_options(conf, 'placement')
    loading.register_auth_conf_options(conf, 'placement')
    for name in ('min-version', 'max-version'):
        conf.register_opt(cfg.Opt(name, type=lambda x: None), 'placement')
    conf([], default_config_files=[])
    conf.set_override('auth_type', 'none', 'placement')
    conf.set_override('endpoint_override', placement.url, 'placement')
    placement.add(UUID, NAME)
    for _ in range(2):
        found = connections.by_group(connections.PLACEMENT, conf, 'placement')
        assert found.interface == ['internal', 'public']
        assert found.session.timeout
        assert placement_client.Client(found).traits(UUID) is not None


# --- the hook


def test_programming_changes_the_trait_at_once(make, placement, caplog):
    make('single')
    caplog.set_level(logging.INFO)
    assert program('aes') is True
    assert traits(placement) == {OTHER, AES}
    (line,) = (
        each.getMessage()
        for each in caplog.records
        if each.name == programmed.__name__
    )
    for text in ('fpga', 'aes', UUID, NAME, AES):
        assert text in line
    program('sha')
    assert traits(placement) == {OTHER, SHA}


def test_traits_of_cyborg_are_replaced(make, placement):
    make('single')
    placement.change(UUID, OTHER, 'CUSTOM_FPGA_FUNCTION_ID_INTEL_F00D')
    program('aes')
    assert traits(placement) == {OTHER, AES}


def test_traits_that_are_there_are_not_written(make, placement):
    make('single')
    placement.change(UUID, OTHER, AES)
    program('aes')
    assert placement.puts() == []


def test_clearing_removes_the_trait(make, placement):
    make('single')
    placement.change(UUID, OTHER, AES)
    programmed.update_traits(event(None))
    assert traits(placement) == {OTHER}


def test_a_failure_removes_the_trait(make, placement):
    make('single')
    program('aes')
    assert traits(placement) == {OTHER, AES}
    set_option('fail', ['program'], 'os_acc_fake')
    with pytest.raises(RuntimeError, match='told to fail'):
        program('sha')
    assert traits(placement) == {OTHER}


def test_a_dynamic_device_has_the_traits_of_all_regions(make, placement):
    make('dynamic')
    program('aes', '0')
    program('sha', '2')
    assert traits(placement) == {OTHER, AES, SHA}
    program('rsa', '0')
    assert traits(placement) == {OTHER, SHA, names.function_trait('rsa')}


def test_a_device_that_no_driver_reports(make, placement):
    make('single')
    set_option('discover', False, 'os_acc_fake')
    programmed.update_traits(event('aes'))
    assert traits(placement) == {OTHER, AES}
    programmed.update_traits(event(None))
    assert traits(placement) == {OTHER}


def test_discovery_fails_for_another_driver(make, placement, monkeypatch):
    make('single')
    devices = os_acc.get_devices()

    def fail():
        raise exception.DiscoveryFailed(devices, errors='another driver')

    monkeypatch.setattr(os_acc, 'get_devices', fail)
    devices[0].functions = {'': 'sha'}
    devices[0].function_id = 'sha'
    programmed.update_traits(event('aes'))
    assert traits(placement) == {OTHER, SHA}


def test_discovery_fails_for_the_device(make, placement, monkeypatch):
    """What its other regions hold is unknown, so their traits stay."""
    make('dynamic')
    program('aes', '0')

    def fail():
        raise exception.DiscoveryFailed([], errors='its driver')

    with monkeypatch.context() as patch:
        patch.setattr(os_acc, 'get_devices', fail)
        program('sha', '2')
        assert traits(placement) == {OTHER, AES}
    program('rsa', '1')
    assert traits(placement) == {OTHER, AES, SHA, names.function_trait('rsa')}


def test_a_device_that_cyborg_does_not_report(make, placement, caplog):
    make('single')
    caplog.set_level(logging.DEBUG)
    del placement.providers[UUID]
    assert program('aes') is True
    assert placement.puts() == []
    assert f'Placement has no resource provider {UUID}' in caplog.text
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_others_change_the_provider_meanwhile(make, placement):
    """Their changes are kept, and the trait is set."""
    make('single')
    left = [1, 2, 3]

    def second_writer(path):
        if path.startswith('/resource_providers') and left:
            placement.change(UUID, OTHER, f'CUSTOM_OF_OTHERS_{left.pop()}')

    placement.before_put = second_writer
    program('aes')
    assert left == []
    assert traits(placement) == {OTHER, 'CUSTOM_OF_OTHERS_1', AES}


def test_others_delete_the_trait_meanwhile(make, placement):
    """Cyborg's conductor deletes function traits that it removes."""
    make('single')
    left = [1]

    def second_writer(path):
        if path.startswith('/resource_providers') and left:
            left.pop()
            placement.known.discard(AES)

    placement.before_put = second_writer
    program('aes')
    assert traits(placement) == {OTHER, AES}


def test_others_change_the_provider_without_end(
    make, placement, caplog, monkeypatch
):
    make('single')
    own = types.SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr(programmed, 'time', own)
    placement.before_put = lambda path: placement.change(UUID, OTHER)
    assert program('aes') is True
    assert traits(placement) == {OTHER}
    assert 'was changed by others during each of 8 attempts' in caplog.text


def test_an_older_call_does_not_overwrite_a_newer_one(make, placement):
    """The second programming waits until the hooks know of the first."""
    make('single')
    waiting, go_on = threading.Event(), threading.Event()
    first = []

    def delay(path):
        if path.endswith(AES) and not first:
            first.append(path)
            waiting.set()
            assert go_on.wait(100)

    placement.before_put = delay
    with futures.ThreadPoolExecutor(2) as pool:
        old = pool.submit(program, 'aes')
        assert waiting.wait(100)
        new = pool.submit(program, 'sha')
        done, _ = futures.wait([new], timeout=0.5)
        go_on.set()
        assert not done
        assert old.result() is True
        assert new.result() is True
    assert traits(placement) == {OTHER, SHA}


def test_many_regions_at_once(make, placement):
    make('dynamic', 8)
    functions = [f'function{number}' for number in range(8)]
    with futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(program, functions, map(str, range(8))))
    assert traits(placement) == {OTHER, *map(names.function_trait, functions)}


def test_a_failure_does_not_fail_the_programming(make, placement, caplog):
    make('single')
    placement.status[f'/traits/{AES}'] = 500
    assert program('aes') is True
    assert 'HTTP 500' in caplog.text
    assert "Hook 'placement' of os_acc.programmed failed" in caplog.text


def test_no_credentials(make, placement, caplog):
    make('single')
    set_option('auth_section', 'nowhere')
    assert program('aes') is True
    assert 'group [nowhere]: ' in caplog.text


def test_the_name_of_the_host(make, placement):
    """It is that of [os_acc] host unless the hook has another."""
    make('single')
    set_option('host', '')
    set_option('host', 'compute2', 'os_acc')
    uuid = names.provider_uuid('compute2_fpga')
    placement.add(uuid, 'compute2_fpga')
    program('aes')
    assert placement.providers[uuid]['traits'] == {AES}
    assert traits(placement) == {OTHER}


def test_it_is_off_by_default(make, placement):
    make('single')
    os_acc.CONF.clear_override('update_traits', 'os_acc_placement')
    program('aes')
    assert placement.asked == []


def test_it_costs_nothing_while_it_is_off():
    program = (
        'import sys, os_acc\n'
        'from os_acc import opts\n'
        'os_acc.CONF([], project="os-acc", default_config_files=[])\n'
        'opts.register(os_acc.CONF)\n'
        'from importlib import metadata\n'
        'found = metadata.entry_points(group="os_acc.programmed")\n'
        'from os_acc.programming import hooks\n'
        'event = hooks.ProgrammedEvent('
        '"fpga", "fake", None, "", "aes", "programmed")\n'
        'found["placement"].load()(event)\n'
        'assert not {"keystoneauth1", "requests"} & set(sys.modules)\n'
        'assert "os_acc.placement.client" not in sys.modules\n'
    )
    subprocess.run([sys.executable, '-c', program], check=True)


def test_its_options_are_listed():
    listed = dict(acc_loader.list_opts())
    assert {each.name for each in listed['os_acc_placement']} == {
        'update_traits',
        'host',
        'auth_section',
    }


@pytest.mark.parametrize('service', ['placement', 'accelerator'])
def test_the_url_in_the_group_placement_is_that_of_placement(service):
    conf = cfg.ConfigOpts()
    loading.register_auth_conf_options(conf, 'placement')
    loading.register_adapter_conf_options(conf, 'placement')
    conf([])
    conf.set_override('auth_type', 'none', 'placement')
    conf.set_override('endpoint_override', 'http://there', 'placement')
    made = connections.by_group(service, conf, 'placement')
    there = 'http://there' if service == connections.PLACEMENT else None
    assert (made.service_type, made.endpoint_override) == (service, there)
