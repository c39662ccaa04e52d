# SPDX-License-Identifier: Apache-2.0

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
import shlex
import subprocess
import tempfile
import uuid

from lxml import etree
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import drc
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


def device_tree(directory, devices):
    """Read the functions on the machine's own PHB from QEMU's device tree.

    :param devices: the arguments of the options -device
    :returns: ibm,my-drc-index by (slot, function)
    """
    dtb = directory / 'guest.dtb'
    command = [QEMU, '-nodefaults', '-display', 'none', '-accel', 'tcg']
    command += ['-m', '256', '-machine', f'pseries,dumpdtb={dtb}']
    for device in devices:
        command += ['-device', device]
    run(*command)
    phb = f'/pci@{BUID:x}'
    found = {}
    for name in run('fdtget', '-l', str(dtb), phb).split():
        # IEEE 1275, PCI binding: the unit address is slot[,function].
        numbers = [int(n, 16) for n in name.partition('@')[2].split(',')]
        index = run(
            'fdtget', '-t', 'x', str(dtb), f'{phb}/{name}', 'ibm,my-drc-index'
        )
        found[(*numbers, 0)[:2]] = f'{int(index, 16):08X}'
    return found


def computed(slot, function):
    text = (
        f"<hostdev><address type='pci' bus='0x00' slot='{slot:#04x}' "
        f"function='{function:#x}'/></hostdev>"
    )
    return drc.drc_index(text)


def test_every_place_of_the_machines_own_phb(tmp_path, report):
    places = list(itertools.product(range(1, 32), range(8)))
    tree = device_tree(
        tmp_path,
        [
            f'{DEVICE},bus=pci.0,addr={slot:x}.{function}'
            + ('' if function else ',multifunction=on')
            for slot, function in places
        ],
    )
    assert tree == {place: computed(*place) for place in places}
    report(f'pseries: {len(tree)} DRC indexes, as QEMU has them')


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

    All its files are in one directory (https://libvirt.org/drvqemu.html#uris).
    It runs as nobody, because as root it needs the user libvirt-qemu.
    """

    def __init__(self, directory):
        self.directory = directory
        self.options = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam('nobody')
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
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
            f'qemu:///embed?root={self.directory}',
            '; '.join(commands),
            env={
                'PATH': os.environ['PATH'],
                'HOME': str(self.directory),
                'LC_ALL': 'C',
            },
            cwd=self.directory,
            **self.options,
        )

    def _file(self, text):
        path = self.directory / f'{uuid.uuid4()}.xml'
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
    # Only root can enter pytest's directory.
    with tempfile.TemporaryDirectory(prefix='os-acc-') as name:
        yield Libvirt(pathlib.Path(name))


def plug(hints, monkeypatch):
    """VANs, of PCI functions and mdevs by turns, on a Power host."""
    monkeypatch.setattr('platform.machine', lambda: 'ppc64le')
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
            driver_data={'guest_address': hint},
        )
        plugin.plug(van, instance, live=False)
        vans.append(van)
    return vans


def domain(vans):
    made = []
    for van in vans:
        element = etree.fromstring(van.guest_config)
        if element.get('type') == 'pci':
            # libvirt adds this itself if the host has VFIO.
            element.insert(0, etree.Element('driver', name='vfio'))
        made.append(etree.tostring(element, encoding='unicode'))
    return HEAD.format(uuid=uuid.uuid4(), devices=''.join(made))


@pytest.mark.parametrize(
    'hints',
    [
        ['00:05.0', '00:1f.0', '0000:00:06.0'],
        [f'00:0a.{function}' for function in range(8)],
    ],
)
def test_libvirt(libvirt, tmp_path, monkeypatch, report, hints):
    """The device is where the plugin says, in libvirt's and QEMU's eyes."""
    vans = plug(hints, monkeypatch)
    options = libvirt.devices(libvirt.define(domain(vans)))
    devices, said = [], {}
    for van in vans:
        option = options[f'ua-acc-{van.uuid}']
        assert option['driver'] == 'vfio-pci'
        assert option['bus'] == 'pci.0'
        slot, _, function = option['addr'].partition('.')
        place = (int(slot, 16), int(function or '0', 16))
        said[place] = van.driver_data['drc_index']
        # QEMU gets a device that needs no hardware.
        keep = ('id', 'bus', 'addr', 'multifunction')
        given = {key: option[key] for key in keep if key in option}
        devices.append(json.dumps({'driver': DEVICE, **given}))
    assert device_tree(tmp_path, devices) == said
    assert len(set(said.values())) == len(vans)
    report(f'pseries: {", ".join(sorted(said.values())[:6])}')


def test_another_bus_is_left_out(libvirt, monkeypatch):
    """The domain's controllers decide which PHB bus 1 belongs to."""
    (van,) = plug(['01:01.0'], monkeypatch)
    assert 'drc_index' not in van.driver_data
    option = libvirt.devices(libvirt.define(domain([van])))
    assert option[f'ua-acc-{van.uuid}']['bus'] != 'pci.0'
