# SPDX-License-Identifier: Apache-2.0

"""os-acc device spec: what it proposes, and what it leaves out."""

from __future__ import annotations

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.availability import proposals
from os_acc.kernel import pci
from os_acc.kernel import pci_scan
from os_acc.spec import device_spec
from os_acc.spec import entry as spec_entry

IDS = """# pci.ids
10de  NVIDIA Corporation
\t1eb8  TU104GL [Tesla T4]
\t\t10de 12a2  not this
8086  Intel Corporation
\t0b25  Data Streaming Accelerator
C 03  Display controller
\t00  VGA compatible controller
10df  a class
"""


@pytest.fixture
def here(kernel, tmp_path, monkeypatch):
    path = tmp_path / 'pci.ids'
    path.write_text(IDS)
    monkeypatch.setattr(pci_scan, 'FILES', ['/nowhere', str(path)])
    return kernel


def proposed() -> dict[str, str]:
    found = proposals.proposals(device_spec.load(os_acc.CONF))
    return {each.address: each.text() for each in found}


def entry(address: str) -> str:
    (found,) = spec_entry.entries(address)
    assert found['vendor_id'], found['product_id']
    return device_spec.line(found)


ACCELERATORS = [
    ('10de:1eb8', 0x030200, 'nvidia', 'display controller'),
    ('10de:1eb8', 0x030000, None, 'display controller'),
    ('1da3:1000', 0x120000, 'habanalabs', 'processing accelerator'),
    ('8086:37c8', 0x0B4000, 'qat', 'QuickAssist (QAT)'),
    ('177d:a340', 0x0B4000, None, 'co-processor'),
    ('1425:6001', 0x100000, None, 'encryption controller'),
    ('8086:0b25', 0x088000, 'idxd', 'data streaming accelerator (DSA)'),
    ('8086:0cfe', 0x088000, None, 'analytics accelerator (IAA)'),
]

OTHERS = [
    ('1a03:2000', 0x030000, 'ast'),
    ('102b:0538', 0x030000, 'mgag200'),
    ('1234:1111', 0x030000, 'bochs-drm'),
    ('8086:a323', 0x0C0500, 'i801_smbus'),
    ('8086:a36d', 0x0C0330, 'xhci_hcd'),
    ('8086:a360', 0x078000, 'mei_me'),
    ('1022:1486', 0x108000, 'ccp'),
    ('8086:0d93', 0x050210, 'cxl_pci'),
    ('144d:a80a', 0x010802, 'nvme'),
    ('1000:005d', 0x010400, 'megaraid_sas'),
    ('10de:1af1', 0x068000, None),
    ('8086:0b00', 0x088000, None),
]


@pytest.mark.parametrize(('ids', 'pci_class', 'driver', 'label'), ACCELERATORS)
def test_accelerators(here, ids, pci_class, driver, label):
    here.add_function('0000:3b:00.0', ids, pci_class, driver)
    text = proposed()['0000:3b:00.0']
    assert label in text
    assert ids in text
    assert text.endswith(f'{entry("0000:3b:00.0")}\n')


@pytest.mark.parametrize(('ids', 'pci_class', 'driver'), OTHERS)
def test_what_is_no_accelerator(here, ids, pci_class, driver):
    here.add_function('0000:3b:00.0', ids, pci_class, driver)
    assert proposed() == {}


def test_the_console_is_left_out(here):
    here.add_function(
        '0000:3b:00.0', '10de:1eb8', 0x030000, files={'boot_vga': '1\n'}
    )
    here.add_function(
        '0000:3c:00.0', '10de:1eb8', 0x030000, files={'boot_vga': '0\n'}
    )
    assert set(proposed()) == {'0000:3c:00.0'}


def test_network_cards(here):
    for bus, name, total in (('3b', 'eth3', 8), ('3c', 'eth4', 8)):
        here.add_function(
            f'0000:{bus}:00.0',
            '15b3:1017',
            0x020000,
            'mlx5_core',
            net=name,
            totalvfs=total,
        )
    here.add_function(
        '0000:3d:00.0', '8086:10d3', 0x020000, 'e1000e', net='eth5'
    )
    (here.sys / 'class/net/eth4/flags').write_text('0x1003\n')  # up
    found = proposed()
    assert set(found) == {'0000:3b:00.0'}
    assert 'network card with SR-IOV' in found['0000:3b:00.0']
    assert 'It can have 8 VFs' in found['0000:3b:00.0']


