# SPDX-License-Identifier: Apache-2.0

"""Nova's operations on an instance with accelerators, in sequence.

A guest that is defined again gets the same devices, by guest_config.
"""

from __future__ import annotations

import devices
from lxml import etree
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import domain_xml
import os_acc
from os_acc import objects

MDEV = 'cf6a7b8c-1111-4222-8333-444455556666'
VF_A, VF_B = devices.VFS[0], devices.VFS[1]


class Host:
    """A nova-compute on a host of its own, with a journal of its own."""

    def __init__(self, path) -> None:
        self.path = path
        self.starts()

    def starts(self) -> None:
        """Start the service, or make this host the one that os_acc acts on."""
        os_acc.CONF.set_override('state_path', str(self.path), 'os_acc')
        os_acc.initialize(reset=True)

    def defines(self, instance) -> str:
        """Build the domain from the journal alone."""
        hostdevs = [van.guest_config for van in os_acc.get_vans(instance)]
        return f'<domain><devices>{"".join(hostdevs)}</devices></domain>'


@pytest.fixture
def kernel(kernel):
    devices.furnish(kernel)
    devices.spec({'address': devices.PF, 'num_vfs': 4}, {'address': 'mtty'})
    return kernel


@pytest.fixture
def host(kernel, tmp_path):
    return Host(tmp_path / 'a')


@pytest.fixture
def other(host, tmp_path):
    """A second host: the same kernel tree, but other devices."""

    def make() -> Host:
        return Host(tmp_path / 'b')

    return make


@pytest.fixture
def created(host):
    instance = devices.instance()
    requests = [devices.pci(VF_A), devices.mdev('mtty-1', MDEV)]
    vans = os_acc.plug(instance, requests)
    return instance, requests, vans


def identities(xml: str) -> list[str | None]:
    return [h.identity for h in domain_xml.hostdevs(domain_xml.parse(xml))]


def test_create(host, created, kernel):
    instance, _, vans = created
    xml = host.defines(instance)
    assert identities(xml) == [f'pci/{VF_A}', f'mdev/{MDEV}']
    aliases = [e.get('name') for e in etree.fromstring(xml).iter('alias')]
    assert aliases == [f'ua-acc-{van.uuid}' for van in vans]
    # os-acc has bound the VF, so libvirt must not bind it.
    assert etree.fromstring(xml).find('devices/hostdev').get('managed') == 'no'


@pytest.mark.parametrize(
    'operation', ['hard reboot', 'rescue', 'stop, start', 'rebuild', 'pause']
)
def test_the_devices_stay(host, created, kernel, operation):
    instance, requests, _ = created
    xml = host.defines(instance)
    kernel.writes.clear()
    if operation == 'rebuild':
        # Nova may call plug again with the same ARQs.
        os_acc.plug(instance, requests)
    assert host.defines(instance) == xml
    assert kernel.writes == []


def test_the_service_restarts(host, created, kernel):
    instance, _, _ = created
    xml = host.defines(instance)
    kernel.writes.clear()
    host.starts()
    assert host.defines(instance) == xml
    assert kernel.writes == []


def test_the_host_reboots(host, created, kernel):
    instance, _, _ = created
    xml = host.defines(instance)
    kernel.reboot()
    host.starts()
    assert host.defines(instance) == xml
    assert kernel.driver_of(VF_A) == 'vfio-pci'
    assert (kernel.mdev / MDEV).exists()


def test_rebuild_with_other_arqs(host, created):
    instance, _, _ = created
    os_acc.unplug(instance)
    os_acc.plug(instance, [devices.pci(devices.VFS[2])])
    assert identities(host.defines(instance)) == [f'pci/{devices.VFS[2]}']


def test_shelve_and_unshelve_elsewhere(host, created, other):
    instance, _, _ = created
    assert os_acc.unplug(instance) == 2
    there = other()
    os_acc.plug(instance, [devices.pci(VF_B)])
    assert identities(there.defines(instance)) == [f'pci/{VF_B}']
    host.starts()
    assert os_acc.get_vans(instance) == objects.VANList()


def test_evacuate(host, created, other, kernel):
    """The old host is down. When it is up again, Nova unplugs there."""
    instance, _, _ = created
    there = other()
    os_acc.plug(instance, [devices.pci(VF_B)])
    assert identities(there.defines(instance)) == [f'pci/{VF_B}']
    host.starts()
    assert os_acc.unplug(instance) == 2
    assert kernel.driver_of(VF_B) == 'vfio-pci'
    there.starts()
    assert len(os_acc.get_vans(instance)) == 1


def test_migration(host, created, other, kernel):
    """Cold or live: plug on the new host, rewrite the XML, unplug here."""
    instance, _, old = created
    xml = host.defines(instance)
    there = other()
    name = 'df6a7b8c-1111-4222-8333-444455556666'
    new = os_acc.plug(
        instance, [devices.pci(VF_B), devices.mdev('mtty-2', name)]
    )
    result = acc_plug_libvirt.update_domain_xml(xml, list(old), list(new))
    assert identities(result) == [f'pci/{VF_B}', f'mdev/{name}']
    assert identities(result) == identities(there.defines(instance))
    host.starts()
    assert os_acc.unplug(instance) == 2
    assert kernel.driver_of(VF_B) == 'vfio-pci'
    assert (kernel.mdev / name).exists()


def test_a_migration_that_fails(host, created, other, kernel):
    """The new host releases its devices; the old host keeps all of its own."""
    instance, _, _ = created
    xml = host.defines(instance)
    other()
    os_acc.plug(instance, [devices.pci(VF_B)])
    assert os_acc.unplug(instance) == 1
    host.starts()
    assert host.defines(instance) == xml
    assert kernel.driver_of(VF_A) == 'vfio-pci'


def test_delete(host, created, kernel):
    instance, _, _ = created
    assert os_acc.unplug(instance) == 2
    assert os_acc.unplug(instance) == 0
    assert identities(host.defines(instance)) == []
    assert not (kernel.mdev / MDEV).exists()
