# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""KVM on Power: drc.py agrees with QEMU's device trees and libvirt's argv.

Needs qemu-system-ppc64, dtc's fdtget, and virsh with libvirt's QEMU driver
(Debian: qemu-system-ppc, device-tree-compiler, libvirt-clients,
libvirt-daemon-driver-qemu). If one of them is missing, the tests fail. KVM is
not needed, and no guest ever runs.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import pwd
import re
import shlex
import subprocess
import tempfile
import uuid

from lxml import etree
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import drc
from os_acc import exception
from os_acc import objects

QEMU = 'qemu-system-ppc64'
# The unit address of a PHB's node is its BUID (QEMU: spapr_phb_placement).
BUID = 0x800000020000000
# A PCI function that needs no device of the host.
DEVICE = 'pci-testdev'


def run(*command, **options):
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- QEMU's device tree ---


def device_tree(folder, devices, machine='pseries'):
    """Read every PCI function under the PHBs from QEMU's device tree.

    :param devices: the arguments of the options -device
    :returns: ibm,my-drc-index or None, by (PHB index, (slot, function) of each
        bridge on the way, (slot, function) of the function itself)
    """
    dtb = folder / 'guest.dtb'
    command = [QEMU, '-nodefaults', '-display', 'none', '-accel', 'tcg']
    command += ['-m', '256', '-machine', f'{machine},dumpdtb={dtb}']
    for device in devices:
        command += ['-device', device]
    run(*command)
    found = {}
    for phb in nodes(dtb, '/'):
        if phb.startswith('pci@'):
            index = int(phb.removeprefix('pci@'), 16) - BUID
            walk(dtb, f'/{phb}', (index,), found)
    pairs = [
        word for path in found.values() for word in (path, 'ibm,my-drc-index')
    ]
    shown = run('fdtget', '-t', 'x', '-d', 'none', str(dtb), *pairs)
    values = [
        None if line == 'none' else f'{int(line, 16):08X}'
        for line in shown.split()
    ]
    return dict(zip(found, values, strict=True))


def nodes(dtb, path):
    return run('fdtget', '-l', str(dtb), path).split()


def walk(dtb, path, place, found):
    for name in nodes(dtb, path):
        # IEEE 1275, PCI binding: the unit address is slot[,function].
        numbers = [int(n, 16) for n in name.partition('@')[2].split(',')]
        here = (*place, (numbers[0], *numbers[1:], 0)[:2])
        found[here] = f'{path}/{name}'
        if name.startswith('pci@'):
            walk(dtb, f'{path}/{name}', here, found)


def phb(index):
    return f'spapr-pci-host-bridge,index={index},id=phb{index}'


def bridge(name, bus, slot, chassis):
    return f'pci-bridge,id={name},bus={bus},addr={slot:x},chassis_nr={chassis}'


def device(bus, slot, function=0):
    multi = '' if function else ',multifunction=on'
    return f'{DEVICE},bus={bus},addr={slot:x}.{function}{multi}'


def test_every_place_of_phbs(tmp_path, report):
    """Slot 0 too, because QEMU accepts it."""
    buses = {0: 'pci.0', 1: 'phb1.0', 17: 'phb17.0', 30: 'phb30.0'}
    places = [
        (index, slot, function)
        for index in buses
        for slot in range(32)
        for function in range(8)
    ]
    tree = device_tree(
        tmp_path,
        [phb(index) for index in buses if index]
        + [device(buses[index], *place) for index, *place in places],
    )
    assert tree == {
        (index, (slot, function)): drc.drc_index(index, slot, function)
        for index, slot, function in places
    }
    report(f'pseries: {len(tree)} DRC indexes of PHBs, as QEMU has them')


def test_every_phb(tmp_path):
    tree = device_tree(
        tmp_path,
        [phb(index) for index in range(1, 31)]
        + [device(f'phb{index}.0', 9) for index in range(1, 31)],
    )
    assert tree == {
        (index, (9, 0)): drc.drc_index(index, 9) for index in range(1, 31)
    }


