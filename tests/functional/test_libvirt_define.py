# SPDX-License-Identifier: Apache-2.0

"""libvirt accepts the XML and returns it unchanged.

libvirt's tools and its test driver (test:///default, libvirt 9.0 or later)
need no hypervisor. If one of them is missing, the tests fail.
"""

from __future__ import annotations

import subprocess
import uuid

import libvirt
from lxml import etree
from oslo_config import cfg
import pytest

import acc_plug_libvirt
from os_acc import objects

URI = 'test:///default'
INSTANCE = objects.InstanceInfo(uuid=uuid.uuid4(), name='n', project_id='p')
# The guest has buses 5 and 6 for guest addresses.
DOMAIN = """
<domain type='test'>
  <name>os-acc</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='5' model='pcie-root-port'/>
    <controller type='pci' index='6' model='pcie-root-port'/>
    <graphics type='vnc'/>
    {hostdevs}
  </devices>
</domain>
"""


def pci(address='0000:0c:00.1', **fields):
    return objects.PCIHandle(address=address, **fields)


def mdev(name='nvidia-223'):
    return objects.MdevHandle(
        uuid=uuid.uuid4(), parent='0000:65:00.0', type=name
    )


def block(kind='uuid.'):
    wwn = f'{kind}{uuid.uuid4()}'
    if kind == 'eui.':
        wwn = wwn.replace('-', '')
    path = f'/dev/disk/by-id/nvme-{wwn}'
    return objects.BlockHandle(path=path, wwn=wwn)


# Name: the options, and the handles, each with its driver_data. The options
# vfio_driver and iommufd need later versions of libvirt.
VARIETIES = {
    'pci': ({}, [(pci(), {})]),
    'pci, not managed': ({'managed': False}, [(pci(), {})]),
    'pci, handle not managed': ({}, [(pci(managed=False), {})]),
    'pci, domain above ffff': ({}, [(pci('10000:e1:00.0'), {})]),
    'pci, highest address': ({}, [(pci('ffffffff:ff:1f.7'), {})]),
    'pci, rom on': ({'rom_bar': True}, [(pci(), {})]),
    'pci, rom off': ({'rom_bar': False}, [(pci(), {})]),
    'pci, guest address': ({}, [(pci(), {'guest_address': '05:00.0'})]),
    'pci, guest address by option': (
        {'guest_addresses': ['0c:00.1=0000:06:00.0'], 'rom_bar': True},
        [(pci(), {}), (pci('0c:00.2'), {'guest_address': '05:00.0'})],
    ),
    'mdev': ({}, [(mdev(), {})]),
    'mdev, vfio-pci': ({}, [(mdev(), {'device_api': 'vfio-pci'})]),
    'mdev, vfio-ap': ({}, [(mdev(), {'device_api': 'vfio-ap'})]),
    'mdev, vfio-ccw': ({}, [(mdev(), {'device_api': 'vfio-ccw'})]),
    'mdev, vfio-ap by type': ({}, [(mdev('vfio_ap-passthrough'), {})]),
    'mdev, vfio-ccw by type': ({}, [(mdev('vfio_ccw-io'), {})]),
    'mdev, display': ({'display': True}, [(mdev(), {})]),
    'mdev, display and ramfb': (
        {'display': True, 'ramfb': True},
        [(mdev(), {}), (mdev('vfio_ap-passthrough'), {})],
    ),
    'mdev, guest address': ({}, [(mdev(), {'guest_address': '05:00.0'})]),
    'block': ({}, [(block(), {}), (block('eui.'), {})]),
    'mixed': (
        {'managed': False, 'rom_bar': True, 'display': True},
        [
            (pci(), {'guest_address': '05:00.0'}),
            (mdev(), {'guest_address': '06:00.0'}),
            (pci('10000:e1:00.0', managed=True), {}),
            (mdev('vfio_ap-passthrough'), {}),
            (mdev('vfio_ccw-io'), {}),
            (block(), {}),
            (objects.TestHandle(name='0c:00.1'), {}),
        ],
    ),
    'many': ({}, [(pci(f'0c:{n // 8:02x}.{n % 8}'), {}) for n in range(64)]),
}


