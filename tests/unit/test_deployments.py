# SPDX-License-Identifier: Apache-2.0

"""The four deployments: device types T1 and T2 on x86+KVM and on Power.

The two drivers and two plugins are the same in all of them. Only [os_acc]
plugin and the host's devices differ.
"""

import json
import uuid

from lxml import etree
import pytest

from acc_plug_libvirt import LibvirtPlugin
from acc_plug_powervm import PowerVMPlugin
import os_acc
from os_acc import exception
from os_acc import loader
from os_acc import objects
from os_acc.kinds.fake.driver.driver import FakeDriver


def on_x86(van):
    """The type of the hostdev, and whether it has the VAN's alias."""
    hostdev = etree.fromstring(van.guest_config)
    alias = hostdev.find('alias').get('name')
    return hostdev.get('type'), alias == f'ua-acc-{van.uuid}'


def on_power(van):
    """The word slot, and whether the LPAR gets the VAN's slot."""
    slot = json.loads(van.guest_config)
    return 'slot', slot['drc_index'] == van.handle.drc_index


DEPLOYMENTS = {
    # The type of the devices, the check, what the guest gets.
    ('t1', 'libvirt'): ('pci', on_x86, 'pci'),
    ('t2', 'libvirt'): ('mdev', on_x86, 'mdev'),
    ('t1', 'powervm'): ('drc', on_power, 'slot'),
    ('t2', 'powervm'): ('drc', on_power, 'slot'),
}


@pytest.fixture
def host(clean, monkeypatch, tmp_path):
    """A host with both drivers and both plugins."""

    def load():
        return loader.Extensions(
            {name: FakeDriver.load(name) for name in ('t1', 't2')},
            {
                'libvirt': LibvirtPlugin.load('libvirt'),
                'powervm': PowerVMPlugin.load('powervm'),
            },
            {},
        )

    monkeypatch.setattr(loader, 'load_all', load)

    def start(plugin, **devices):
        os_acc.CONF.set_override('plugin', plugin, 'os_acc')
        os_acc.initialize()
        for name, kind in devices.items():
            # The drivers share one address space, so t2's device must have
            # another number than t1's.
            first = ['none:test:0'] * (name == 't2')
            os_acc.CONF.set_override(
                'devices', [*first, f'{name}dev:{kind}:2'], f'os_acc_{name}'
            )

    return start


def instance():
    return objects.InstanceInfo(uuid=uuid.uuid4(), name='i', project_id='p')


@pytest.mark.parametrize(('driver', 'plugin'), DEPLOYMENTS)
def test_one_type_on_one_hypervisor(host, driver, plugin):
    kind, look, expected = DEPLOYMENTS[(driver, plugin)]
    host(plugin, **{driver: kind})
    guest = instance()
    request = objects.AcceleratorRequest(uuid=uuid.uuid4(), driver=driver)
    (van,) = os_acc.plug(guest, [request])
    assert (van.driver, van.plugin) == (driver, plugin)
    assert look(van) == (expected, True)
    assert os_acc.unplug(guest) == 1


@pytest.mark.parametrize('plugin', ['libvirt', 'powervm'])
def test_both_types_in_one_instance(host, plugin):
    kinds = {d: DEPLOYMENTS[(d, plugin)][0] for d in ('t1', 't2')}
    host(plugin, **kinds)
    guest = instance()
    requests = [
        objects.AcceleratorRequest(uuid=uuid.uuid4(), driver=driver)
        for driver in ('t2', 't1')
    ]
    vans = os_acc.plug(guest, requests)
    assert [van.driver for van in vans] == ['t2', 't1']
    for van in vans:
        _, look, expected = DEPLOYMENTS[(van.driver, plugin)]
        assert look(van) == (expected, True)
    assert os_acc.unplug(guest) == 2


@pytest.mark.parametrize(
    ('plugin', 'handle'),
    [
        ('libvirt', objects.DRCHandle(drc_index='21030011')),
        ('powervm', objects.PCIHandle(address='0000:01:00.0')),
    ],
)
def test_a_handle_of_the_other_hypervisor_is_refused(host, plugin, handle):
    host(plugin, t1='pci')
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(), driver='t1', handle=handle
    )
    with pytest.raises(exception.UnsupportedHandle):
        os_acc.plug(instance(), [request])
