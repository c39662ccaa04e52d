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


def test_not_set_it_names_all(here):
    assert len(named()) == 7


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
    ('entry', 'network', 'trusted'),
    [
        ({}, None, False),
        ({'physical_network': 'physnet1'}, 'physnet1', False),
        ({'physical_network': None, 'trusted': 'true'}, None, True),
        ({'trusted': True}, None, True),
        ({'trusted': 'False'}, None, False),
    ],
)
def test_networks_as_in_nova(clean, entry, network, trusted):
    devices.spec(entry)
    (spec,) = device_spec.load(os_acc.CONF).entries
    assert (spec.physical_network, spec.trusted) == (network, trusted)


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
        ('{"physical_network": 7}', 'physical_network'),
        ('{"trusted": "perhaps"}', 'trusted'),
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
        device_spec._parse((text,))
    except exception.InvalidRequest as err:
        assert 'device_spec' in str(err)
