# SPDX-License-Identifier: Apache-2.0

"""acc_plug_libvirt: the <disk> of a device that comes over a network."""

from __future__ import annotations

import re
import sys
import types
import uuid

import libvirt_double as double
from lxml import etree
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import disk
from acc_plug_libvirt import domain_xml
import os_acc
from os_acc import exception
from os_acc import objects

UUID = '0b0a6bb0-1111-4222-8333-444455556666'
INSTANCE = objects.InstanceInfo(uuid=UUID, name='guest', project_id='p')
VAN = '00000001-1111-4222-8333-444455556666'
WWN = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427'
OTHER = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca428'


def new_van(wwn: str = WWN, number: int = 1) -> objects.VAN:
    return objects.VAN(
        uuid=f'0000000{number}-1111-4222-8333-444455556666',
        instance_uuid=UUID,
        driver='nvme_of',
        plugin='libvirt',
        state='plugging',
        handle=objects.BlockHandle(
            path=f'/dev/disk/by-id/nvme-{wwn}', wwn=wwn
        ),
        boot_id='boot',
    )


@pytest.fixture
def daemon(monkeypatch):
    made = double.Module()
    monkeypatch.setitem(sys.modules, 'libvirt', made)
    return made.daemon


@pytest.fixture
def plugin(clean, daemon):
    made = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    conf = os_acc.CONF
    for name, value in {
        'connect_timeout': 30.0,
        'attach_timeout': 5.0,
        'detach_timeout': 3.0,
        'detach_attempts': 3,
        'detach_attempt_timeout': 0.4,
    }.items():
        conf.set_override(name, value, 'os_acc_libvirt')
    return made


@pytest.fixture
def van(plugin):
    made = new_van()
    plugin.plug(made, INSTANCE, live=False)
    return made


def test_the_element(van):
    target = disk.target_of(van)
    assert van.guest_config.split('\n') == [
        '<disk type="block" device="disk">',
        '  <driver name="qemu" type="raw" cache="none" io="native"/>',
        f'  <source dev="/dev/disk/by-id/nvme-{WWN}"/>',
        f'  <target dev="{target}" bus="virtio"/>',
        '  <serial>1b4e28ba-2fa1-11d2-883f-0016d3cca427</serial>',
        f'  <alias name="ua-acc-{VAN}"/>',
        '</disk>',
        '',
    ]


def test_an_nguid_and_a_power_host(plugin, monkeypatch):
    monkeypatch.setattr(plugin, '_is_power', True)
    made = new_van('eui.0123456789abcdef0123456789abcdef')
    plugin.plug(made, INSTANCE, live=False)
    serial = etree.fromstring(made.guest_config).findtext('serial')
    assert serial == '0123456789abcdef0123456789abcdef'
    assert made.driver_data == {}


def among(van: objects.VAN, *others: objects.VAN) -> objects.VAN:
    """A VAN as os-acc gives it to a plugin, beside others of its instance."""
    van.connect(lambda saved: None, others=lambda: list(others))
    return van


@pytest.mark.parametrize('number', [1, 26**5 - 1])
def test_targets_differ(plugin, monkeypatch, number):
    """Also if the names that are made of two UUIDs are the same."""
    monkeypatch.setattr(
        disk.hashlib,
        'sha256',
        lambda data: types.SimpleNamespace(hexdigest=lambda: f'{number:x}'),
    )
    there: list[objects.VAN] = []
    for place in range(1, 5):
        van = among(new_van(number=place), *there)
        plugin.plug(van, INSTANCE, live=False)
        there.append(van)
    targets = [disk.target_in(van.guest_config) for van in there]
    assert len(set(targets)) == 4
    assert all(re.fullmatch('vd[a-z]{5}', target) for target in targets)
    # The first VAN goes, and the others are plugged again: they keep theirs.
    for van in there[1:]:
        among(van, *(each for each in there[1:] if each is not van))
        plugin.plug(van, INSTANCE, live=False)
    assert [disk.target_in(v.guest_config) for v in there] == targets