def test_bridges(tmp_path, report):
    """The innermost bridge gives the chassis. Bridges have indexes too."""
    # name: bus, slot, chassis, PHB, slots of the bridges above
    bridges = {
        'a': ('phb7.0', 3, 5, 7, ()),
        'b': ('a', 2, 9, 7, (3,)),
        'c': ('b', 31, 255, 7, (3, 2)),
        'd': ('phb7.0', 4, 1, 7, ()),
        'e': ('pci.0', 1, 200, 0, ()),
    }
    chassis_of = {name: row[2] for name, row in bridges.items()}
    devices = [phb(7)]
    expected = {}
    for name, (bus, slot, chassis, index, above) in bridges.items():
        devices.append(bridge(name, bus, slot, chassis))
        way = (index, *((n, 0) for n in above), (slot, 0))
        expected[way] = drc.drc_index(index, slot, 0, chassis_of.get(bus, 0))
        for place in ((0, 0), (6, 0), (6, 5), (30, 7)):
            devices.append(device(name, *place))
            expected[*way, place] = drc.drc_index(index, *place, chassis)
        devices.append(device(name, 30))
        expected[*way, (30, 0)] = drc.drc_index(index, 30, 0, chassis)
    assert device_tree(tmp_path, devices) == expected
    report(f'pseries: {len(expected)} DRC indexes of bridges')


@pytest.mark.parametrize('version', ['2.1', '2.2', '2.3', '2.4', '4.0'])
def test_old_machines(tmp_path, version):
    """drc.py knows which machine types have connectors."""
    machine = f'pseries-{version}'
    tree = device_tree(tmp_path, [device('pci.0', 5)], machine)
    text = f"""
    <domain><os><type arch='ppc64' machine='{machine}'>hvm</type></os>
    <devices><hostdev><alias name='ua-acc-1'/>
    <address type='pci' slot='5'/></hostdev></devices></domain>"""
    assert tree == {(0, (5, 0)): drc.drc_index_of(text, 'ua-acc-1')}


@pytest.mark.parametrize(
    ('devices', 'values'),
    [
        ([phb(31)], {'phb_index': 31, 'slot': 1}),
        ([device('pci.0', 32)], {'phb_index': 0, 'slot': 32}),
        ([f'{DEVICE},addr=1.8'], {'phb_index': 0, 'slot': 1, 'function': 8}),
        (
            [bridge('a', 'pci.0', 1, 256)],
            {'phb_index': 0, 'slot': 1, 'chassis': 256},
        ),
    ],
    ids=lambda value: str(value),
)
def test_refused_by_both(tmp_path, devices, values):
    with pytest.raises(AssertionError, match=QEMU):
        device_tree(tmp_path, devices)
    with pytest.raises(exception.InvalidRequest):
        drc.drc_index(**values)


# --- libvirt's translation ---

HEAD = """
<domain type='qemu'>
  <name>os-acc</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>256</memory>
  <vcpu>1</vcpu>
  <os><type arch='ppc64le' machine='pseries'>hvm</type></os>
  <devices>{devices}</devices>
</domain>
"""


class Libvirt:
    """libvirt's QEMU driver embedded in virsh, without daemon and socket.

    All its files are in one folder (https://libvirt.org/drvqemu.html#uris). It
    runs as nobody, because as root it needs the user libvirt-qemu.
    """

    def __init__(self, folder):
        self.folder = folder
        self.options = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam('nobody')
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self.options = {
                'user': nobody.pw_uid,
                'group': nobody.pw_gid,
                'extra_groups': [],
            }

    def _virsh(self, *commands):
        return run(
            'virsh',
            '--quiet',
            '-c',
            f'qemu:///embed?root={self.folder}',
            '; '.join(commands),
            env={
                'PATH': os.environ['PATH'],
                'HOME': str(self.folder),
                'LC_ALL': 'C',
            },
            cwd=self.folder,
            **self.options,
        )

    def _file(self, text):
        path = self.folder / f'{uuid.uuid4()}.xml'
        path.write_text(text, encoding='utf-8')
        path.chmod(0o644)
        return path

    def define(self, text):
        """The domain's XML as libvirt gives it back."""
        shown = self._virsh(
            f'define --validate {self._file(text)}',
            'dumpxml os-acc',
            'undefine os-acc',
        )
        return shown[shown.index('<domain') : shown.index('</domain>') + 9]

    def devices(self, text):
        """The -device options that it would start QEMU with, by id."""
        words = shlex.split(
            self._virsh(f'domxml-to-native qemu-argv {self._file(text)}')
        )
        options = [
            json.loads(after)
            for word, after in itertools.pairwise(words)
            if word == '-device'
        ]
        return {option['id']: option for option in options}


