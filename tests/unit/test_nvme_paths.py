# SPDX-License-Identifier: Apache-2.0

"""Files of NVMe drives whose namespaces several controllers may reach.

With native multipathing, such a namespace is in the directory of its
subsystem, and not below the PCI function: drivers/nvme/host/multipath.c.
"""

from __future__ import annotations

import itertools

import device_nodes
import devices
import nvme_of_model
import pytest

import os_acc
from os_acc.privileged import notes

PF = '0000:3b:00.0'
DRIVE = f'pci0000:00/{PF}/nvme/nvme7'
SUBSYSTEM = 'virtual/nvme-subsystem/nvme-subsys7'
WWNS = [f'uuid.{n}b4e28ba-2fa1-11d2-883f-0016d3cca427' for n in range(2)]
#: What has all of the drive or of its first namespace, and what has not.
ALL = ('function', 'nvme7')
FIRST = ('nvme7n1', 'ng7n1')
PARTS = ('nvme7n1p1', 'nvme7n1p2')
SECOND = ('nvme7n2',)


class Host:
    def __init__(self, kernel, patch):
        self.kernel = kernel
        self.nodes = device_nodes.Nodes(kernel)
        self.nodes.install(patch)
        self.devices = kernel.sys / 'devices'
        self.use('nova')

    def use(self, journal):
        path = str(self.kernel.root / journal)
        os_acc.CONF.set_override('state_path', path, 'os_acc')
        os_acc.initialize(reset=True)

    def block(self, number, directory, wwn=None):
        name = directory.rpartition('/')[2]
        self.nodes.add(name, f'b 259:{number}', directory, 'block')
        there = self.kernel.sys / 'class/block' / name
        there.symlink_to(self.devices / directory)
        if wwn is not None:
            (there / 'wwid').write_text(f'{wwn}\n')


@pytest.fixture
def host(kernel, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    return Host(kernel, monkeypatch)


@pytest.fixture
def drive(host):
    """A drive with two namespaces; the first one has two partitions."""
    host.kernel.add_function(PF, '144d:a80a', 0x010802, 'nvme')
    host.nodes.add('nvme7', 'c 242:7', DRIVE, 'nvme')
    for number, wwn in enumerate(WWNS, 1):
        host.block(number, f'{SUBSYSTEM}/nvme7n{number}', wwn)
        (host.devices / DRIVE / f'nvme7c7n{number}').mkdir()
    for number, name in enumerate(PARTS, 10):
        host.block(number, f'{SUBSYSTEM}/nvme7n1/{name}')
    generic = f'{SUBSYSTEM}/ng7n1'
    host.nodes.add('ng7n1', 'c 243:1', generic, 'nvme-generic')
    controllers = host.kernel.sys / 'class/nvme'
    controllers.mkdir(exist_ok=True)
    for directory in (controllers, host.devices / SUBSYSTEM):
        (directory / 'nvme7').symlink_to(host.devices / DRIVE)
    names = (*ALL[1:], *FIRST, *PARTS, *SECOND)
    offer(*names)
    return host


def offer(*names):
    files = [
        {
            'devices': f'/dev/{name}',
            'keeps_data': True,
            'resource_class': f'CUSTOM_{name.upper()}',
        }
        for name in names
    ]
    devices.spec(*files, {'address': PF})


def wanted(name):
    if name == 'function':
        return devices.pci(PF)
    return devices.wanted(f'CUSTOM_{name.upper()}')


def pairs(one, other):
    found = [*itertools.product(one, other), *itertools.product(other, one)]
    return [(a, b) for a, b in dict.fromkeys(found) if a != b]


# The kernel shows no namespace of a function that VFIO has.
@pytest.mark.parametrize(
    ('first', 'second'),
    [
        each
        for each in dict.fromkeys(
            [
                *pairs(ALL, (*ALL, *FIRST, *PARTS, *SECOND)),
                *pairs(FIRST, (*FIRST, *PARTS)),
            ]
        )
        if each[0] != 'function'
    ],
)
@pytest.mark.parametrize('journal', ['nova', 'other'])
def test_one_disk(drive, first, second, journal):
    instance = devices.instance()
    os_acc.plug(instance, [wanted(first)])
    drive.use(journal)
    assert f'instance {instance.uuid} has' in str(
        devices.refused(wanted(second))
    )
    drive.use('nova')
    assert os_acc.unplug(instance) == 1
    assert notes.files.names() == []
    os_acc.plug(devices.instance(), [wanted(second)])


@pytest.mark.parametrize(
    ('first', 'second'),
    [*pairs(PARTS, PARTS), *pairs((*FIRST, *PARTS), SECOND)],
)
@pytest.mark.parametrize('journal', ['nova', 'other'])
def test_two_disks(drive, first, second, journal):
    """Two namespaces, and two partitions, go to two tenants."""
    plugged = []
    for each, wants in (('nova', first), (journal, second)):
        drive.use(each)
        instance = devices.instance()
        os_acc.plug(instance, [wanted(wants)])
        plugged.append((each, instance))
    drive.kernel.reboot()
    for each, instance in plugged:
        drive.use(each)
        os_acc.replug(instance)
        assert os_acc.unplug(instance) == 1
    assert notes.files.names() == []


@pytest.mark.parametrize('journal', ['nova', 'other'])
def test_a_namespace_without_multipathing(host, journal):
    """Each controller has a block device of its own for it."""
    for number in range(2):
        name = f'nvme{number}'
        directory = f'pci0000:00/0000:0{number}:00.0/nvme/{name}/{name}n1'
        host.block(number, directory, WWNS[0])
    offer('nvme0n1', 'nvme1n1')
    instance = devices.instance()
    os_acc.plug(instance, [wanted('nvme0n1')])
    host.use(journal)
    assert f'instance {instance.uuid} has' in str(
        devices.refused(wanted('nvme1n1'))
    )


@pytest.mark.parametrize('journal', ['nova', 'other'])
def test_the_controller_of_a_target(host, journal, monkeypatch):
    """Who has its file has all namespaces of the target."""
    fabric = nvme_of_model.Fabric(host.kernel)
    fabric.install(monkeypatch)
    fabric.target(WWNS[0])
    target = {
        'nqn': nvme_of_model.NQN,
        'portals': [['192.0.2.1', 4420, 'tcp']],
        'namespaces': [WWNS[0].removeprefix('uuid.')],
    }
    devices.spec({'nvme_of': target, 'resource_class': 'CUSTOM_FAST'})
    os_acc.CONF.set_override('plugin', 'libvirt', 'os_acc')
    instance = devices.instance()
    os_acc.plug(instance, [devices.wanted('CUSTOM_FAST')])
    (controller,) = (host.kernel.sys / 'class/nvme').iterdir()
    directory = controller.resolve().relative_to(host.devices)
    host.nodes.add(controller.name, 'c 242:7', str(directory), 'nvme')
    host.use(journal)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    offer(controller.name)
    assert f'instance {instance.uuid} has' in str(
        devices.refused(wanted(controller.name))
    )