def test_vfs_are_named_by_their_pf(here):
    devices.furnish(here)
    devices.spec()
    here.set_numvfs(devices.PF, 2)
    assert set(proposed()) == {devices.PF, devices.GPU}


def test_names_and_numa_nodes(here):
    here.add_function('0000:3b:00.0', '10de:1eb8', 0x030200, numa=1)
    here.add_function('0000:3c:00.0', '8086:ffff', 0x120000)
    here.add_function('0000:3d:00.0', 'abcd:0001', 0x120000)
    found = {a: text.splitlines()[0] for a, text in proposed().items()}
    assert found == {
        '0000:3b:00.0': '# 0000:3b:00.0: NVIDIA Corporation TU104GL [Tesla '
        'T4] (10de:1eb8, display controller), NUMA node 1',
        '0000:3c:00.0': '# 0000:3c:00.0: Intel Corporation (8086:ffff, '
        'processing accelerator)',
        '0000:3d:00.0': '# 0000:3d:00.0: abcd:0001, processing accelerator',
    }


def test_without_pci_ids(here, monkeypatch):
    monkeypatch.setattr(pci_scan, 'FILES', ['/nowhere'])
    here.add_function('0000:3b:00.0', '10de:1eb8', 0x030200)
    first = proposed()['0000:3b:00.0'].splitlines()[0]
    assert first == '# 0000:3b:00.0: 10de:1eb8, display controller'


def test_what_is_in_the_way(here):
    here.add_function('0000:3b:00.0', '10de:1eb8', 0x030200, group=-1)
    here.add_function('0000:3c:00.0', '10de:1eb8', 0x030200, group=9)
    here.add_function('0000:3c:00.1', '10de:10f8', 0x040300, 'snd', group=9)
    found = proposed()
    assert (
        'not available now: it is not in an IOMMU group'
        in (found['0000:3b:00.0'])
    )
    assert '0000:3c:00.1' in found['0000:3c:00.0']


def test_what_is_named_already(here):
    devices.furnish(here)
    devices.spec(
        {'address': devices.GPU}, {'address': devices.PF, 'deny': True}
    )
    found = proposed()
    gpu, pf = found[devices.GPU], found[devices.PF]
    assert 'Already in device_spec: device_spec, entry 1 offers it.' in gpu
    assert 'Already in device_spec: device_spec, entry 2 denies it.' in pf
    assert entry(devices.GPU) not in gpu
    assert entry(devices.PF) not in pf


def test_it_can_be_pasted(here, tmp_path):
    """What is proposed offers just the proposed functions."""
    devices.furnish(here)
    devices.spec()
    found = proposed()
    path = tmp_path / 'os-acc.conf'
    path.write_text('[os_acc]\n' + '\n'.join(found.values()))
    conf = os_acc.CONF
    conf.clear_override('device_spec', 'os_acc')
    conf(['--config-file', str(path)], project='os-acc')
    specs = device_spec.load(conf)
    for address in pci.addresses():
        offered = specs.find(pci.get(address)) is not None
        assert offered == (address in found)
    assert set(found) == {devices.PF, devices.GPU}


def test_a_malformed_device_spec(here):
    os_acc.CONF.set_override('device_spec', ['{'], 'os_acc')
    with pytest.raises(exception.InvalidRequest, match='device_spec'):
        proposed()


@pytest.mark.parametrize('driver', ['xclmgmt', None])
def test_the_management_function_of_an_alveo(here, driver):
    """U250: .0 manages the card, .1 is for its user."""
    for number, product in enumerate(('5004', '5005')):
        here.add_function(
            f'0000:3b:00.{number}',
            f'10ee:{product}',
            0x120000,
            (driver, 'xocl')[number] if driver else None,
        )
    here.add_function('0000:5e:00.0', '10ee:9038', 0x120000)
    found = proposed()
    assert 'management function of an Alveo' in found['0000:3b:00.0']
    assert 'user function' in found['0000:3b:00.0']
    assert 'management' not in found['0000:3b:00.1']
    assert 'management' not in found['0000:5e:00.0']