@pytest.fixture(scope='module')
def libvirt():
    # Only root can enter pytest's folder.
    with tempfile.TemporaryDirectory(prefix='os-acc-') as name:
        yield Libvirt(pathlib.Path(name))


def root(index, target=None):
    inner = '' if target is None else f"<target index='{target}'/>"
    return (
        f"<controller type='pci' index='{index}' model='pci-root'>{inner}"
        '</controller>'
    )


def pci_bridge(index, bus, slot, chassis=None):
    inner = '' if chassis is None else f"<target chassisNr='{chassis}'/>"
    return (
        f"<controller type='pci' index='{index}' model='pci-bridge'>{inner}"
        f"<address type='pci' bus='{bus}' slot='{slot}'/></controller>"
    )


BRIDGES = (
    root(0)
    + root(1, 7)
    + root(2)
    + pci_bridge(3, 1, 3, 5)
    + pci_bridge(4, 3, 2)
    + pci_bridge(5, 4, 30, 255)
    + pci_bridge(6, 2, 1)
)

# controllers, and the hint guest_address of each VAN
DOMAINS = {
    'one root': ('', ['00:05.0', '00:1f.0', '0000:00:06.0']),
    'several': (
        root(0) + root(1, 7) + root(2, 30) + root(3),
        ['00:05.0', '01:03.0', '02:1f.0', '03:01.0', '01:04.0'],
    ),
    'functions': (
        root(0) + root(1, 7),
        [f'{bus:02x}:0a.{n}' for bus in (0, 1) for n in range(8)],
    ),
    'not in order': (
        root(2, 3) + root(1, 9) + root(0),
        ['01:01.0', '02:02.0'],
    ),
    'roots that libvirt adds': (root(0) + root(1, 2), ['04:01.0', '03:01.0']),
    'addresses that libvirt chooses': (root(0) + root(1, 7), [None] * 3),
    'bridges': (
        BRIDGES,
        ['03:01.0', '04:1f.0', '05:02.0', '06:02.0', '01:04.0', '06:1f.7'],
    ),
    'some of each': (BRIDGES, [None, '05:1f.3', None, '02:09.0', '05:1f.0']),
}


def plug(hints):
    """VANs, of PCI functions and mdevs by turns, with their guest_config."""
    plugin = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
    instance = objects.InstanceInfo(
        uuid=uuid.uuid4(), name='n', project_id='p'
    )
    vans = []
    for number, hint in enumerate(hints):
        handle = objects.PCIHandle(address=f'0c:{number:02x}.1')
        if number % 2:
            handle = objects.MdevHandle(
                uuid=uuid.uuid4(), parent='0000:65:00.0', type='nvidia-223'
            )
        van = objects.VAN(
            uuid=uuid.uuid4(),
            handle=handle,
            driver_data={} if hint is None else {'guest_address': hint},
        )
        plugin.plug(van, instance, live=False)
        vans.append(van)
    return vans


def domain(controllers, vans):
    made = []
    for van in vans:
        element = etree.fromstring(van.guest_config)
        if element.get('type') == 'pci':
            # libvirt adds this itself if the host has VFIO.
            element.insert(0, etree.Element('driver', name='vfio'))
        made.append(etree.tostring(element, encoding='unicode'))
    return HEAD.format(uuid=uuid.uuid4(), devices=controllers + ''.join(made))


