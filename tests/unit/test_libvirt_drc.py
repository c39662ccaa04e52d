# SPDX-License-Identifier: Apache-2.0

"""acc_plug_libvirt.drc: the DRC index of a hostdev of a pseries guest."""

from __future__ import annotations

import platform
import uuid

import pytest

import acc_plug_libvirt
from acc_plug_libvirt import drc
from os_acc import objects
from os_acc.objects import fields


def hostdev(attributes: str) -> str:
    return f"<hostdev><address type='pci' {attributes}/></hostdev>"


# From the device tree of QEMU 7.2.22 (-machine pseries,dumpdtb=), properties
# ibm,loc-code and ibm,my-drc-index.
@pytest.mark.parametrize(
    ('slot', 'function', 'index'),
    [
        (1, 0, '40000008'),
        (5, 0, '40000028'),
        (5, 1, '40000029'),
        (31, 7, '400000FF'),
    ],
)
def test_recorded(slot, function, index):
    text = hostdev(
        f"domain='0x0000' bus='0x00' slot='{slot:#04x}' "
        f"function='{function:#x}'"
    )
    assert drc.drc_index(text) == index


def test_every_place_has_an_index_of_its_own():
    found = {
        drc.drc_index(hostdev(f"slot='{slot:#x}' function='{function}'"))
        for slot in range(1, 32)
        for function in range(8)
    }
    assert len(found) == 31 * 8
    for index in found:
        assert fields.DRCIndex().coerce(None, 'drc_index', index) == index


@pytest.mark.parametrize(
    'text',
    [
        '<hostdev/>',
        hostdev("bus='0x01' slot='0x05'"),
        hostdev("domain='0x0001' bus='0x00' slot='0x05'"),
        hostdev("bus='0x00' slot='0x00' function='0x1'"),
        "<hostdev><source><address domain='0' slot='5'/></source></hostdev>",
    ],
)
def test_unknown(text):
    assert drc.drc_index(text) is None


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
