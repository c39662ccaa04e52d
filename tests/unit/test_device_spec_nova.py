# SPDX-License-Identifier: Apache-2.0

"""[os_acc] device_spec means what Nova's [pci] device_spec means.

The cases are those of Nova's own tests and documentation: see nova_specs.
"""

from __future__ import annotations

import json
from typing import Any

import nova_specs
import pytest

import os_acc
from os_acc import exception
from os_acc.drivers import pci_functions
from os_acc.kernel import pci
from os_acc.spec import device_spec


def add(kernel, *host: nova_specs.Device) -> None:
    """Put functions into the generated host."""
    for device in host:
        kernel.add_function(
            device.address,
            device.ids,
            0x020000,
            totalvfs=device.vfs,
            net=device.net,
            physfn=device.parent,
        )


def read(spec: dict[str, Any]) -> device_spec.Spec:
    # oslo.config would read a $ as the start of an option's name.
    text = json.dumps(spec).replace('$', '$$')
    os_acc.CONF.set_override('device_spec', [text], 'os_acc')
    (entry,) = device_spec.load(os_acc.CONF).entries
    return entry


def named(spec: dict[str, Any]) -> set[str]:
    entry = read(spec)
    return {
        address
        for address in pci.addresses()
        if entry.matches(pci.get(address))
    }


def case(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@pytest.mark.parametrize(
    ('test', 'spec', 'device', 'expected'), nova_specs.MATCHES, ids=case
)
def test_matches(kernel, test, spec, device, expected):
    if device.parent is not None:
        add(kernel, nova_specs.Device(device.parent, '8086:1572', None, 8))
    add(kernel, device)
    assert (device.address in named(spec)) is expected


@pytest.mark.parametrize(
    ('test', 'spec', 'key', 'text'), nova_specs.REFUSED, ids=case
)
def test_refused(clean, test, spec, key, text):
    with pytest.raises(exception.InvalidRequest) as err:
        read(spec)
    assert err.value.kwargs['field'] == key
    assert text in str(err.value)


@pytest.mark.parametrize('interface', ['eth0', 'lo'])
def test_by_name(kernel, interface):
    """Nova: test_by_name, test_invalid_name."""
    pf = nova_specs.Device('0000:0a:00.0', parent=None, vfs=8, net='eth0')
    add(kernel, pf, nova_specs.DEV)
    (kernel.sys / 'devices/virtual/net/lo').mkdir(parents=True)
    (kernel.sys / 'class/net/lo').symlink_to(
        kernel.sys / 'devices/virtual/net/lo'
    )
    spec = {'devname': interface, 'physical_network': 'hr_net'}
    expected = {pf.address, nova_specs.DEV.address}
    assert named(spec) == (expected if interface == 'eth0' else set())


def test_ids_are_those_of_the_vf(kernel):
    """Nova: test_remote_managed_vf_by_pf names VFs by PF and product_id."""
    pf = nova_specs.Device('0000:0a:00.0', '8086:5057', None, vfs=8)
    vf = nova_specs.Device('0000:0a:00.2', '8086:5058', pf.address)
    add(kernel, pf, vf)
    spec = {'address': pf.address, 'vendor_id': '8086'}
    assert named({**spec, 'product_id': '5058'}) == {vf.address}
    assert named({**spec, 'product_id': '5057'}) == {pf.address}
    assert named({**spec, 'vendor_id': '*'}) == {pf.address, vf.address}
    assert named({**spec, 'vendor_id': '8080'}) == set()


@pytest.mark.parametrize(('tag', 'value', 'expected'), nova_specs.TAGS)
def test_tags(clean, tag, value, expected):
    entry = read({'product_id': '0001', 'vendor_id': '8086', tag: value})
    if tag == 'managed':
        assert entry.bind == ('libvirt' if expected else 'none')
    else:
        assert getattr(entry, tag) is expected


def test_tags_that_are_not_set(clean):
    """Nova: test_device_managed_not_set."""
    entry = read({'product_id': '0001', 'vendor_id': '8086'})
    assert entry.bind is None
    assert entry.live_migratable is None
    assert entry.one_time_use is None
    assert entry.trusted is None
    assert entry.physical_network is None


@pytest.mark.parametrize(('traits', 'expected'), nova_specs.TRAITS)
def test_traits(clean, traits, expected):
    assert set(read({'traits': traits}).traits) == expected


@pytest.mark.parametrize(
    ('ids', 'name', 'expected'), nova_specs.RESOURCE_CLASSES
)
def test_resource_classes(kernel, ids, name, expected):
    kernel.add_function('0000:81:00.0', ids, 0x120000)
    entry = read({'resource_class': name})
    function = pci.get('0000:81:00.0')
    assert pci_functions.kind_of(function, entry).resource_class == expected


@pytest.mark.parametrize('text', nova_specs.INCOMPLETE)
def test_incomplete_addresses(text):
    assert not pci.is_address(text)


def test_lists_and_several_values(clean):
    """Nova: test_whitelist_list_format, test_whitelist_multiple."""
    both = [
        {'product_id': number, 'vendor_id': '8086'}
        for number in ('0001', '0002')
    ]
    for values in ([json.dumps(both)], [json.dumps(each) for each in both]):
        os_acc.CONF.set_override('device_spec', values, 'os_acc')
        entries = device_spec.load(os_acc.CONF).entries
        assert [entry.product_id for entry in entries] == ['0001', '0002']


@pytest.mark.parametrize(
    'example', [*nova_specs.HELP, *nova_specs.GUIDE], ids=lambda e: str(e.spec)
)
def test_examples(kernel, example):
    add(kernel, *nova_specs.HOST)
    assert named(example.spec) == example.names
    entry = read(example.spec)
    for field, value in example.fields.items():
        assert getattr(entry, field) == value


@pytest.mark.parametrize(('spec', 'key'), nova_specs.REFUSED_EXAMPLES)
def test_examples_that_are_refused(clean, spec, key):
    with pytest.raises(exception.InvalidRequest) as err:
        read(spec)
    assert err.value.kwargs['field'] == key
