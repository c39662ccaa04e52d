# SPDX-License-Identifier: Apache-2.0

"""Two PFs of one chip: what is programmed through one is in both.

So they are one place for pools, and for the functions of a document.
"""

from __future__ import annotations

import datetime
import json

import applied
import devices
import pytest
import vendor

import os_acc
from os_acc.desired import pools
from os_acc.desired import regions

OWN, OTHER = '0000:0b:00.0', '0000:0b:00.1'
IDS = {'vendor_id': '8086', 'product_id': '09c4'}


@pytest.fixture
def entry(kernel, tmp_path):
    """What offers both; the tool that programs them is in tool()."""
    for address in (OWN, OTHER):
        kernel.add_function(address, '8086:09c4', 0x120000, 'dfl-pci')
    made = vendor.Vendor(tmp_path / 'vendor')
    made.configure('single')
    spec = json.loads(os_acc.CONF.os_acc.device_spec[0])
    del spec['num_vfs'], spec['address']
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    return made, spec


@pytest.fixture
def tool(entry):
    made, spec = entry
    devices.spec({**spec, **IDS})
    os_acc.initialize(reset=True)
    return made


def apply(**parts):
    return os_acc.apply({'version': 1, **parts})


def keep(passed=0):
    now = datetime.datetime.now(datetime.UTC)
    now += datetime.timedelta(seconds=passed)
    return [
        (each.name, each.after, each.result)
        for each in pools.keep(os_acc._host, now=now).steps
    ]


def inside():
    return {each.address: each.functions for each in os_acc.get_devices()}


def pool(tool, function, **more):
    found = {'function': function, 'bitstream': tool.bitstream(function)}
    return {**found, 'min_free': 1, **more}


def test_pools_do_not_overwrite_each_other(tool):
    apply(pools=[pool(tool, 'aes'), pool(tool, 'sha')])
    assert keep() == [(OWN, 'aes', 'changed')]
    assert inside() == {OWN: {'': 'aes'}, OTHER: {'': 'aes'}}
    assert keep(2 * regions.REST) == []
    aes, sha = pools.states(os_acc._host)
    assert (aes.free, len(aes.held), sha.free) == (1, 1, 0)


def test_a_region_of_which_an_instance_has_a_part(tool):
    apply(pools=[pool(tool, 'aes')])
    os_acc.plug(devices.instance(), [devices.pci(OTHER)])
    assert keep() == []
    (state,) = pools.states(os_acc._host)
    assert state.free == 0


@pytest.mark.parametrize('address', [OWN, OTHER])
def test_what_the_document_says_of_one(tool, address):
    """Its function is fixed, and a project has all of the chip."""
    named = {
        'device': address,
        'function': 'sha',
        'bitstream': tool.bitstream('sha'),
    }
    apply(functions=[named], pools=[pool(tool, 'aes')])
    assert keep(2 * regions.REST) == []
    for each in ({'project': 'mine'}, {'function': 'sha'}):
        apply(
            reserved=[{'device': address, **each}], pools=[pool(tool, 'aes')]
        )
        assert keep(2 * regions.REST) == []
    assert len(tool.calls()) == 1


def test_a_pool_for_the_class_of_one(entry):
    """Each device that gives access to a region may serve a pool."""
    tool, spec = entry
    devices.spec(
        *(
            {**spec, 'address': address, 'resource_class': name}
            for address, name in ((OWN, 'CUSTOM_A'), (OTHER, 'CUSTOM_B'))
        )
    )
    os_acc.initialize(reset=True)
    apply(pools=[pool(tool, 'aes', resource_class='CUSTOM_B')])
    assert keep() == [(OWN, 'aes', 'changed')]


@pytest.mark.parametrize('check', [True, False])
def test_two_functions_for_one_region(tool, check):
    """The second one fails, however often it is applied."""
    document = {
        'version': 1,
        'functions': [
            {
                'device': device,
                'function': function,
                'bitstream': tool.bitstream(function),
            }
            for device, function in ((OWN, 'aes'), (OTHER, 'sha'))
        ],
    }
    if not check:
        os_acc.apply(document)
    first, second = os_acc.apply(document, check=check).steps
    assert first.result == ('would change' if check else 'unchanged')
    assert second.result == 'failed'
    assert f'aes, because the entry of {OWN}' in second.reason
    assert len(tool.calls()) == (not check)


def test_one_function_for_both(tool):
    """It is programmed once. Another file of it is known for both."""
    path = tool.bitstream('aes')

    def both():
        return applied.results(
            apply(
                functions=[
                    {'device': each, 'function': 'aes', 'bitstream': path}
                    for each in (OWN, OTHER)
                ]
            )
        )

    both()
    assert len(tool.calls()) == 1
    assert both() == {OWN: 'unchanged', OTHER: 'unchanged'}
    assert inside() == {OWN: {'': 'aes'}, OTHER: {'': 'aes'}}