def test_a_disk_of_somebody_else_has_the_name(plugin, daemon, van):
    """The operator has attached it to the domain with virsh."""
    domain = daemon.domain(UUID)
    name = disk.target_in(van.guest_config)
    domain.add(
        etree.fromstring(
            "<disk type='file' device='disk'><source file='/x'/>"
            f"<target dev='{name}' bus='virtio'/></disk>"
        ),
        3,
    )
    saved = []
    van.connect(lambda each: saved.append(each.guest_config))
    plugin.plug(van, INSTANCE, live=True)
    mine = disk.target_in(van.guest_config)
    assert mine != name
    assert saved == [van.guest_config]
    # Again: the domain has it by its alias, and nothing changes.
    plugin.plug(van, INSTANCE, live=True)
    assert disk.target_in(van.guest_config) == mine


def test_live(plugin, daemon, van):
    domain = daemon.domain(UUID)
    plugin.plug(van, INSTANCE, True)
    assert (len(domain.live), len(domain.config)) == (1, 1)
    # Again: it is there.
    plugin.plug(van, INSTANCE, True)
    assert (len(domain.live), len(domain.config)) == (1, 1)
    van.guest_config = None
    plugin.unplug(van, INSTANCE, True)
    assert (domain.live, domain.config) == ([], [])
    plugin.unplug(van, INSTANCE, True)


def test_another_domain_has_it(plugin, daemon, van):
    daemon.domain(UUID)
    other = daemon.domain(str(uuid.uuid4()))
    other.add(etree.fromstring(van.guest_config), 3)
    with pytest.raises(exception.DeviceBusy, match=WWN):
        plugin.plug(van, INSTANCE, True)


def test_the_domain_has_it_for_another_van(plugin, daemon, van):
    domain = daemon.domain(UUID)
    its = new_van(number=2)
    plugin.plug(its, INSTANCE, False)
    domain.add(etree.fromstring(its.guest_config), 3)
    with pytest.raises(exception.DeviceBusy, match=its.uuid):
        plugin.plug(van, INSTANCE, True)


def domain_of(*elements: str) -> str:
    return (
        "<domain type='kvm'><name>x</name><devices>"
        "<disk type='file'><source file='/x'/></disk>"
        "<disk type='block'><source dev='/dev/vg/root'/></disk>"
        "<disk type='block'/>" + ''.join(elements) + '</devices></domain>'
    )


def test_only_disks_of_vans_are_found(van):
    root = domain_xml.parse(domain_of(van.guest_config))
    (found,) = domain_xml.hostdevs(root)
    assert found.identity == van.handle.identity == f'block/{WWN}'
    assert domain_xml.find(root, van).alias == f'ua-acc-{VAN}'
    assert f'block/{WWN}' in domain_xml.identities(root)


def test_migration(plugin, van):
    """The guest keeps the name, the serial and the address of its disk."""
    element = etree.fromstring(van.guest_config)
    etree.SubElement(element, 'address', type='pci', bus='0x05')
    xml = domain_of(etree.tostring(element, encoding='unicode'))
    new = new_van(OTHER, 2)
    plugin.plug(new, INSTANCE, live=False)
    moved = domain_xml.update_domain_xml(xml, [van], [new])
    (found,) = domain_xml.hostdevs(domain_xml.parse(moved))
    assert found.identity == f'block/{OTHER}'
    assert found.alias == f'ua-acc-{new.uuid}'
    assert found.element.find('address').get('bus') == '0x05'
    assert found.element.find('target').get('dev') == disk.target_of(van)
    back = domain_xml.update_domain_xml(moved, [new], [van])
    assert domain_xml.find(domain_xml.parse(back), van) is not None


def test_a_disk_does_not_become_a_hostdev(plugin, van):
    new = new_van(number=2)
    new.handle = objects.PCIHandle(address='0000:0c:00.1')
    plugin.plug(new, INSTANCE, live=False)
    with pytest.raises(exception.InvalidRequest):
        domain_xml.update_domain_xml(domain_of(van.guest_config), [van], [new])
