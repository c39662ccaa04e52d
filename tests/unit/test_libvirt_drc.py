# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""acc_plug_libvirt.drc: the DRC index of a hostdev of a pseries guest."""

from __future__ import annotations

import platform
import uuid

from hypothesis import given
from hypothesis import strategies as st
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import drc
from os_acc import exception
from os_acc import objects
from os_acc.objects import fields

VAN = '9ae35b76-f322-49dc-ab63-c80d16eb1810'

# From the device tree of QEMU 7.2.22 (-machine pseries,dumpdtb=), properties
# ibm,loc-code and ibm,my-drc-index, as (index, PHB, chassis, slot, function).
# There are PHBs 0, 7 and 30. PHB 7 has a pci-bridge (chassis_nr=5) in slot 3,
# which has another (chassis_nr=9) in slot 2.
RECORDED = (
    ('40000000', 0, 0, 0, 0),
    ('40000028', 0, 0, 5, 0),
    ('40000029', 0, 0, 5, 1),
    ('40070000', 7, 0, 0, 0),
    ('40070018', 7, 0, 3, 0),
    ('40070500', 7, 5, 0, 0),
    ('40070508', 7, 5, 1, 0),
    ('40070510', 7, 5, 2, 0),
    ('40070930', 7, 9, 6, 0),
    ('400709FF', 7, 9, 31, 7),
    ('401E00F8', 30, 0, 31, 0),
)

# From libvirt 9.0 (virsh dumpxml): only the controllers and hostdevs, with
# shortened aliases.
DOMAIN = """<domain type='qemu'>
  <name>os-acc</name>
  <os>
    <type arch='ppc64le' machine='pseries-7.2'>hvm</type>
    <boot dev='hd'/>
  </os>
  <devices>
    <emulator>/usr/bin/qemu-system-ppc64</emulator>
    <controller type='pci' index='0' model='pci-root'>
      <model name='spapr-pci-host-bridge'/>
      <target index='0'/>
    </controller>
    <controller type='pci' index='1' model='pci-root'>
      <model name='spapr-pci-host-bridge'/>
      <target index='7'/>
    </controller>
    <controller type='pci' index='2' model='pci-root'>
      <model name='spapr-pci-host-bridge'/>
      <target index='1'/>
    </controller>
    <controller type='pci' index='3' model='pci-bridge'>
      <model name='pci-bridge'/>
      <target chassisNr='5'/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x03' \
function='0x0'/>
    </controller>
    <controller type='pci' index='4' model='pci-bridge'>
      <model name='pci-bridge'/>
      <target chassisNr='4'/>
      <address type='pci' domain='0x0000' bus='0x03' slot='0x02' \
function='0x0'/>
    </controller>
    <controller type='usb' index='0' model='qemu-xhci'>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x01' \
function='0x0'/>
    </controller>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <driver name='vfio'/>
      <source>
        <address domain='0x0000' bus='0x0c' slot='0x00' function='0x1'/>
      </source>
      <alias name='ua-acc-9ae35b76-f322-49dc-ab63-c80d16eb1810'/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x04' \
function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source>
        <address domain='0x0000' bus='0x0c' slot='0x00' function='0x2'/>
      </source>
      <alias name='ua-acc-2'/>
      <address type='pci' domain='0x0000' bus='0x04' slot='0x1f' \
function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source>
        <address domain='0x0000' bus='0x0c' slot='0x00' function='0x3'/>
      </source>
      <alias name='ua-acc-3'/>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x02' \
function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci'>
      <source>
        <address uuid='21ceb89a-693d-421b-81d4-4e4e73b85c6d'/>
      </source>
      <alias name='ua-acc-4'/>
      <address type='pci' domain='0x0000' bus='0x03' slot='0x09' \
function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='usb' managed='yes'>
      <source>
        <address bus='1' device='2'/>
      </source>
    </hostdev>
  </devices>
</domain>
"""


def domain(
    controllers='',
    address="<address type='pci' bus='1' slot='3'/>",
    kind="arch='ppc64le' machine='pseries'",
):
    """A small domain, as a caller might write it."""
    return f"""
    <domain>
      <os><type {kind}>hvm</type></os>
      <devices>
        {controllers}
        <hostdev><alias name='ua-acc-{VAN}'/>{address}</hostdev>
      </devices>
    </domain>"""


def root(index, target=None, base=''):
    inner = '' if target is None else f"<target index='{base}{target}'/>"
    return (
        f"<controller type='pci' model='pci-root' index='{index}'>{inner}"
        '</controller>'
    )


def bridge(index, bus, slot=2, chassis="<target chassisNr='5'/>"):
    return (
        f"<controller type='pci' model='pci-bridge' index='{index}'>"
        f"{chassis}<address type='pci' bus='{bus}' slot='{slot}'/>"
        '</controller>'
    )


def at(bus, slot=3, function=0, more=''):
    return (
        f"<address type='pci' bus='{bus}' slot='{slot}' "
        f"function='{function}' {more}/>"
    )


def refused(text, hostdev=VAN):
    with pytest.raises(exception.InvalidRequest) as caught:
        drc.drc_index_of(text, hostdev)
    return caught.value.kwargs['field'], caught.value.kwargs['value']


