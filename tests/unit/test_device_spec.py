# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The option device_spec: what it takes, and what it means."""

from __future__ import annotations

import json
import os
import pathlib

import devices
from hypothesis import given
from hypothesis import strategies as st
import pytest

import os_acc
from os_acc import exception
from os_acc.devices import device_spec
from os_acc.devices import pci
from os_acc.devices import pci_scan


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    return kernel


def named(*entries) -> set[str]:
    """The functions that a device_spec names."""
    devices.spec(*entries)
    specs = device_spec.load(os_acc.CONF)
    return {
        f.address for f in pci_scan.functions() if specs.find(f) is not None
    }


@pytest.mark.parametrize(
    ('entry', 'expected'),
    [
        ({'address': devices.GPU}, {devices.GPU}),
        ({'address': '02:00.0'}, {devices.GPU}),
        ({'address': ':02:00.0'}, {devices.GPU}),
        ({'address': '*:06:00.*'}, {devices.SHARED, devices.SHARED_NIC}),
        ({'address': '0000:06:00.[1-7]'}, {devices.SHARED_NIC}),
        ({'vendor_id': '10DE'}, {devices.GPU}),
        ({'vendor_id': '0x10de', 'product_id': '1eb8'}, {devices.GPU}),
        ({'vendor_id': '10de', 'product_id': 'ffff'}, set()),
        (
            {'vendor_id': '*', 'product_id': '10d3'},
            {devices.NIC, devices.SHARED_NIC},
        ),
    ],
)
def test_what_it_names(here, entry, expected):
    assert named(entry) == expected


def test_not_set_it_names_nothing(here):
    assert named() == set()
    specs = device_spec.load(os_acc.CONF)
    assert specs.find_parent('mtty') is None
    with pytest.raises(exception.DeviceNotFound) as caught:
        specs.check(pci.get(devices.GPU))
    assert device_spec.line({'address': devices.GPU}) in str(caught.value)
    assert f'os-acc device allow {devices.GPU}' in str(caught.value)
    with pytest.raises(exception.DeviceNotFound) as caught:
        specs.check_parent('mtty')
    assert 'device_spec = {"address": "mtty"}' in str(caught.value)


def test_the_line_of_the_error_offers_the_device(here):
    devices.spec()
    with pytest.raises(exception.DeviceNotFound) as caught:
        device_spec.load(os_acc.CONF).check(pci.get(devices.GPU))
    text = str(caught.value).rpartition('device_spec = ')[2]
    assert named(json.loads(text)) == {devices.GPU}


@pytest.mark.parametrize('first', [True, False])
def test_a_denial_counts_before_all_others(here, first):
    entries = [{'address': '*'}, {'vendor_id': '8086', 'deny': True}]
    found = named(*(reversed(entries) if first else entries))
    assert found == {devices.GPU, devices.DISK, devices.BRIDGE, devices.SHARED}


def test_a_denied_pf_and_a_denied_vf(here):
    here._set_numvfs(devices.PF, 2)
    offered, vf = {'address': '*:01:00.*'}, devices.VFS[0]
    assert named(offered, {'address': devices.PF, 'deny': True}) == set()
    found = named(offered, {'address': vf, 'deny': True})
    assert found == {devices.PF, devices.VFS[1]}


def test_a_denied_parent(here):
    devices.spec({'address': 'm*'}, {'address': 'mtty', 'deny': True})
    assert device_spec.load(os_acc.CONF).find_parent('mtty') is None


def test_what_is_held_is_not_denied(here):
    devices.spec(
        {'address': devices.GPU, 'deny': True},
        {'address': devices.GPU, 'resource_class': 'CUSTOM_A'},
    )
    function = pci.get(devices.GPU)
    specs = device_spec.load(os_acc.CONF)
    assert specs.held(function).resource_class == 'CUSTOM_A'
    devices.spec()
    bare = device_spec.load(os_acc.CONF).held(function)
    assert bare == device_spec.Spec(address=devices.GPU)


def test_mdev_types(here):
    devices.spec({'address': 'mtty', 'mdev_types': ['mtty-1']})
    specs = device_spec.load(os_acc.CONF)
    assert specs.check_mdev('mtty', 'mtty-1').address == 'mtty'
    with pytest.raises(exception.DeviceNotFound, match='types mtty-1'):
        specs.check_mdev('mtty', 'mtty-2')


def test_vfs_are_named_with_their_pf(here):
    here._set_numvfs(devices.PF, 2)
    expected = {devices.PF, *devices.VFS[:2]}
    assert named({'address': devices.PF, 'num_vfs': 2}) == expected
    assert named({'address': devices.VFS[0]}) == {devices.VFS[0]}


