# SPDX-License-Identifier: Apache-2.0

"""The XML of a domain that is migrated live with its devices."""

from __future__ import annotations

import uuid

from lxml import etree
import pytest

import acc_plug_libvirt
import os_acc
from os_acc import exception
from os_acc import objects

INSTANCE = objects.InstanceInfo(uuid=uuid.uuid4(), name='n', project_id='p')

# As libvirt shows a running guest (VIR_DOMAIN_XML_MIGRATABLE).
DOMAIN = """\
<domain type="kvm" id="7">
  <name>guest</name>
  <devices>
    <disk type="file" device="disk"><target dev="vda"/></disk>
    <hostdev mode="subsystem" type="mdev" managed="no" model="vfio-pci" \
display="on" ramfb="on">
      <source>
        <address uuid="{mdev}"/>
      </source>
      <alias name="ua-acc-{first}"/>
      <address type="pci" domain="0x0000" bus="0x05" slot="0x00" \
function="0x0"/>
    </hostdev>
    <hostdev mode="subsystem" type="usb"><source/></hostdev>
    <hostdev mode="subsystem" type="pci" managed="no">
      <driver name="vfio"/>
      <source>
        <address domain="0x0000" bus="0x3b" slot="0x02" function="0x1"/>
      </source>
      <alias name="hostdev2"/>
      <rom bar="off"/>
      <address type="pci" domain="0x0000" bus="0x06" slot="0x00" \
function="0x0"/>
    </hostdev>
  </devices>
</domain>"""


@pytest.fixture
def plugin(clean):
    made = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    # What is guest-visible on the source and not on the target stays.
    os_acc.CONF.set_override(
        'guest_addresses', ['0000:81:00.3=0000:00:1f.0'], 'os_acc_libvirt'
    )
    return made


def van(plugin, name, handle, **hints):
    made = objects.VAN(
        uuid=name,
        instance_uuid=INSTANCE.uuid,
        driver='pci',
        plugin='libvirt',
        state='plugged',
        handle=handle,
        driver_data=hints,
        boot_id='boot',
    )
    plugin.plug(made, INSTANCE, False)
    return made


def pci(plugin, name, address, managed=False, **hints):
    handle = objects.PCIHandle(address=address, managed=managed)
    return van(plugin, name, handle, **hints)


def mdev(plugin, name):
    handle = objects.MdevHandle(
        uuid=uuid.uuid4(), parent='mtty', type='mtty-2'
    )
    return van(plugin, name, handle)


def block(plugin, name, wwn):
    path = f'/dev/disk/by-id/nvme-{wwn}'
    return van(plugin, name, objects.BlockHandle(path=path, wwn=wwn))


def names(count=2):
    return [str(uuid.uuid4()) for _ in range(count)]


@pytest.fixture
def moved(plugin):
    """The VANs of the source and of the target, and the domain's XML."""
    first, second = names()
    source = [mdev(plugin, first), pci(plugin, second, '0000:3b:02.1')]
    target = [pci(plugin, second, '0000:81:00.3'), mdev(plugin, first)]
    text = DOMAIN.format(mdev=source[0].handle.uuid, first=first)
    return source, target, text


def test_only_the_devices_of_the_host_change(plugin, moved):
    source, target, text = moved
    found = plugin.migration_map(source, target)
    assert [each.uuid for each in found.changes] == [v.uuid for v in source]
    assert plugin.redefine(text, found) == (
        text.replace(source[0].handle.uuid, target[1].handle.uuid)
        .replace('bus="0x3b"', 'bus="0x81"')
        .replace('slot="0x02" function="0x1"', 'slot="0x00" function="0x3"')
    )


def test_the_map_says_what_changes_and_no_more(plugin, moved):
    source, target, _ = moved
    second = plugin.migration_map(source, target).changes[1]
    assert second.target == (
        '<hostdev mode="subsystem" type="pci" managed="no"><source><address '
        'domain="0x0000" bus="0x81" slot="0x00" function="0x3"/></source>'
        '</hostdev>'
    )