class TestIndex:
    @pytest.mark.parametrize('row', RECORDED, ids=lambda row: row[0])
    def test_recorded(self, row):
        index, phb, chassis, slot, function = row
        assert drc.drc_index(phb, slot, function, chassis) == index

    def test_defaults(self):
        assert drc.drc_index(0, 5) == '40000028'

    @given(
        phb=st.integers(0, 30),
        slot=st.integers(0, 31),
        function=st.integers(0, 7),
        chassis=st.integers(0, 255),
    )
    def test_reversible(self, phb, slot, function, chassis):
        """No two places have the same index. A DRCHandle accepts it."""
        text = drc.drc_index(phb, slot, function, chassis)
        assert fields.DRCIndex().coerce(None, 'drc_index', text) == text
        number = int(text, 16)
        assert number >> 28 == 4
        assert number >> 16 & 0xFFF == phb
        assert number >> 8 & 0xFF == chassis
        assert number >> 3 & 0x1F == slot
        assert number & 7 == function

    def test_unique(self):
        """All places with two chassis have different indexes."""
        places = [
            drc.drc_index(phb, slot, function, chassis)
            for phb in range(31)
            for slot in range(32)
            for function in range(8)
            for chassis in (0, 255)
        ]
        assert len(set(places)) == len(places) == 15872

    @given(
        field=st.sampled_from(
            [
                ('phb_index', 30, '0 to 30'),
                ('slot', 31, '0 to 31'),
                ('function', 7, '0 to 7'),
                ('chassis', 255, '0 to 255'),
            ]
        ),
        past=st.integers(1),
        below=st.booleans(),
    )
    def test_ranges(self, field, past, below):
        name, most, expected = field
        value = -past if below else most + past
        values = {'phb_index': 1, 'slot': 1, name: value}
        with pytest.raises(exception.InvalidRequest) as caught:
            drc.drc_index(**values)
        got = caught.value.kwargs
        assert (got['field'], got['value']) == (name, value)
        assert got['expected'] == expected


class TestFromLibvirt:
    @pytest.mark.parametrize(
        ('hostdev', 'index'),
        [
            (VAN, '40070020'),
            (VAN.upper(), '40070020'),
            (f'ua-acc-{VAN}', '40070020'),
            ('ua-acc-2', '400704F8'),
            ('ua-acc-3', '40000010'),
            ('ua-acc-4', '40070548'),
        ],
    )
    def test_recorded(self, hostdev, index):
        assert drc.drc_index_of(DOMAIN, hostdev) == index

    @pytest.mark.parametrize(
        'hostdev', ['ua-acc-9', 'ua-acc', '', 'c' + VAN[1:], "' or '1'='1"]
    )
    def test_no_such_hostdev(self, hostdev):
        with pytest.raises(exception.DeviceNotFound):
            drc.drc_index_of(DOMAIN, hostdev)

    def test_declaration(self):
        text = '<?xml version="1.0" encoding="UTF-16"?>' + DOMAIN
        assert drc.drc_index_of(text, VAN) == '40070020'


class TestMachine:
    @pytest.mark.parametrize(
        'kind',
        [
            "arch='ppc64' machine='pseries'",
            "arch='ppc64le' machine='pseries-2.4'",
            "arch='ppc64le' machine='pseries-rhel8.6.0'",
        ],
    )
    def test_has(self, kind):
        text = domain(root(1, 7), kind=kind)
        assert drc.drc_index_of(text, VAN) == '40070018'

    @pytest.mark.parametrize(
        'kind',
        [
            '',
            "arch='ppc64le'",
            "arch='ppc64le' machine='powernv9'",
            "arch='ppc64le' machine='pseriesx'",
            "arch='ppc64' machine='pseries-2.1'",
            "arch='ppc64' machine='pseries-2.3'",
            "arch='x86_64' machine='pc-q35-7.2'",
            "arch='x86_64' machine='pseries'",
        ],
    )
    def test_has_not(self, kind):
        assert drc.drc_index_of(domain(root(1, 7), kind=kind), VAN) is None

    def test_no_type(self):
        assert drc.drc_index_of('<domain/>', VAN) is None


class TestAddress:
    @pytest.mark.parametrize(
        'address',
        [
            '',
            "<address type='pci'/>",
            at(0, 0),
            at(0, 0, 1),
            "<address type='spapr-vio' reg='0x1000'/>",
            "<source><address domain='0' bus='1' slot='3'/></source>",
        ],
    )
    def test_none(self, address):
        assert drc.drc_index_of(domain(root(1, 7), address), VAN) is None

    @pytest.mark.parametrize('number', ['16', '0x10', '0X10', '0x0010', '020'])
    def test_spelling(self, number):
        text = domain(root(0), at(0, number))
        assert drc.drc_index_of(text, VAN) == '40000080'

    @pytest.mark.parametrize(
        'number', ['', 'x', '-1', '1_0', ' 1', '0x', '08', '0b1', '٣']
    )
    def test_not_a_number(self, number):
        assert refused(domain(root(0), at(0, number))) == ('slot', number)

    @pytest.mark.parametrize(
        ('address', 'field', 'value'),
        [
            (at(1, 0), 'slot', 0),
            (at(1, 32), 'slot', 32),
            (at(1, 1, 8), 'function', 8),
            (at(256), 'bus', 256),
            (at(1, more="domain='1'"), 'domain', 1),
        ],
    )
    def test_ranges(self, address, field, value):
        assert refused(domain(root(1, 7), address)) == (field, value)

    @given(
        phb=st.integers(1, 30),
        index=st.integers(1, 255),
        slot=st.integers(1, 31),
        function=st.integers(0, 7),
    )
    def test_any(self, phb, index, slot, function):
        text = domain(
            root(0, 0) + root(index, phb), at(hex(index), slot, function)
        )
        assert drc.drc_index_of(text, VAN) == drc.drc_index(
            phb, slot, function
        )


