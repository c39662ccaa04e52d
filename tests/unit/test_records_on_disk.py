# SPDX-License-Identifier: Apache-2.0

"""The records of this boot, as the release before wrote them."""

from __future__ import annotations

import pathlib
import re

import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import sysfs
from os_acc.privileged import file_owners
from os_acc.privileged import root_folder
from os_acc.privileged import undo_log
from os_acc.privileged.devfile import partitions as devfile_records
from os_acc.privileged.fpga import dfl_ports as fpga_records
from os_acc.privileged.fpga import reenumeration
from os_acc.privileged.idxd import notes as idxd_records
from os_acc.privileged.mdev import devices as mdev_records
from os_acc.privileged.npu import devices as npu_records
from os_acc.privileged.nvme_of import connections as nvme_of_records
from os_acc.privileged.pci import bindings
from os_acc.privileged.pci import network

PF = '0000:3b:00.0'
UUID = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b01'
WWN = 'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427'


@pytest.fixture
def here(kernel):
    os_acc.initialize()
    return kernel


RECORDS = [
    (
        undo_log.vfs,
        undo_log.Vfs(4, '1'),
        'vfs',
        '{"number": 4, "autoprobe": "1", "settings": []}',
    ),
    (
        undo_log.vfs,
        undo_log.Vfs(1, None, [{'vlan': [101, 3], 'trusted': True}]),
        'vfs',
        '{"number": 1, "autoprobe": null, "settings": '
        '[{"vlan": [101, 3], "trusted": true}]}',
    ),
    (
        undo_log.storage,
        undo_log.Storage('1b36:0010', False, UUID),
        'storage',
        f'{{"ids": "1b36:0010", "empty": false, "instance": "{UUID}", '
        '"drive": null}',
    ),
    (
        undo_log.container_specs,
        undo_log.ContainerSpec('/etc/cdi', 'a.b/c', UUID, [['/dev/x', 'c']]),
        'container-specs',
        f'{{"directory": "/etc/cdi", "kind": "a.b/c", "instance": "{UUID}", '
        '"nodes": [["/dev/x", "c"]], "handle": "", "containers": []}',
    ),
    (
        file_owners.changes,
        file_owners.DeviceFile('x', '/dev/x', 5, [0, 0, 384], [1, 1, 432]),
        'device-files',
        '{"name": "x", "path": "/dev/x", "inode": 5, "before": [0, 0, 384], '
        '"ours": [1, 1, 432]}',
    ),
    (
        bindings.functions,
        bindings.Function('8086:10d3', 'e1000e', None, 'vfio-pci'),
        'functions',
        '{"ids": "8086:10d3", "driver": "e1000e", "override": null, '
        '"vfio_driver": "vfio-pci"}',
    ),
    (
        network.ports,
        network.Port('8086:10d3', {'vlan': 5}, {'vlan': 0}),
        'ports',
        '{"ids": "8086:10d3", "ours": {"vlan": 5}, "before": {"vlan": 0}}',
    ),
    (
        mdev_records.mdevs,
        mdev_records.Mdev(PF, 'type-1'),
        'mdevs',
        f'{{"parent": "{PF}", "type": "type-1", "kept": false}}',
    ),
    (
        mdev_records.vgpus,
        mdev_records.Vgpu(558),
        'vgpus',
        '{"number": 558}',
    ),
    (
        devfile_records.partitions,
        devfile_records.Partitions('1002:74a1', 'SPX', 'CPX'),
        'partitions',
        '{"ids": "1002:74a1", "before": "SPX", "mode": "CPX"}',
    ),
    (
        idxd_records.idxd_devices,
        idxd_records.IdxdDevice('8086:0b25', 'shared', 16, {'0': 0}, {}),
        'idxd-devices',
        '{"ids": "8086:0b25", "mode": "shared", "size": 16, '
        '"queues": {"0": 0}, "engines": {}, "kept": false}',
    ),
    (
        idxd_records.idxd_queues,
        idxd_records.IdxdQueue('8086:0b25', UUID, {'size': '0'}),
        'idxd-queues',
        f'{{"ids": "8086:0b25", "van": "{UUID}", "before": {{"size": "0"}}}}',
    ),
    (
        idxd_records.idxd_files,
        idxd_records.IdxdFiles(UUID, [['/dev/dsa/wq0.0', 240, 0, None]]),
        'idxd-files',
        f'{{"van": "{UUID}", "files": [["/dev/dsa/wq0.0", 240, 0, null]]}}',
    ),
    (
        npu_records.resets,
        npu_records.Reset('8086:7d1d', 'intel_vpu'),
        'npu-resets',
        '{"ids": "8086:7d1d", "driver": "intel_vpu"}',
    ),
    (
        nvme_of_records.connections,
        nvme_of_records.Connection('nqn.x', UUID, [['::1', 1, 'tcp']], [WWN]),
        'connections',
        f'{{"nqn": "nqn.x", "instance": "{UUID}", '
        f'"portals": [["::1", 1, "tcp"]], "namespaces": ["{WWN}"]}}',
    ),
    (
        fpga_records.cards,
        fpga_records.DflCard([0], True),
        'dfl-cards',
        '{"released": [0], "unbound": true}',
    ),
    (
        reenumeration.removals,
        reenumeration.Removal(['0000:3b']),
        'removals',
        '{"buses": ["0000:3b"]}',
    ),
    (
        fpga_records.ports,
        fpga_records.DflPort(False),
        'dfl-ports',
        '{"failed": false}',
    ),
]


