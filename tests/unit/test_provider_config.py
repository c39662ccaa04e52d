# SPDX-License-Identifier: Apache-2.0

"""os-acc provider-config, on a host with devices of several kinds."""

from __future__ import annotations

import os
import uuid

import command
import devices
import pytest
import yaml

import os_acc
from os_acc import objects
from os_acc.placement import provider_config

CLASS = 'CUSTOM_PCI_8086_4940'
OTHER = {
    'meta': {'schema_version': '1.0'},
    'providers': [
        {
            'identification': {'uuid': '$COMPUTE_NODE'},
            'traits': {'additional': ['CUSTOM_RACK_7']},
        }
    ],
}


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    devices.spec(
        {'address': devices.PF, 'num_vfs': 4, 'traits': ['CUSTOM_CRYPTO']},
        {'address': devices.GPU},
        {
            'address': 'mtty',
            'mdev_types': ['mtty-2'],
            'resource_class': 'CUSTOM_MTTY',
        },
    )
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


@pytest.fixture
def run(here, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / 'provider_config'


@pytest.fixture
def install(run, directory):
    return lambda *arguments: run(
        'provider-config', '--install', '--directory', directory, *arguments
    )


def content(text):
    loaded = yaml.safe_load(text)
    (provider,) = loaded['providers']
    assert provider['identification'] == {'uuid': '$COMPUTE_NODE'}
    inventories = {}
    for each in provider['inventories']['additional']:
        inventories.update(each)
    return inventories, provider['traits']['additional']


def test_it_prints_the_custom_classes_and_traits(run):
    result = run('provider-config')
    assert result.code == 0
    inventories, traits = content(result.out)
    assert inventories == {
        CLASS: {
            'total': 4,
            'reserved': 0,
            'min_unit': 1,
            'max_unit': 4,
            'step_size': 1,
            'allocation_ratio': 1.0,
        },
        'CUSTOM_MTTY': {
            'total': 12,
            'reserved': 0,
            'min_unit': 1,
            'max_unit': 12,
            'step_size': 1,
            'allocation_ratio': 1.0,
        },
    }
    assert traits == [
        'CUSTOM_CRYPTO',
        'CUSTOM_MDEV_MTTY_2',
        'CUSTOM_PCI_CLASS_0B40',
        'CUSTOM_PCI_PRODUCT_4940',
        'CUSTOM_PCI_VENDOR_8086',
    ]
    # Nova takes no VGPU or PGPU from a file.
    assert f'{devices.GPU} (PGPU) is left out' in result.err
    assert yaml.safe_load(result.out)['meta']['schema_version'] == '1.0'


def test_it_changes_nothing_without_install(run, directory):
    result = run('provider-config', '--directory', directory)
    assert result.code == 0
    assert not directory.exists()


def test_install(install, run, directory):
    result = install()
    assert result.code == 0
    path = directory / 'os-acc.yaml'
    assert result.out == (
        f'{path}: written. nova-compute reads it only when it starts: restart '
        'it\n'
    )
    assert path.read_text() == run('provider-config').out
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(directory) == ['os-acc.yaml']
    before = path.stat().st_mtime_ns
    assert install().out == f'{path}: unchanged\n'
    assert path.stat().st_mtime_ns == before
    found = provider_config.published(str(directory))
    assert found.classes == {CLASS, 'CUSTOM_MTTY'}
    assert 'CUSTOM_CRYPTO' in found.traits


def test_the_directory_is_that_of_nova_conf(run, directory, tmp_path):
    conf = tmp_path / 'nova.conf'
    spec = '{"address": "0000:01:00.0", "num_vfs": 2}'
    conf.write_text(
        f'[compute]\nprovider_config_location = {directory}/\n'
        f'[os_acc]\ndevice_spec = {spec}\n'
    )
    result = run('--config-file', conf, 'provider-config', '--install')
    assert result.out.startswith(f'{directory}/os-acc.yaml: written')


def test_only_one_class(run):
    result = run('provider-config', '--resource-class', 'CUSTOM_MTTY')
    assert content(result.out)[0].keys() == {'CUSTOM_MTTY'}
    assert result.err == ''


def test_devices_that_instances_have_stay_in_the_inventory(install, directory):
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(), resource_class='CUSTOM_MTTY'
    )
    os_acc.plug(devices.instance(), [request])
    assert install().code == 0
    path = directory / 'os-acc.yaml'
    assert content(path.read_text())[0]['CUSTOM_MTTY']['total'] == 12