class TestControllers:
    @pytest.mark.parametrize('first', ['', root(0), root(0, 0), root('00')])
    def test_first(self, first):
        assert drc.drc_index_of(domain(first, at(0)), VAN) == '40000018'

    def test_target_spelling(self):
        text = domain(root(1, 10, base='0x'))
        assert drc.drc_index_of(text, VAN) == '40100018'

    def test_other_types(self):
        """Each type of controller has its own indexes."""
        usb = "<controller type='usb' index='1' model='qemu-xhci'/>"
        text = domain(root(1, 7) + usb)
        assert drc.drc_index_of(text, VAN) == '40070018'

    @pytest.mark.parametrize(
        ('controllers', 'field', 'value'),
        [
            (root(0), 'model', None),
            (
                root(1, 7).replace('pci-root', 'pcie-root'),
                'model',
                'pcie-root',
            ),
            (root(1), 'index', None),
            (root(1, 0), 'target index', 0),
            (root(1, 31), 'target index', 31),
            (root('0x1', 7), 'index', '0x1'),
            (bridge(1, 0, chassis=''), 'chassisNr', None),
            (
                bridge(1, 0, chassis="<target chassisNr='0'/>"),
                'chassisNr',
                0,
            ),
            (
                bridge(1, 0, chassis="<target chassisNr='256'/>"),
                'chassisNr',
                256,
            ),
            (bridge(1, 0, slot=0), 'bus', None),
            (bridge(1, 9), 'model', None),
            (bridge(1, 1), 'bus', 1),
            (bridge(1, 2) + bridge(2, 1), 'bus', 1),
        ],
    )
    def test_refused(self, controllers, field, value):
        assert refused(domain(controllers)) == (field, value)

    def test_target_of_the_first(self):
        assert refused(domain(root(0, 3), at(0))) == ('target index', 3)

    def test_nested(self):
        text = domain(
            root(4, 30)
            + bridge(3, 4)
            + bridge(2, 3, chassis="<target chassisNr='6'/>")
            + bridge(1, 2, chassis="<target chassisNr='0xff'/>"),
            at(1, 31, 7),
        )
        assert drc.drc_index_of(text, VAN) == '401EFFFF'


class TestXML:
    @pytest.mark.parametrize('text', ['', '<', 'x', '<domain>'])
    def test_malformed(self, text):
        assert refused(text)[0] == 'XML'

    def test_not_a_domain(self):
        text = f'<domainsnapshot>{DOMAIN}</domainsnapshot>'
        assert refused(text) == ('root element', 'domainsnapshot')

    def test_no_entities(self, tmp_path):
        """The parser reads no file of the host and expands no entity."""
        secret = tmp_path / 'alias'
        secret.write_text(f"<alias name='ua-acc-{VAN}'/>", encoding='ascii')
        text = f"""<!DOCTYPE domain [
            <!ENTITY alias SYSTEM '{secret.as_uri()}'>
        ]>
        <domain>
          <os><type arch='ppc64' machine='pseries'>hvm</type></os>
          <devices><hostdev>&alias;</hostdev></devices>
        </domain>"""
        with pytest.raises(exception.DeviceNotFound):
            drc.drc_index_of(text, VAN)


@pytest.mark.parametrize(
    ('machine', 'hint', 'expected'),
    [
        ('ppc64le', '00:05.0', {'drc_index': '40000028'}),
        ('ppc64', '0000:00:1f.7', {'drc_index': '400000FF'}),
        # Only the domain tells which PHB this bus belongs to.
        ('ppc64le', '01:05.0', {}),
        ('ppc64le', None, {}),
        ('x86_64', '00:05.0', {}),
    ],
)
def test_the_plugin_notes_it_where_it_is_known(
    monkeypatch, machine, hint, expected
):
    monkeypatch.setattr(platform, 'machine', lambda: machine)
    data = {} if hint is None else {'guest_address': hint}
    van = objects.VAN(
        uuid=uuid.uuid4(),
        handle=objects.PCIHandle(address='0c:00.1'),
        driver_data=data,
    )
    instance = objects.InstanceInfo(
        uuid=uuid.uuid4(), name='i', project_id='p'
    )
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    plugin.plug(van, instance, live=False)
    assert van.driver_data == data | expected
