"""The four deployments: device types T1 and T2 on x86+KVM and on Power.

Two drivers and two plugins, with nothing changed but [os_acc] plugin and the
devices that the host has.
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
from os_acc.drivers.fake.driver import FakeDriver


def on_x86(van):
    """What a libvirt domain gets."""
    hostdev = etree.fromstring(van.guest_config)
    alias = hostdev.find('alias').get('name')
    return hostdev.get('type'), alias == f'ua-acc-{van.uuid}'


def on_power(van):
    """What an LPAR gets."""
    slot = json.loads(van.guest_config)
    return 'slot', slot['drc_index'] == van.handle.drc_index


DEPLOYMENTS = {
    # What the devices are, and what the guest gets.
    ('t1', 'libvirt'): ('pci', on_x86, 'pci'),
    ('t2', 'libvirt'): ('mdev', on_x86, 'mdev'),
    ('t1', 'powervm'): ('drc', on_power, 'slot'),
    ('t2', 'powervm'): ('drc', on_power, 'slot'),
}


@pytest.fixture
def host(clean, monkeypatch, tmp_path):
    """Both drivers and both plugins are there in every deployment."""

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
            # Of one address space: a driver's second device is another than
            # the other's first.
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