def way(options, name):
    """The PHB index of a -device, its chassis, and the slots down to it."""
    option = options[name]
    slot, _, function = option['addr'].partition('.')
    place = (int(slot, 16), int(function or '0', 16))
    bus = option['bus']
    # pci.N.0 is the bus of PHB pci.N, pci.0 that of the machine's own PHB. The
    # bus of a bridge has the bridge's name.
    if match := re.fullmatch(r'(pci\.\d+)\.0', bus):
        host = options[match[1]]
        assert host['driver'] == 'spapr-pci-host-bridge'
        return host['index'], 0, (place,)
    if bus == 'pci.0':
        return 0, 0, (place,)
    assert options[bus]['driver'] == 'pci-bridge'
    index, _, above = way(options, bus)
    return index, options[bus]['chassis_nr'], (*above, place)


@pytest.mark.parametrize('name', DOMAINS)
def test_libvirt(libvirt, tmp_path, report, name):
    controllers, hints = DOMAINS[name]
    vans = plug(hints)
    given = libvirt.define(domain(controllers, vans))
    said = {f'ua-acc-{v.uuid}': drc.drc_index_of(given, v.uuid) for v in vans}

    options = libvirt.devices(given)
    ways = {alias: way(options, alias) for alias in said}
    for alias, (index, chassis, places) in ways.items():
        assert options[alias]['driver'] == 'vfio-pci'
        assert said[alias] == drc.drc_index(index, *places[-1], chassis)
    for van, hint in zip(vans, hints, strict=True):
        if hint is not None:
            slot, function = ways[f'ua-acc-{van.uuid}'][2][-1]
            assert hint.endswith(f':{slot:02x}.{function}')

    # QEMU with these options agrees. The devices are replaced by one that
    # needs no hardware.
    keep = ('driver', 'id', 'bus', 'addr', 'multifunction')
    tree = device_tree(
        tmp_path,
        [
            json.dumps(
                {key: option[key] for key in keep if key in option}
                | {'driver': DEVICE}
                if option['driver'] == 'vfio-pci'
                else option
            )
            for option in options.values()
            if 'addr' in option or option['driver'] == 'spapr-pci-host-bridge'
        ],
    )
    assert said == {
        alias: tree[index, *places]
        for alias, (index, _, places) in ways.items()
    }
    assert len(set(said.values())) == len(vans)
    report(f'pseries, {name}: {", ".join(sorted(said.values())[:6])}')


def test_libvirt_without_hints(libvirt):
    """Before the domain is defined, addresses and PHB indexes are missing."""
    (van,) = plug([None])
    assert drc.drc_index_of(domain(root(0), [van]), van.uuid) is None
    (van,) = plug(['01:01.0'])
    text = domain(root(0) + root(1), [van])
    with pytest.raises(exception.InvalidRequest):
        drc.drc_index_of(text, van.uuid)
    given = libvirt.define(text)
    assert drc.drc_index_of(given, van.uuid) == drc.drc_index(1, 1)


@pytest.mark.parametrize(
    ('controllers', 'hint'),
    [
        (root(0) + root(1, 7), '01:00.0'),
        (root(0) + root(1, 7) + pci_bridge(2, 1, 1, 5), '02:00.0'),
        (root(0) + root(1, 7), '0001:01:01.0'),
        (root(0) + root(1, 31), '01:01.0'),
        (root(0) + root(1, 0), '01:01.0'),
        (root(0, 1), '00:01.0'),
        (root(0) + pci_bridge(1, 0, 1, 0), '01:01.0'),
        (root(0) + pci_bridge(1, 0, 1, 256), '01:01.0'),
        (root(0) + root('0x1', 7), '01:01.0'),
    ],
)
def test_refused_by_libvirt_too(libvirt, controllers, hint):
    (van,) = plug([hint])
    text = domain(controllers, [van])
    with pytest.raises(exception.InvalidRequest):
        drc.drc_index_of(text, van.uuid)
    with pytest.raises(AssertionError, match='error: '):
        libvirt.devices(text)


def test_numbers(libvirt):
    """libvirt and drc read the number of a target as C does."""
    (van,) = plug(['01:01.0'])
    for number, index in (('0x10', 16), ('010', 8), ('10', 10)):
        text = domain(root(0) + root(1, number), [van])
        options = libvirt.devices(text)
        assert way(options, f'ua-acc-{van.uuid}')[0] == index
        assert drc.drc_index_of(text, van.uuid) == drc.drc_index(index, 1)
