# SPDX-License-Identifier: Apache-2.0

"""What the one rule of os_acc.claims must not keep from anybody."""

from __future__ import annotations

import device_nodes
import devices
import pytest

import os_acc
from os_acc.claims import reader
from os_acc.kernel import pci as kernel_pci
from os_acc.spec import address as spec_address
from os_acc.spec import device_spec

PF, VF = '0000:3b:00.0', '0000:3b:00.1'
OTHER = '0000:3c:00.0'
SWITCH = 'pci0000:00/0000:00:01.0'


class Host:
    def __init__(self, kernel, patch):
        self.kernel = kernel
        self.nodes = device_nodes.Nodes(kernel)
        self.nodes.install(patch)

    def use(self, journal):
        path = str(self.kernel.root / journal)
        os_acc.CONF.set_override('state_path', path, 'os_acc')
        os_acc.initialize(reset=True)


@pytest.fixture
def host(kernel, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return Host(kernel, monkeypatch)


def file():
    return devices.wanted('CUSTOM_FILE')


def pci():
    return devices.pci(OTHER)


@pytest.mark.parametrize('journals', [['nova', 'nova'], ['nova', 'other']])
@pytest.mark.parametrize('wanted', [[file, pci], [pci, file]])
def test_cards_behind_one_bridge(host, wanted, journals):
    """One tenant has a device file of a card, another one the other card."""
    host.kernel.bus = SWITCH
    for address in (PF, OTHER):
        host.kernel.add_function(address, '8086:4940', 0x120000, 'qat')
    host.nodes.add('dri/card0', 'c 226:0', f'{SWITCH}/{PF}/drm/card0', 'drm')
    files = {'resource_class': 'CUSTOM_FILE', 'devices': '/dev/dri/card0'}
    devices.spec(files, {'address': OTHER})
    for request, journal in zip(wanted, journals, strict=True):
        host.use(journal)
        of = f'{PF}+drm+card' if request is file else OTHER
        (there,) = [
            each for each in os_acc.get_devices() if each.address == of
        ]
        assert there.handles_free == 1
        os_acc.plug(devices.instance(), [request()])


def test_a_van_whose_entry_cannot_be_read(host):
    """Another version of os-acc wrote it. Others get other devices."""
    host.nodes.add('acc1', 'c 240:1')
    host.kernel.add_function(OTHER, '8086:4940', 0x120000, 'qat')
    files = {'resource_class': 'CUSTOM_FILE', 'devices': '/dev/acc1'}
    devices.spec(files, {'address': OTHER})
    os_acc.plug(devices.instance(), [file()])
    journal = os_acc._host.journal
    (van,) = journal.vans()
    van.driver_data = {**van.driver_data, 'entry': '{"newer": 1}'}
    journal.save(van)
    host.kernel.reboot()
    (free,) = [each for each in os_acc.get_devices() if each.address == OTHER]
    assert free.handles_free == 1
    os_acc.plug(devices.instance(), [pci()])


@pytest.mark.parametrize('programmer', [None, 'xrt'])
def test_one_vf_of_each_pf_is_read(host, monkeypatch, programmer):
    """It tells that its PF is of an FPGA, unless an entry names a VF."""
    pf = '0000:3b:00.7'  # the VFs are in another slot
    host.kernel.add_function(pf, '8086:4940', 0x120000, 'qat', totalvfs=7)
    if programmer is None:
        host.kernel.vfs[pf]['ids'] = '10ee:5001'
    host.kernel.write_numvfs(pf, 7)
    vfs = [each for each in kernel_pci.addresses() if each != pf]
    address = spec_address.Address(complete=vfs[-1])
    spec = device_spec.Spec(address=address, programmer=programmer)
    another = device_spec.Spec(address=spec_address.Address(complete=OTHER))
    known = reader.Reader(device_spec.Specs((another, spec)))
    real, read = kernel_pci.find, []

    def find(address):
        read.append(address)
        return real(address)

    monkeypatch.setattr(kernel_pci, 'find', find)
    assert known.function(vfs[-1]).fpgas == (pf,)
    assert set(vfs) - set(read) == (set(vfs[1:]) if not programmer else set())
