# SPDX-License-Identifier: Apache-2.0

"""Notes that an earlier version wrote, while its VANs are still plugged."""

from __future__ import annotations

import json

import device_nodes
import devices
import idxd_model
import pytest

import os_acc
from os_acc.privileged import notes

GPU, SOUND, USB = (f'0000:3b:00.{number}' for number in range(3))
BESIDE = '0000:3c:00.0'
PF = '0000:50:00.0'
VFS = [f'{PF[:-1]}{number}' for number in (1, 2, 3)]
DSA = '0000:6a:01.0'
#: What the notes of the first versions do not have.
NEWER = ('device', 'parent', 'files', 'within', 'fpga')


class Host:
    def __init__(self, kernel, patch):
        self.kernel = kernel
        self.nodes = device_nodes.Nodes(kernel)
        self.nodes.install(patch)
        self.reboot = kernel.reboot

    def use(self, journal):
        path = str(self.kernel.root / journal)
        os_acc.CONF.set_override('state_path', path, 'os_acc')
        os_acc.initialize(reset=True)


@pytest.fixture
def host(kernel, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    return Host(kernel, monkeypatch)


def companions(host):
    for address, pci_class, driver in (
        (GPU, 0x030000, 'nvidia'),
        (SOUND, 0x040300, 'snd_hda_intel'),
        (USB, 0x0C0330, 'xhci_hcd'),
    ):
        host.kernel.add_function(address, '10de:1e30', pci_class, driver, 70)
    devices.spec({'address': GPU, 'companions': True})
    return [[devices.pci(GPU)]]


def a_group(host):
    for address in (GPU, BESIDE):
        host.kernel.add_function(address, '1234:11e8', 0xFF00, group=70)
    devices.spec({'address': '*'})
    return [[devices.pci(GPU), devices.pci(BESIDE)]]


def vfs(host):
    host.kernel.add_function(PF, '8086:4940', 0x120000, 'qat', totalvfs=3)
    devices.spec({'address': PF, 'num_vfs': 3})
    return [[devices.pci(each)] for each in VFS]


def files_of_vfs(host):
    host.kernel.add_function(PF, '8086:4940', 0x120000, 'qat', totalvfs=3)
    host.kernel.write_numvfs(PF, 3)
    for number, vf in enumerate(VFS):
        directory = f'pci0000:00/{vf}/drm/card{number}'
        host.nodes.add(
            f'dri/card{number}', f'c 226:{number}', directory, 'drm'
        )

    def reboot():
        host.kernel.reboot()
        host.kernel.write_numvfs(PF, 3)

    host.reboot = reboot
    return files('/dev/dri/card*')


def files(glob, **values):
    entry = {'devices': glob, 'resource_class': 'CUSTOM_FILE', **values}
    devices.spec(entry)
    return [[devices.wanted('CUSTOM_FILE')] for _ in range(3)]


def shares(host):
    for number in (1, 2):
        host.nodes.add(f'acc{number}', f'c 240:{number}')
    return files('/dev/acc1', shared=3, **{'with': ['/dev/acc2']})


def queues(host):
    model = idxd_model.Idxd(host.kernel)
    model.add(DSA)
    host.reboot = model.reboot
    devices.spec({'idxd': DSA, 'wq_size': 16})
    return [[devices.wanted('CUSTOM_DSA')] for _ in range(2)]


def mdevs(host):
    path = host.kernel.add_function(PF, '8086:4940', 0x120000)
    host.kernel.add_mdev_parent(path, {'type-1': 1}, 4)
    devices.spec({'address': PF, 'mdev_types': ['type-1']})
    return [[devices.mdev('type-1', None, PF)] for _ in range(3)]


KINDS = [
    companions,
    a_group,
    vfs,
    files_of_vfs,
    shares,
    queues,
    mdevs,
]


@pytest.mark.parametrize('lacking', [(), NEWER])
@pytest.mark.parametrize('then', ['unplug', 'replug', 'reboot', 'no entry'])
@pytest.mark.parametrize('kind', KINDS)
def test_after_an_upgrade(host, kind, then, lacking):
    """Each tenant keeps what it has. Each other one has another journal."""
    plugged = []
    for number, requests in enumerate(kind(host)):
        journal = 'other' if number % 2 else 'nova'
        host.use(journal)
        instance = devices.instance()
        os_acc.plug(instance, requests)
        plugged.append((journal, instance, len(requests)))
    strip('holder', *lacking)
    if then == 'no entry':
        # Nobody gets any of it, but who has it keeps it after a reboot.
        os_acc.CONF.set_override('device_spec', [], 'os_acc')
    if then in ('reboot', 'no entry'):
        host.reboot()
    journals = {journal for journal, *_ in plugged}
    # Each service starts: a note names its VAN from then on.
    for journal in journals:
        host.use(journal)
    for journal in journals:
        host.use(journal)
        assert [each.error for each in os_acc.get_vans()].count(None) == sum(
            number for name, _, number in plugged if name == journal
        )
    for journal, instance, number in plugged:
        host.use(journal)
        if then == 'replug':
            os_acc.replug(instance)
        assert os_acc.unplug(instance) == number
    assert notes.files.names() == []


def strip(*keys):
    """Let the notes not have what an earlier version did not write."""
    for name in notes.files.names():
        values = json.loads(notes.files.read(name))
        kept = {key: values[key] for key in values if key not in keys}
        notes.files.write(name, json.dumps(kept))