@pytest.mark.parametrize(('records', 'value', 'directory', 'text'), RECORDS)
def test_a_record(here, records, value, directory, text):
    path = pathlib.Path(root_folder.PATH) / directory / 'x'
    records.write('x', value)
    literal = f'{{"boot_id": "{sysfs.boot_id()}", "before": {text}}}'
    assert path.read_text() == literal
    path.write_text(literal)
    assert records.read('x') == value
    assert records.names() == ['x']
    here.reboot()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(literal)
    assert records.read('x') is None
    records.delete('x')
    assert records.names() == []


def test_records_of_an_earlier_version(here):
    for records, value, directory, text in RECORDS:
        for later in (', "kept": false', ', "settings": []'):
            if later in text:
                records.write('x', value)
                path = pathlib.Path(root_folder.PATH) / directory / 'x'
                path.write_text(path.read_text().replace(later, ''))
                assert records.read('x') == value


@pytest.mark.parametrize(
    'text',
    [
        '{',
        '[]',
        '{}',
        '{"boot_id": "BOOT"}',
        '{"boot_id": "BOOT", "before": {}}',
        '{"boot_id": "BOOT", "before": {"number": 5, "more": 1}}',
    ],
)
def test_a_damaged_record(here, text):
    """It is an error, because what was there before is not known."""
    mdev_records.vgpus.write('x', mdev_records.Vgpu(5))
    path = pathlib.Path(root_folder.PATH) / 'vgpus/x'
    path.write_text(text.replace('BOOT', sysfs.boot_id()))
    with pytest.raises(exception.PrivilegeError) as caught:
        mdev_records.vgpus.read('x')
    said = str(caught.value)
    assert f'the record {path} cannot be read (' in said
    assert 'or written by another version of os-acc' in said


def test_each_record_has_its_text_here():
    """A new one is forgotten otherwise, and may change between releases."""
    package = pathlib.Path(os_acc.__file__).parent / 'privileged'
    made = [
        name
        for path in package.rglob('*.py')
        for name in re.findall(
            r"^\w+ = (?:undo_log\.)?Records\('([\w-]+)'",
            path.read_text(),
            re.MULTILINE,
        )
    ]
    assert set(made) == {kind for _, _, kind, _ in RECORDS}