@pytest.fixture(params=VARIETIES)
def vans(request):
    """Plug the VANs of one case. Returns them with their guest_config."""
    options, handles = VARIETIES[request.param]
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    for name, value in options.items():
        cfg.CONF.set_override(name, value, 'os_acc_libvirt')
    made = [
        objects.VAN(uuid=uuid.uuid4(), handle=handle, driver_data=driver_data)
        for handle, driver_data in handles
    ]
    for van in made:
        plugin.plug(van, INSTANCE, live=False)
    yield made
    for name in options:
        cfg.CONF.clear_override(name, 'os_acc_libvirt')


@pytest.fixture
def xml(vans):
    configs = [van.guest_config or '' for van in vans]
    return DOMAIN.format(uuid=uuid.uuid4(), hostdevs=''.join(configs))


@pytest.fixture
def file(xml, tmp_path):
    path = tmp_path / 'domain.xml'
    path.write_text(xml, encoding='utf-8')
    return path


def run(*command):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def meaning(element):
    children = [meaning(child) for child in element]
    return element.tag, dict(element.attrib), sorted(children, key=str)


def hostdevs(xml):
    """Return the hostdevs and disks of a domain by alias."""
    root = etree.fromstring(xml)
    return {
        found.find('alias').get('name'): (
            *meaning(found)[:2],
            # libvirt adds where the guest sees a disk.
            [
                c
                for c in meaning(found)[2]
                if found.tag != 'disk' or (c[0] != 'address')
            ],
        )
        for found in (
            *root.iterfind('devices/hostdev'),
            *root.iterfind('devices/disk'),
        )
    }


def test_schema(file):
    run('virt-xml-validate', str(file), 'domain')


def test_virsh(file, xml):
    assert 'defined' in run('virsh', '-c', URI, 'define', str(file))
    # Each virsh has its own test driver: define and show in one virsh.
    shown = run(
        'virsh',
        '--quiet',
        '-c',
        URI,
        f'define --validate {file}; dumpxml os-acc',
    )
    shown = shown[shown.index('<domain') :]
    assert hostdevs(shown) == hostdevs(xml)


def test_define(xml, vans):
    connection = libvirt.open(URI)
    try:
        domain = connection.defineXML(xml)
        back = hostdevs(domain.XMLDesc())
        domain.undefine()
    finally:
        connection.close()
    # Every attribute is unchanged, and none is added.
    assert back == hostdevs(xml)
    assert set(back) == {
        f'ua-acc-{van.uuid}' for van in vans if van.guest_config
    }
    for van in vans:
        if van.guest_config:
            _, attributes, children = back[f'ua-acc-{van.uuid}']
            source = next(c for c in children if c[0] == 'source')
            if isinstance(van.handle, objects.BlockHandle):
                assert source[1]['dev'] == van.handle.path
                continue
            assert attributes['mode'] == 'subsystem'
            assert identity(source[2][0][1]) == van.handle.identity


def identity(address):
    if 'uuid' in address:
        return f'mdev/{address["uuid"]}'
    parts = {key: int(value, 16) for key, value in address.items()}
    return 'pci/{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'.format(**parts)


def test_a_wrong_hostdev_would_be_refused(tmp_path):
    """libvirt really checks the XML of the tests above."""
    wrong = "<hostdev mode='subsystem' type='mdev' model='vfio-pc'/>"
    path = tmp_path / 'domain.xml'
    text = DOMAIN.format(uuid=uuid.uuid4(), hostdevs=wrong)
    path.write_text(text, encoding='utf-8')
    for command in (
        ['virt-xml-validate', str(path), 'domain'],
        ['virsh', '-c', URI, 'define', str(path)],
    ):
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode != 0
    connection = libvirt.open(URI)
    try:
        with pytest.raises(libvirt.libvirtError, match='hostdev'):
            connection.defineXML(text)
    finally:
        connection.close()
