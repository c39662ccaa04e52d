# SPDX-License-Identifier: Apache-2.0

"""Rewriting a domain's hostdevs for another host."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import domain_xml
from os_acc import exception
from os_acc import objects

INSTANCE = objects.InstanceInfo(uuid=uuid.uuid4(), name='n', project_id='p')


def van(handle, plugin=None) -> objects.VAN:
    made = objects.VAN(
        uuid=uuid.uuid4(),
        instance_uuid=INSTANCE.uuid,
        driver='pci',
        plugin='libvirt',
        state='plugged',
        handle=handle,
        boot_id='boot',
    )
    acc_plug_libvirt.LibvirtPlugin.load('libvirt').plug(made, INSTANCE, False)
    return made


def pci(address, **fields):
    return van(objects.PCIHandle(address=address, **fields))


def mdev(kind='nvidia-223'):
    return van(
        objects.MdevHandle(uuid=uuid.uuid4(), parent='0000:65:00.0', type=kind)
    )


def domain(*hostdevs: str) -> str:
    return (
        "<domain type='kvm'><name>x</name><devices><disk type='file'/>"
        + ''.join(hostdevs)
        + '</devices></domain>'
    )


def running(made: objects.VAN, bus: str) -> str:
    """The hostdev as libvirt shows it in a running guest, with an address."""
    element = etree.fromstring(made.guest_config)
    address = etree.SubElement(element, 'address', type='pci')
    for name, value in zip(
        ('domain', 'bus', 'slot', 'function'),
        ('0x0000', bus, '0x00', '0x0'),
        strict=True,
    ):
        address.set(name, value)
    return etree.tostring(element, encoding='unicode')


def identities(xml: str) -> list[str | None]:
    return [h.identity for h in domain_xml.hostdevs(domain_xml.parse(xml))]


def test_migration():
    old = [pci('0000:0c:00.1'), mdev()]
    new = [pci('0000:81:02.4', managed=False), mdev('nvidia-558')]
    foreign = "<hostdev mode='subsystem' type='usb'><source/></hostdev>"
    xml = domain(running(old[0], '0x05'), foreign, running(old[1], '0x06'))
    result = acc_plug_libvirt.update_domain_xml(xml, old, new)
    assert identities(result) == [
        new[0].handle.identity,
        None,
        new[1].handle.identity,
    ]
    root = etree.fromstring(result)
    first, _, second = root.findall('devices/hostdev')
    assert first.get('managed') == 'no'
    assert first.find('alias').get('name') == f'ua-acc-{new[0].uuid}'
    # The guest sees both at the same addresses as before.
    assert [e.find('address').get('bus') for e in (first, second)] == [
        '0x05',
        '0x06',
    ]
    assert root.find('devices/disk') is not None
    assert not any(str(v.uuid) in result for v in old)


def test_by_what_an_address_means():
    """libvirt writes 0x0c; other programs may write 12."""
    old, new = pci('0000:0c:00.1'), pci('0000:0d:00.1')
    xml = domain(
        "<hostdev mode='subsystem' type='pci'><source><address domain='0' "
        "bus='12' slot='0' function='1'/></source></hostdev>"
    )
    result = acc_plug_libvirt.update_domain_xml(xml, [old], [new])
    assert identities(result) == ['pci/0000:0d:00.1']


def test_two_that_change_places():
    """Each of the two VANs gets the device that the other had."""
    a, b = pci('0000:0c:00.1'), pci('0000:0c:00.2')
    xml = domain(a.guest_config, b.guest_config)
    new = [pci('0000:0c:00.2'), pci('0000:0c:00.1')]
    result = acc_plug_libvirt.update_domain_xml(xml, [a, b], new)
    assert identities(result) == ['pci/0000:0c:00.2', 'pci/0000:0c:00.1']


def test_nothing_for_the_guest():
    none = van(objects.TestHandle(name='none'))
    xml = domain()
    assert acc_plug_libvirt.update_domain_xml(
        xml, [none], [none]
    ) == xml.replace("'", '"')


def test_vfio_options_come_from_the_new_host(clean):
    import os_acc

    old = pci('0000:0c:00.1')
    acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    os_acc.CONF.set_override('vfio_driver', 'mlx5_vfio', 'os_acc_libvirt')
    new = pci('0000:0c:00.2')
    root = etree.fromstring(
        acc_plug_libvirt.update_domain_xml(
            domain(old.guest_config), [old], [new]
        )
    )
    assert root.find('devices/hostdev/driver').get('model') == 'mlx5_vfio'


@pytest.mark.parametrize(
    'case, says',
    [
        ('lists', 'new_vans is 0'),
        ('not there', 'which has 0'),
        ('twice', 'a device that the domain has only once'),
        ('in it already', 'a device that the domain has only once'),
        ('other type', 'a pci device'),
        ('an old one twice', 'VANs of different devices'),
        ('not prepared', 'guest_config'),
        ('no domain', 'domain'),
        ('no xml', 'a <domain>'),
    ],
)
def test_refused(case, says):
    old, other = pci('0000:0c:00.1'), pci('0000:0c:00.3')
    new = pci('0000:0c:00.2')
    xml = domain(old.guest_config, other.guest_config)
    olds, news = [old], [new]
    if case == 'lists':
        news = []
    elif case == 'not there':
        olds = [pci('0000:0c:00.7')]
    elif case == 'twice':
        olds, news = [old, other], [new, pci('0000:0c:00.2')]
    elif case == 'an old one twice':
        olds, news = [old, old], [new, pci('0000:0c:00.4')]
    elif case == 'in it already':
        news = [pci('0000:0c:00.3')]
    elif case == 'other type':
        news = [mdev()]
    elif case == 'not prepared':
        new.guest_config = None
    elif case == 'no domain':
        xml = '<network/>'
    else:
        xml = '<domain'
    with pytest.raises(exception.InvalidRequest) as err:
        acc_plug_libvirt.update_domain_xml(xml, olds, news)
    assert says in str(err.value)


addresses = st.lists(
    st.tuples(
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFF),
        st.integers(0, 0x1F),
        st.integers(0, 7),
    ).filter(any),
    min_size=2,
    max_size=8,
    unique=True,
)


@given(addresses)
def test_any_addresses_there_and_back(found):
    half = len(found) // 2
    texts = ['%04x:%02x:%02x.%x' % each for each in found]
    old = [pci(text) for text in texts[:half]]
    new = [pci(text) for text in texts[half : 2 * half]]
    xml = domain(*(each.guest_config for each in old))
    there = acc_plug_libvirt.update_domain_xml(xml, old, new)
    assert identities(there) == [v.handle.identity for v in new]
    back = acc_plug_libvirt.update_domain_xml(there, new, old)
    assert identities(back) == identities(xml)