def test_who_binds_it_on_the_target(plugin):
    """The source's function is bound by os-acc, and the target's by libvirt.

    libvirt then has to know the VFIO driver.
    """
    (name,) = names(1)
    source = pci(plugin, name, '0000:3b:02.1')
    target = pci(
        plugin, name, '0000:3b:02.2', managed=True, vfio_driver='mlx5_vfio_pci'
    )
    found = plugin.migration_map([source], [target])
    domain = f'<domain><devices>{source.guest_config}</devices></domain>'
    root = etree.fromstring(plugin.redefine(domain, found))
    (element,) = root.iter('hostdev')
    assert element.get('managed') == 'yes'
    assert [child.tag for child in element] == ['driver', 'source', 'alias']
    assert element.find('driver').get('model') == 'mlx5_vfio_pci'
    back = plugin.migration_map([target], [source])
    there = etree.tostring(root, encoding='unicode')
    (element,) = etree.fromstring(plugin.redefine(there, back)).iter('hostdev')
    assert element.get('managed') == 'no'
    assert element.find('driver') is None


def test_a_disk_keeps_its_target_and_serial(plugin):
    (name,) = names(1)
    source = block(plugin, name, 'uuid.' + str(uuid.uuid4()))
    target = block(plugin, name, 'uuid.' + str(uuid.uuid4()))
    found = plugin.migration_map([source], [target])
    domain = f'<domain><devices>{source.guest_config}</devices></domain>'
    assert plugin.redefine(domain, found) == domain.replace(
        f'dev="{source.handle.path}"', f'dev="{target.handle.path}"'
    )


def test_what_no_domain_has(plugin):
    (name,) = names(1)
    test = van(plugin, name, objects.TestHandle(name='t'))
    found = plugin.migration_map([test], [test])
    assert found.changes == []
    assert plugin.redefine('<domain/>', found) == '<domain/>'


def refused(act, *args):
    with pytest.raises(exception.InvalidRequest) as caught:
        act(*args)
    return str(caught.value)


def test_vans_that_do_not_fit(plugin, moved):
    source, target, _ = moved
    act = plugin.migration_map
    assert 'one VAN with each UUID' in refused(act, source, target[:1])
    other = pci(plugin, source[0].uuid, '0000:3b:02.2')
    says = refused(act, source, [other, target[0]])
    assert 'expected a hostdev of type mdev, as on the source' in says


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        (None, 'a <hostdev> or <disk>'),
        ('<hostdev', 'a <hostdev> or <disk>'),
        ('<interface/>', 'a <hostdev> or <disk>'),
        ('<hostdev mode="subsystem" type="pci"/>', 'the element of pci/0000'),
        (
            '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/hostname">]>'
            '<hostdev mode="subsystem" type="&e;"/>',
            'expected',
        ),
        (
            '<!DOCTYPE x [<!ENTITY e "1">]><hostdev mode="subsystem" '
            'type="pci"><source>&e;<address bus="0x81" function="0x3"/>'
            '</source></hostdev>',
            'no DOCTYPE',
        ),
        ('\ud800', 'a <hostdev> or <disk>'),
    ],
)
def test_what_the_target_says_is_not_trusted(plugin, moved, text, says):
    source, target, _ = moved
    target[0].guest_config = text
    assert says in refused(plugin.migration_map, source, target)


def test_the_target_names_another_device_than_its_handle(plugin, moved):
    source, target, _ = moved
    target[0].guest_config = target[0].guest_config.replace('0x81', '0x82')
    says = refused(plugin.migration_map, source, target)
    assert 'the element of pci/0000:81:00.3' in says


def test_a_domain_that_does_not_fit(plugin, moved):
    source, target, text = moved
    found = plugin.migration_map(source, target)
    act = plugin.redefine
    assert '<domain>' in refused(act, '<domain', found)
    assert '<domain>' in refused(act, '\ud800', found)
    assert 'exactly one such device' in refused(
        act, text.replace('0x3b', '0x3c'), found
    )
    # The alias is there, and the device is another one.
    assert 'exactly one such device' in refused(
        act, text.replace(source[0].handle.uuid, str(uuid.uuid4())), found
    )
    again = text.replace(
        '<hostdev mode="subsystem" type="usb"><source/></hostdev>',
        target[0].guest_config.replace(target[0].uuid, str(uuid.uuid4())),
    )
    assert 'only once' in refused(act, again, found)


def test_a_map_that_is_wrong(plugin, moved):
    source, target, text = moved
    act = plugin.redefine
    found = plugin.migration_map(source, target)
    found.format = 'cdi-device'
    assert 'expected libvirt-xml' in refused(act, text, found)
    found.format = 'libvirt-xml'
    found.changes[1].target = '<hostdev mode="subsystem" type="pci"/>'
    assert 'an element that names a device' in refused(act, text, found)
    found.changes[1].target = found.changes[0].target
    assert 'expected a hostdev of type pci' in refused(act, text, found)