def test_the_first_that_names_it_counts(here):
    devices.spec(
        {'address': devices.GPU, 'resource_class': 'CUSTOM_A'},
        {'vendor_id': '10de', 'resource_class': 'CUSTOM_B'},
    )
    spec = device_spec.load(os_acc.CONF).check(pci.get(devices.GPU))
    assert spec.resource_class == 'CUSTOM_A'


def test_a_list_in_one_value_and_commas(here):
    text = json.dumps(
        [
            {'address': 'mtty', 'mdev_types': 'mtty-1,mtty-2'},
            {'vendor_id': '10de', 'traits': 'CUSTOM_A, hw_nic_sriov'},
        ]
    )
    os_acc.CONF.set_override('device_spec', [text], 'os_acc')
    first, second = device_spec.load(os_acc.CONF).entries
    assert first.mdev_types == ('mtty-1', 'mtty-2')
    assert second.traits == ('CUSTOM_A', 'HW_NIC_SRIOV')


@pytest.mark.parametrize(
    ('entry', 'bind'),
    [
        ({'managed': 'yes'}, 'libvirt'),
        ({'managed': 'no'}, 'os-acc'),
        ({'managed': True}, 'libvirt'),
        ({'managed': 'yes', 'bind': 'none'}, 'none'),
        ({'bind': 'none', 'managed': 'yes'}, 'none'),
    ],
)
def test_managed_is_novas_word_for_bind(clean, entry, bind):
    devices.spec(entry)
    assert device_spec.load(os_acc.CONF).entries[0].bind == bind


@pytest.mark.parametrize(
    ('text', 'field'),
    [
        ('{', 'JSON'),
        ('7', 'entry'),
        ('["a"]', 'entry'),
        ('{"adress": "*"}', 'key'),
        ('{"address": 7}', 'address'),
        ('{"address": " "}', 'address'),
        ('{"vendor_id": "10d"}', 'vendor_id'),
        ('{"product_id": 4318}', None),
        ('{"num_vfs": 0}', 'num_vfs'),
        ('{"num_vfs": true}', 'num_vfs'),
        ('{"num_vfs": "many"}', 'num_vfs'),
        ('{"managed": "maybe"}', 'managed'),
        ('{"bind": "kvm"}', 'bind'),
        ('{"reset": "bus"}', 'reset'),
        ('{"resource_class": "GPUS"}', 'resource_class'),
        ('{"traits": ["HW_NOTHING"]}', 'traits'),
        ('{"traits": 7}', 'traits'),
        ('{"mdev_types": {}}', 'mdev_types'),
        ('{"deny": "yes"}', 'deny'),
    ],
)
def test_malformed_is_a_clear_error(clean, text, field):
    os_acc.CONF.set_override('device_spec', [text], 'os_acc')
    if field is None:
        assert device_spec.load(os_acc.CONF).entries
        return
    with pytest.raises(exception.InvalidRequest, match='device_spec') as err:
        device_spec.load(os_acc.CONF)
    assert err.value.kwargs['field'] == field


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        device_spec.parse(text)
    except exception.InvalidRequest as err:
        assert 'device_spec' in str(err)


# --- the folder


@pytest.fixture
def folder(clean):
    path = pathlib.Path(os_acc.CONF.os_acc.device_spec_dir)
    path.mkdir(0o755)
    path.chmod(0o755)
    return path


def put(path, *entries) -> None:
    path.write_text(json.dumps(list(entries)))
    path.chmod(0o644)


def sources() -> list[str]:
    return [spec.source for spec in device_spec.load(os_acc.CONF).entries]


def test_the_folder_comes_first_and_is_looked_at_anew(folder):
    devices.spec({'address': 'a'}, {'address': 'b'})
    option = ['device_spec, entry 1', 'device_spec, entry 2']
    assert sources() == option
    put(folder / '20.json', {'address': 'c'}, {'address': 'd'})
    (folder / '10.json').write_text('{"address": "e"}')
    (folder / '10.json').chmod(0o644)
    assert sources() == [
        f'{folder}/10.json, entry 1',
        f'{folder}/20.json, entry 1',
        f'{folder}/20.json, entry 2',
        *option,
    ]
    (folder / '20.json').unlink()
    assert sources() == [f'{folder}/10.json, entry 1', *option]


def test_other_files_do_not_count(folder):
    for name in ('a.json~', '.b.json', 'README'):
        (folder / name).write_text('{')
    assert sources() == []


