# SPDX-License-Identifier: Apache-2.0

"""A server with functions of many kinds: what may be given out of it."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import re
from typing import Any

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.availability import functions as availability
from os_acc.refusals import all_refusals
from os_acc.spec import device_spec
from os_acc.spec import entry as spec_entry

NOT_NAMED = 'device_spec does not offer it'
STORES = r'it stores data \(class {}\)'


@dataclasses.dataclass(frozen=True)
class Kind:
    """One function of the server.

    :ivar refusal: what the error says although an entry names every device;
        None: it is given out
    :ivar made: the arguments of Kernel.add_function()
    :ivar use: what the host does with it
    """

    name: str
    refusal: str | None
    made: dict[str, Any]
    use: Callable[[Any, Any], None] = lambda kernel, path: None
    address: str | None = None

    def __str__(self) -> str:
        return self.name


def kind(name, refusal, ids, pci_class, driver=None, use=None, **made):
    made |= {'ids': ids, 'pci_class': pci_class, 'driver': driver}
    address = made.pop('address', None)
    return Kind(name, refusal, made, use or Kind.use, address)


def part(name, ids, pci_class, driver=None, **made):
    """A part of the host, which an entry for every device does not name."""
    return kind(name, NOT_NAMED, ids, pci_class, driver, **made)


def drive(name, refusal, use=None, **made):
    return kind(name, refusal, '144d:a80a', 0x010802, 'nvme', use, **made)


def nic(name, refusal, use=None, driver='ice', **made):
    return kind(name, refusal, '8086:1592', 0x020000, driver, use, **made)


def empty(name):
    return lambda kernel, path: (path / name).mkdir()


def mounted(kernel, path):
    (block,) = (path / 'block').iterdir()
    number = (block / 'dev').read_text().strip()
    kernel.write_file(
        'proc/self/mountinfo', f'36 35 {number} / / rw - ext4 /dev/root rw\n'
    )


def swap(kernel, path):
    (block,) = (path / 'block').iterdir()
    kernel.write_file(
        'proc/swaps', f'Filename Type Size\n/dev/{block.name} disk 8 0 -2\n'
    )


def held_by(name, label=None):
    def use(kernel, path):
        (block,) = (path / 'block').iterdir()
        (block / 'holders' / name).touch()
        if label is not None:
            kernel.write_file(f'sys/class/block/{name}/dm/name', f'{label}\n')

    return use


def exported(kernel, path):
    (block,) = (path / 'block').iterdir()
    kernel.write_file(
        'sys/kernel/config/nvmet/subsystems/nqn.test/namespaces/1/device_path',
        f'/dev/{block.name}\n',
    )


def up(kernel, path):
    (interface,) = (path / 'net').iterdir()
    (interface / 'flags').write_text('0x1003\n')


def master(name):
    def use(kernel, path):
        (interface,) = (path / 'net').iterdir()
        (interface / 'master').symlink_to(kernel.sys / f'class/net/{name}')

    return use


def vlan(kernel, path):
    (interface,) = (path / 'net').iterdir()
    (interface / 'upper_vlan100').symlink_to(kernel.sys / 'class/net/vlan100')


def vfs(kernel, path):
    (path / 'sriov_drivers_autoprobe').write_text('0\n')
    kernel.write(f'{path}/sriov_numvfs', '2')


def vgpu(number):
    def use(kernel, path):
        (path / 'nvidia').mkdir()
        (path / 'nvidia/current_vgpu_type').write_text(f'{number}\n')
        (path / 'nvidia/creatable_vgpu_types').write_text('558 : A16-1B\n')

    return use


def an_mdev(kernel, path):
    (path / '0f6a7b8c-1111-4222-8333-444455556666').mkdir()


def rmrr(kernel, path):
    group = (path / 'iommu_group').resolve()
    (group / 'reserved_regions').write_text(
        '0x00000000bf000000 0x00000000bf7fffff direct\n'
        '0x00000000fee00000 0x00000000feefffff msi\n'
    )


KINDS = [
    # The board
    kind('host bridge', 'it is a bridge', '8086:3450', 0x060000),
    kind('root port', 'a bridge', '8086:347a', 0x060400, 'pcieport'),
    kind('LPC bridge', 'a bridge', '8086:a1c1', 0x060100, 'lpc_ich'),
    part('SMBus controller', '8086:a1a3', 0x0C0500, 'i801_smbus'),
    part('USB controller', '8086:a1af', 0x0C0330, 'xhci_hcd'),
    part('management engine', '8086:a1ba', 0x078000, 'mei_me'),
    part('IPMI interface', '103c:3302', 0x0C0701, 'ipmi_si'),
    part('interrupt controller', '8086:2034', 0x080020),
    part('IOMMU of AMD', '1022:1481', 0x080600),
    part('secure processor of AMD', '1022:1486', 0x108000, 'ccp'),
    part('CXL memory', '8086:0d93', 0x050210, 'cxl_pci'),
    part('display of a BMC', '1a03:2000', 0x030000, 'ast'),
    part('older display of a BMC', '102b:0538', 0x030000, 'mgag200'),
    kind(
        'GPU that is the console',
        'it is the boot display',
        '10de:2231',
        0x030000,
        'nouveau',
        files={'boot_vga': '1\n'},
    ),
    # Disks
    kind(
        'RAID controller',
        STORES.format('0104'),
        '1000:10e2',
        0x010400,
        'megaraid_sas',
        block='sda',
    ),
    kind(
        'SATA controller',
        STORES.format('0106'),
        '8086:a182',
        0x010601,
        'ahci',
    ),
    drive(
        'NVMe with the root file system',
        r'block device nvme0n1 is mounted on /',
        mounted,
        block='nvme0n1',
    ),
    drive(
        'NVMe with LVM',
        r'block device nvme1n1 is a part of dm-0 \(vg-data\)',
        held_by('dm-0', 'vg-data'),
        block='nvme1n1',
    ),
    drive(
        'NVMe of an md array',
        'block device nvme2n1 is a part of md0',
        held_by('md0'),
        block='nvme2n1',
    ),
    drive(
        'NVMe with swap',
        'block device nvme3n1 is swap space',
        swap,
        block='nvme3n1',
    ),
    drive(
        'NVMe exported by nvmet',
        'exported by the NVMe target as a namespace of nqn.test',
        exported,
        block='nvme4n1',
    ),
    drive('NVMe in a shared IOMMU group', 'shares its IOMMU group', group=7),
    kind('its neighbour', 'IOMMU group 7', '8086:0d58', 0x120000, group=7),
    drive('idle NVMe', None),
    kind(
        'VMD endpoint',
        STORES.format('0104'),
        '8086:28c0',
        0x010400,
        'vmd',
        group=8,
    ),
    drive(
        'NVMe in a VMD domain',
        'shares its IOMMU group',
        group=8,
        address='10000:01:00.0',
    ),
    # Network cards
    nic('NIC that is up', 'interface up0 is up', up, net='up0'),
    nic('NIC in a bridge', 'part of br0', master('br0'), net='brport0'),
    nic('NIC in a bond', 'part of bond0', master('bond0'), net='slave0'),
    nic('NIC in OVS', 'part of ovs-system', master('ovs-system'), net='ovs0'),
    nic('NIC with a VLAN', 'carries vlan100', vlan, net='trunk0'),
    nic('NIC in a namespace', 'another network namespace', empty('net')),
    nic('NIC of DPDK', None, driver='uio_pci_generic'),
    nic('idle NIC', None, net='idle0'),
    nic('PF that has VFs', 'a PF that has 2 VFs', vfs, net='pf0', totalvfs=2),
    # GPUs
    kind('idle GPU', None, '10de:2330', 0x030200, 'nvidia'),
    kind(
        'GPU with an audio function',
        'driver snd_hda_intel is bound to it',
        '10de:2230',
        0x030000,
        group=9,
    ),
    kind(
        'audio function of a GPU',
        None,
        '10de:1aef',
        0x040300,
        'snd_hda_intel',
        group=9,
    ),
    kind(
        'VF for a vGPU',
        'vGPU',
        '10de:25b6',
        0x030200,
        'nvidia',
        vgpu(0),
    ),
    kind(
        'VF with a vGPU',
        'vGPU',
        '10de:25b6',
        0x030200,
        'nvidia',
        vgpu(558),
    ),
    kind(
        'GPU with a mediated device',
        'it has the mediated device 0f6a7b8c',
        '10de:1eb8',
        0x030200,
        'nvidia',
        an_mdev,
    ),
    kind('NVSwitch', None, '10de:22a3', 0x068000),
    # Accelerators
    kind('QAT with errata', 'disable_denylist', '8086:37c8', 0x0B4000, 'qat'),
    kind('QAT', None, '8086:4940', 0x0B4000, 'qat'),
    kind('DSA with errata', 'disable_denylist', '8086:0b25', 0x088000, 'idxd'),
    kind('DSA', None, '8086:1212', 0x088000, 'idxd'),
    kind('FPGA', None, '10ee:5000', 0x058000, 'xclmgmt'),
    kind('processing accelerator', None, '1da3:1060', 0x120000),
    # The platform
    kind('accelerator with an RMRR', 'RMRR', '1da3:1061', 0x120000, use=rmrr),
    kind(
        'accelerator without an IOMMU',
        'it is not in an IOMMU group',
        '1da3:1062',
        0x120000,
        group=-1,
    ),
]

ADDRESSES = {
    each.name: each.address or f'0000:{number + 0x10:02x}:00.0'
    for number, each in enumerate(KINDS)
}


@pytest.fixture
def host(kernel):
    for each in KINDS:
        path = kernel.add_function(ADDRESSES[each.name], **each.made)
        each.use(kernel, path)
    kernel.writes.clear()
    os_acc.initialize()
    return kernel


def refused(address: str) -> str:
    request = devices.pci(address)
    request.driver = 'pci'
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), [request])
    assert caught.value.undo_errors == []
    return str(caught.value.__cause__)


def row(refusal) -> str:
    """A pattern of the error of a row of the table in the documentation."""
    error = str(
        availability.Obstacle(refusal.category, 'DEVICE', 'REASON').error()
    )
    reason = refusal.text.replace('{remedy}', refusal.remedy)
    reason = '.+'.join(map(re.escape, re.split(r'\{\w+\}', reason)))
    return re.escape(error).replace('DEVICE', '.+').replace('REASON', reason)


ROWS = [row(each) for found in all_refusals.table().values() for each in found]


def given_out() -> set[str]:
    """What discovery says could be given out now."""
    found = set()
    for device in os_acc.get_devices():
        if device.driver == 'pci' and device.handles_free:
            found.add(device.address)
    return found


def test_the_server_has_many_kinds():
    assert len(KINDS) >= 40
    assert len({each.name for each in KINDS}) == len(KINDS)


def test_without_an_entry_nothing_is_given_out(host):
    assert os_acc.get_devices() == []
    for each in KINDS:
        text = refused(ADDRESSES[each.name])
        assert NOT_NAMED in text
        (entry, *_) = spec_entry.entries(ADDRESSES[each.name])
        assert device_spec.line(entry) in text
    assert host.writes == []


def test_with_an_entry_for_all_each_refusal_tells_the_rule(host):
    devices.spec({'address': '*'})
    for each in KINDS:
        if each.refusal is not None:
            text = refused(ADDRESSES[each.name])
            assert re.search(each.refusal, text), (each.name, text)
            rows = [each for each in ROWS if re.fullmatch(each, text)]
            assert rows, (each.name, text)
    assert host.writes == []


def test_with_an_entry_for_all_the_others_are_given_out(host):
    devices.spec({'address': '*'})
    free = [each for each in KINDS if each.refusal is None]
    vf = f'{ADDRESSES["PF that has VFs"][:-1]}'
    assert given_out() >= {ADDRESSES[each.name] for each in free}
    for each in free:
        request = devices.pci(ADDRESSES[each.name])
        request.driver = 'pci'
        instance = devices.instance()
        os_acc.plug(instance, [request])
        assert host.driver_of(ADDRESSES[each.name]) == 'vfio-pci'
        assert os_acc.unplug(instance) == 1
        assert host.driver_of(ADDRESSES[each.name]) == each.made['driver']
    for number in (1, 2):
        request = devices.pci(f'{vf}{number}')
        instance = devices.instance()
        os_acc.plug(instance, [request])
        assert os_acc.unplug(instance) == 1


def test_discovery_agrees(host):
    devices.spec({'address': '*'})
    allowed = {
        ADDRESSES[each.name] for each in KINDS if each.refusal is None
    } | {ADDRESSES['PF that has VFs']}
    assert given_out() == allowed


@pytest.mark.parametrize(
    'name', [each.name for each in KINDS if each.refusal == NOT_NAMED]
)
def test_a_part_of_the_host_can_be_named_by_itself(host, name):
    address = ADDRESSES[name]
    devices.spec({'address': '*'}, {'address': address})
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(address)])
    assert van.handle.address == address
    assert os_acc.unplug(instance) == 1