def test_a_file_of_somebody_else_stays(install, directory):
    directory.mkdir()
    path = directory / 'os-acc.yaml'
    for text in ('meta: {schema_version: "1.0"}\n', '- 1\n', ''):
        path.write_text(text)
        result = install()
        assert result.code == 2
        assert "somebody else's file" in result.err
        assert path.read_text() == text
        assert provider_config.published(str(directory)).classes == frozenset()
    assert install('--force').code == 0
    assert content(path.read_text())


def test_a_file_that_cannot_be_parsed(install, directory):
    directory.mkdir()
    path = directory / 'os-acc.yaml'
    path.write_text('{')
    result = install()
    assert result.code == 2
    assert 'expected a readable YAML file' in result.err
    assert install('--force').code == 0


def test_nova_takes_the_compute_node_from_one_file_only(install, directory):
    directory.mkdir()
    (directory / 'site.yaml').write_text(yaml.safe_dump(OTHER))
    for arguments in ((), ('--force',)):
        result = install(*arguments)
        assert result.code == 2
        assert f'{directory}/site.yaml' in result.err
        assert 'nova-compute does not start' in result.err
    assert os.listdir(directory) == ['site.yaml']


def test_a_provider_that_another_file_names(install, directory):
    directory.mkdir()
    other = {
        'meta': {'schema_version': '1.0'},
        'providers': [{'identification': {'name': 'compute-1'}}, 'wrong'],
    }
    (directory / 'site.yaml').write_text(yaml.safe_dump(other))
    result = install()
    assert result.code == 0
    assert 'defines the provider compute-1' in result.err


def test_a_class_that_an_instance_has_does_not_vanish(install, directory):
    instance = devices.instance()
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(), resource_class='CUSTOM_MTTY'
    )
    os_acc.plug(instance, [request])
    assert install().code == 0
    less = ('--resource-class', CLASS)
    result = install(*less)
    assert result.code == 2
    assert "['CUSTOM_MTTY']" in result.err
    assert 'would not start' in result.err
    os_acc.unplug(instance)
    assert install(*less).code == 0


def test_force_removes_a_class_that_an_instance_has(install, directory):
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(), resource_class='CUSTOM_MTTY'
    )
    os_acc.plug(devices.instance(), [request])
    install()
    assert install('--resource-class', CLASS, '--force').code == 0
    found = provider_config.published(str(directory))
    assert found.classes == {CLASS}


def test_a_directory_that_cannot_be_written(install, directory):
    directory.write_text('a file')
    assert install().code == 2
    result = install('--force')
    assert result.code == 1
    assert 'cannot be written' in result.err


def test_nothing_to_offer(run):
    result = run('provider-config', '--resource-class', 'CUSTOM_X')
    assert result.code == 0
    assert yaml.safe_load(result.out)['providers'] == []
    assert 'no device can be offered' in result.err


def test_a_class_without_a_driver_is_left_out(run, monkeypatch):
    from os_acc.kinds.mdev.driver.driver import MdevDriver

    monkeypatch.setattr(MdevDriver, 'can_handle', lambda *a: False)
    result = run('provider-config')
    assert content(result.out)[0].keys() == {CLASS}
    assert 'mtty (CUSTOM_MTTY) is left out: No driver' in result.err


def test_nothing_is_written_if_the_discovery_fails(
    install, directory, monkeypatch
):
    from os_acc.kinds.mdev.driver.driver import MdevDriver

    def fails(driver):
        raise OSError('no')

    monkeypatch.setattr(MdevDriver, 'get_devices', fails)
    result = install()
    assert result.code == 1
    assert 'Discovery failed' in result.err
    assert not directory.exists()