@pytest.mark.parametrize('value', ['', '/nowhere/at/all'])
def test_no_folder(clean, value):
    os_acc.CONF.set_override('device_spec_dir', value, 'os_acc')
    devices.spec({'address': 'a'})
    assert sources() == ['device_spec, entry 1']


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        (b'{', "JSON is '{'"),
        (b'', "JSON is ''"),
        (b'{"adress": "x"}', "key is 'adress'"),
        (b'[{"address": "x"}, {"num_vfs": 0}]', 'num_vfs is 0'),
        (b'\xff', 'encoding is'),
    ],
)
def test_a_malformed_file_is_named_and_nothing_is_offered(folder, text, says):
    devices.spec({'address': '*'})
    (folder / 'bad.json').write_bytes(text)
    (folder / 'bad.json').chmod(0o644)
    with pytest.raises(exception.InvalidRequest) as caught:
        device_spec.load(os_acc.CONF)
    assert str(caught.value).startswith(f'{folder}/bad.json: {says}')


@pytest.mark.parametrize('mode', [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write(folder, mode):
    put(folder / 'a.json', {'address': '*'})
    (folder / 'a.json').chmod(mode)
    with pytest.raises(exception.InvalidRequest, match='mode is') as caught:
        device_spec.load(os_acc.CONF)
    assert str(caught.value).startswith(f'{folder}/a.json: ')


@pytest.mark.parametrize('mode', [0o775, 0o757, 0o1777])
def test_a_folder_that_others_can_write(folder, mode):
    folder.chmod(mode)
    with pytest.raises(exception.InvalidRequest, match='mode is') as caught:
        device_spec.load(os_acc.CONF)
    assert str(caught.value).startswith(f'{folder}: ')


def test_a_folder_in_a_folder_that_others_can_write(folder):
    folder.parent.chmod(0o777)
    with pytest.raises(exception.InvalidRequest, match='mode is') as caught:
        device_spec.load(os_acc.CONF)
    assert str(caught.value).startswith(f'{folder.parent}: ')
    folder.parent.chmod(0o1777)  # nobody can replace the folder
    assert sources() == []


def test_a_file_of_another_user(folder, monkeypatch):
    put(folder / 'a.json', {'address': '*'})
    stat = os.fstat

    def other(fd):
        found = list(stat(fd))
        found[4] = 4711
        return os.stat_result(found)

    monkeypatch.setattr(os, 'fstat', other)
    with pytest.raises(exception.InvalidRequest, match='user id 4711'):
        device_spec.load(os_acc.CONF)


def test_a_link_to_a_place_that_others_can_write(folder, tmp_path):
    place = tmp_path / 'place'
    place.mkdir()
    put(place / 'a.json', {'address': '*'})
    (folder / 'a.json').symlink_to(place / 'a.json')
    place.chmod(0o755)
    assert len(sources()) == 1
    place.chmod(0o777)
    with pytest.raises(exception.InvalidRequest, match='mode is'):
        device_spec.load(os_acc.CONF)


def test_a_named_pipe_does_not_block(folder):
    os.mkfifo(folder / 'a.json', 0o644)
    with pytest.raises(exception.InvalidRequest, match='type is'):
        device_spec.load(os_acc.CONF)


def test_a_folder_that_is_none(folder):
    os_acc.CONF.set_override(
        'device_spec_dir', str(folder / 'a.json'), 'os_acc'
    )
    put(folder / 'a.json', {'address': '*'})
    with pytest.raises(exception.InvalidRequest, match='access is'):
        device_spec.load(os_acc.CONF)


def test_a_relative_folder_is_refused(clean):
    os_acc.CONF.set_override('device_spec_dir', 'specs', 'os_acc')
    with pytest.raises(exception.InvalidRequest, match='device_spec_dir'):
        os_acc.initialize()


def test_a_change_of_the_option_without_a_restart(here, tmp_path):
    conf, path = os_acc.CONF, tmp_path / 'os-acc.conf'
    conf.clear_override('device_spec', 'os_acc')
    path.write_text('[os_acc]\n')
    conf(['--config-file', str(path)], project='os-acc')
    assert device_spec.load(conf).entries == ()
    path.write_text('[os_acc]\ndevice_spec = {"address": "*"}\n')
    conf.mutate_config_files()
    assert device_spec.load(conf).find(pci.get(devices.GPU)) is not None
    path.write_text('[os_acc]\n')
    conf.mutate_config_files()
    assert device_spec.load(conf).entries == ()
