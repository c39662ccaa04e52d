# SPDX-License-Identifier: Apache-2.0

"""The signs that the host uses a PCI function: each of the table, and ways."""

from __future__ import annotations

import errno
import fcntl
import gc
import ipaddress
import os
import pathlib
import struct
import sys
import weakref

import devices
import disks
from hypothesis import given
from hypothesis import strategies
import pytest
import services

import os_acc
from os_acc import exception
from os_acc.availability import host_use
from os_acc.availability.host_signs import table
from os_acc.availability.host_signs import ways
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs

NAME = 'nvme0n1'
NUMBER = '259:0'
UUID = '0f6a7b8c-1111-4222-8333-444455556666'
CONFIGFS = 'sys/kernel/config'
PORT = '0x10000090fa942779'
HBA = '0000:3b:00.0'
NIC = '0000:5e:00.0'
VMD = '0000:00:0e.0'
BEHIND_VMD = '10000:e1:00.0'
OTHER_NIC = '0000:5e:00.1'
OVER_FC = (
    'traddr=nn-0x200000109b579ef3:pn-0x100000109b579ef3,'
    'host_traddr=nn-0x20000090fa942779:pn-0x10000090fa942779'
)


@pytest.fixture
def here(kernel, monkeypatch):
    monkeypatch.setattr(sysfs, 'count_directories', count_directories)
    devices.furnish(kernel)
    os_acc.initialize()
    return kernel


@pytest.fixture
def wide(here):
    """A host with a Fibre Channel card and two network cards."""
    path = here.add_function(HBA, '10df:e300', 0x0C0400, 'lpfc')
    disks.add_port(here, path, 'host5', PORT)
    other = here.add_function('0000:3b:00.1', '10df:e300', 0x0C0400, 'lpfc')
    disks.add_port(here, other, 'host6', '0x10000090fa94277a')
    for address, name in ((NIC, 'ens1'), (OTHER_NIC, 'ens2')):
        here.add_function(address, '15b3:1017', 0x020000, 'mlx5', net=name)
    route(here, ('ens1', '192.0.2.0', 24), ('ens2', '198.51.100.0', 24))
    return here


def route(kernel, *rows):
    """The file route of procfs, as fib_route_seq_show() writes it."""
    lines = ['Iface Destination Gateway Flags RefCnt Use Metric Mask']
    for name, network, length in rows:
        mask = ipaddress.ip_network(f'0.0.0.0/{length}').netmask
        texts = [
            f'{int.from_bytes(each.packed, sys.byteorder):08X}'
            for each in (ipaddress.ip_address(network), mask)
        ]
        lines.append(f'{name} {texts[0]} 0 1 0 0 0 {texts[1]} 0 0 0')
    kernel.write_file('proc/net/route', '\n'.join(lines) + '\n')


def use(address) -> str:
    """What the host uses a function for; empty: nothing."""
    found = host_use.by_host(pci.get(address))
    return found.text if found else ''


def refused(address) -> str:
    error = devices.refused(devices.pci(address))
    assert isinstance(error, exception.DeviceInUseByHost), error
    return str(error)


# --- each sign of the table


def _function(name, text):
    return lambda kernel: kernel.write_file(
        f'sys/devices/pci0000:00/{devices.DISK}/{name}', text
    )


def _file(name, text):
    return lambda kernel: kernel.write_file(name, text)


def _net(name):
    def make(kernel):
        kernel.add_function(HBA, '8086:10d3', 0x020000, 'e1000e', net='eth9')
        path = kernel.sys / 'class/net/eth9'
        if name == 'flags':
            (path / 'flags').write_text('0x1003\n')
        else:
            (path / name).symlink_to(kernel.sys / 'class/net/bond0')

    return make


def _idxd(kernel):
    kernel.add_function(HBA, '8086:0b25', 0x088000, 'idxd')
    device = kernel.sys / f'devices/pci0000:00/{HBA}/dsa0'
    for name, text in {
        'state': 'enabled',
        'wq0.0/state': 'enabled',
    }.items():
        kernel.write_file(
            str((device / name).relative_to(kernel.root)), f'{text}\n'
        )
    directory = kernel.sys / 'bus/dsa/devices'
    directory.mkdir(parents=True)
    (directory / 'dsa0').symlink_to(device)
    (directory / 'wq0.0').symlink_to(device / 'wq0.0')


def _vmd(kernel):
    """The endpoint, a bridge of its PCI domain, and a drive."""
    files = {'reset': '', 'reset_method': 'flr\n'}
    path = kernel.add_function(VMD, '8086:467f', 0x010400, 'vmd', files=files)
    bridge = disks.add_child(kernel, path / 'pci10000:e0', '10000:e0:06.0')
    drive = disks.add_child(kernel, bridge, BEHIND_VMD)
    for name, text in files.items():
        (drive / name).write_text(text)
    return drive


def _vfio_behind_vmd(kernel):
    _vmd(kernel)
    kernel.add_driver('vfio-pci')
    kernel.unbind(BEHIND_VMD)
    kernel.bind(BEHIND_VMD, 'vfio-pci')


def _vdpa(kernel):
    path = kernel.sys / f'devices/pci0000:00/{devices.DISK}/vdpa0'
    path.mkdir()
    directory = kernel.sys / 'bus/vdpa/devices'
    directory.mkdir(parents=True)
    (directory / 'vdpa0').symlink_to(path)


def _btrfs(kernel):
    place = kernel.sys / f'fs/btrfs/{UUID}/devices'
    place.mkdir(parents=True)
    (place / NAME).symlink_to(kernel.sys / f'class/block/{NAME}')


def _shared(kernel, kind, source='srv'):
    """A device that shares a directory with this virtual machine."""
    kernel.write_file(
        'proc/self/mountinfo', f'36 25 0:31 / /data rw - {kind} {source} rw\n'
    )
    path = kernel.add_function(HBA, '1af4:105a', 0x018000, 'virtio-pci')
    device = path / 'virtio7'
    device.mkdir()
    return device


def _virtiofs(kernel, source='srv'):
    device = _shared(kernel, 'virtiofs', source)
    kernel.write_file('sys/fs/virtiofs/7/tag', 'srv\n')
    (kernel.sys / 'fs/virtiofs/7/device').symlink_to(device)


def _9p(kernel, source='srv'):
    device = _shared(kernel, '9p', source)
    (device / 'mount_tag').write_text('srv\0')
    directory = kernel.sys / 'bus/virtio/drivers/9pnet_virtio'
    directory.mkdir(parents=True)
    (directory / 'virtio7').symlink_to(device)


def _automount(kernel, source=f'/dev/{NAME}'):
    kernel.write_file(
        'proc/self/mountinfo',
        '36 25 0:31 / /backup rw shared:20 - autofs systemd-1 rw,fd=29\n',
    )
    kernel.write_file(
        'etc/fstab',
        '# the table of file systems\n\n'
        f'{source} /backup xfs noauto,x-systemd.automount 0 0\n'
        '/dev/sdx1 /srv xfs noauto 0 0\n',
    )


def _superblock(kernel, kind='sys/fs/xfs'):
    """Mounted where this process does not see it."""
    kernel.write_file(f'{kind}/{NAME}/x', '')
    kernel.write_file(f'{kind}/sdx/x', '')


def _zfs(kernel):
    (kernel.root / 'proc/spl/kstat/zfs/tank').mkdir(parents=True)
    member(kernel, NUMBER, 'E:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=tank\n')


def member(kernel, number, text):
    kernel.write_file(f'run/udev/data/b{number}', f'S:disk/by-id/x\n{text}')


def _loop(kernel):
    path = disks.add_block(
        kernel, kernel.sys / 'devices/virtual/block/loop0', '7:0'
    )
    (path / 'loop').mkdir()
    (path / 'loop/backing_file').write_text(f'/dev/{NAME}\n')


def _journal(kernel):
    (kernel.root / f'proc/fs/jbd2/{NAME}').mkdir(parents=True)
    # The journal within the file system of another disk.
    (kernel.root / 'proc/fs/jbd2/sdx1-8').mkdir()


def _rnbd(kernel):
    directory = kernel.sys / 'class/rnbd-server/ctl/devices/<disk>'
    directory.mkdir(parents=True)
    (directory / 'block_dev').symlink_to(kernel.sys / f'class/block/{NAME}')


def _elsewhere(kernel):
    """A card of two ports: a container has one of its interfaces."""
    kernel.add_function(HBA, '15b3:1003', 0x020000, 'mlx4_core', net='eth9')
    kernel.write_file(f'sys/devices/pci0000:00/{HBA}/net/count', '3')


def count_directories(path):
    """Not each file system counts the directories of a directory."""
    if not os.path.isdir(path):
        return 0
    try:
        return int(pathlib.Path(path, 'count').read_text())
    except FileNotFoundError:
        return sum(entry.is_dir() for entry in os.scandir(path))


def _nvmet_port(kernel):
    path = kernel.add_function(HBA, '10df:e300', 0x0C0400, 'lpfc')
    disks.add_port(kernel, path, 'host5', PORT)
    directory = f'{CONFIGFS}/nvmet/ports/1'
    kernel.write_file(f'{directory}/addr_trtype', 'fc\n')
    address = f'nn-0x20000090fa942779:pn-{PORT}'
    kernel.write_file(f'{directory}/addr_traddr', f'{address}\n')
    kernel.write_file(f'{directory}/subsystems/nqn.test/attr_x', '')


def _lio_port(kernel):
    path = kernel.add_function(HBA, '1077:2261', 0x0C0400, 'qla2xxx')
    disks.add_port(kernel, path, 'host5', '0x21000024ff314c48')
    (
        kernel.root
        / f'{CONFIGFS}/target/qla2xxx/21:00:00:24:ff:31:4c:48/tpgt_1'
    ).mkdir(parents=True)


def _tape(kernel):
    """targetcli: /backstores/pscsi create tape /dev/sg3"""
    path = kernel.add_function(HBA, '1000:0097', 0x010700, 'mpt3sas')
    device = path / 'host5/target5:0:0/5:0:0:1'
    (device / 'scsi_tape/nst0').mkdir(parents=True)
    disks.link(kernel, 'scsi_device/5:0:0:1', device)
    directory = f'{CONFIGFS}/target/core/pscsi_0/tape'
    kernel.write_file(f'{directory}/udev_path', '/dev/sg3\n')
    kernel.write_file(
        f'{directory}/info',
        'Status: ACTIVATED  Max Queue Depth: 0\n'
        '        SCSI Device Bus Location: Channel ID: 0 Target ID: 0 '
        'LUN: 1 Host ID: 5\n        Vendor: IBM      Model: ULT3580\n',
    )


# By the start of the file of the sign: what shows it, of which function, and
# what the refusal says.
CASES = {
    **{
        file: (make, services.CARD, text)
        for file, (make, text) in services.SIGNS.items()
    },
    '/sys/bus/pci/devices/ADDRESS/UUID': (
        _function(f'{UUID}/x', ''),
        devices.DISK,
        f'mediated device {UUID}',
    ),
    '/sys/bus/dsa/devices/wqN.M/state': (_idxd, HBA, 'dsa0'),
    '/sys/bus/pci/devices/ADDRESS/nvidia/current_vgpu_type': (
        _function('nvidia/current_vgpu_type', '558\n'),
        devices.DISK,
        'vGPU type 558',
    ),
    '/sys/bus/vdpa/devices/NAME': (_vdpa, devices.DISK, 'vDPA device vdpa0'),
    '/sys/bus/pci/devices/ADDRESS/pciDOMAIN': (
        _vfio_behind_vmd,
        VMD,
        f'{BEHIND_VMD} is behind it and is bound to vfio-pci',
    ),
    '/sys/kernel/config/nvmet/subsystems/NQN/passthru/device_path': (
        lambda kernel: [
            disks.add_controller(
                kernel,
                kernel.sys / f'devices/pci0000:00/{devices.DISK}/nvme',
                'nvme0',
                'pcie',
            ),
            _file(
                f'{CONFIGFS}/nvmet/subsystems/nqn.test/passthru/device_path',
                '/dev/nvme0\n',
            )(kernel),
        ],
        devices.DISK,
        'controller nvme0 is exported',
    ),
    '/sys/fs/virtiofs': (
        _virtiofs,
        HBA,
        'the directory srv that it shares is mounted on /data',
    ),
    '/sys/class/net/NAME/master': (_net('master'), HBA, 'part of bond0'),
    '/sys/class/net/NAME/upper_OTHER': (
        _net('upper_macvlan0'),
        HBA,
        'carries macvlan0',
    ),
    '/sys/class/net/NAME/flags': (_net('flags'), HBA, 'eth9 is up'),
    '/sys/kernel/config/nvmet/ports': (
        _nvmet_port,
        HBA,
        'port 1 (fc nn-0x20000090fa942779',
    ),
    '/sys/kernel/config/target/FABRIC': (
        _lio_port,
        HBA,
        'port 21:00:00:24:ff:31:4c:48 (qla2xxx) of the SCSI target',
    ),
    '/proc/PID/mountinfo': (
        _file(
            'proc/self/mountinfo',
            f'36 35 {NUMBER} / /srv rw - ext4 /dev/root rw\n',
        ),
        devices.DISK,
        'mounted on /srv',
    ),
    '/etc/fstab': (
        _automount,
        devices.DISK,
        f'block device {NAME} is mounted on /backup as soon as',
    ),
    '/sys/fs/KIND/NAME': (
        _superblock,
        devices.DISK,
        f'a file system (xfs) on block device {NAME} is mounted',
    ),
    '/sys/fs/btrfs': (_btrfs, devices.DISK, f'member of the btrfs {UUID}'),
    '/proc/spl/kstat/zfs': (_zfs, devices.DISK, 'member of the ZFS pool tank'),
    '/proc/swaps': (
        _file('proc/swaps', f'Filename Type\n/dev/{NAME} partition\n'),
        devices.DISK,
        'swap space',
    ),
    '/proc/fs/jbd2': (
        _journal,
        devices.DISK,
        'the journal of a mounted file system',
    ),
    '/sys/class/rnbd-server': (_rnbd, devices.DISK, 'the RNBD target'),
    '/sys/class/block/NAME/holders': (
        _function(f'block/{NAME}/holders/dm-0', ''),
        devices.DISK,
        'a part of dm-0',
    ),
    '/sys/class/block/NAME/bcache': (
        _function(f'block/{NAME}/bcache/state', 'clean\n'),
        devices.DISK,
        'a part of bcache',
    ),
    '/sys/class/block/loopN': (_loop, devices.DISK, 'a part of loop0'),
    '/sys/kernel/config/nvmet/subsystems/NQN/namespaces': (
        _file(
            f'{CONFIGFS}/nvmet/subsystems/nqn.test/namespaces/1/device_path',
            f'/dev/{NAME}\n',
        ),
        devices.DISK,
        'a namespace of nqn.test',
    ),
    '/sys/kernel/config/target/core/pscsi': (
        _tape,
        HBA,
        'SCSI device 5:0:0:1 is the backstore pscsi_0/tape',
    ),
    '/sys/kernel/config/target/core/HBA': (
        _file(
            f'{CONFIGFS}/target/core/iblock_0/disk1/udev_path',
            f'/dev/{NAME}\n',
        ),
        devices.DISK,
        'the backstore iblock_0/disk1',
    ),
}


def test_each_sign_of_the_table_has_a_case():
    """A new sign needs one: its file begins like exactly one key."""
    for sign in table.SIGNS:
        found = [key for key in CASES if sign.file.startswith(key)]
        assert len(found) == 1, sign.file
    assert len(CASES) == len(table.SIGNS)


@pytest.mark.parametrize('file', CASES)
def test_a_sign(here, file):
    make, address, text = CASES[file]
    make(here)
    assert text in use(address)


@pytest.mark.parametrize('file', CASES)
def test_a_sign_says_nothing_of_another_function(here, file):
    CASES[file][0](here)
    assert use(devices.GPU) == ''


# --- a file that cannot be read


@pytest.mark.parametrize(
    'name',
    [
        f'{NAME}/holders',
        'proc/swaps',
        'proc/self/mountinfo',
        'nvmet/subsystems',
        f'fs/btrfs/{UUID}/devices',
    ],
)
def test_what_cannot_be_read_counts_as_used(here, monkeypatch, name):
    (here.sys / 'fs/btrfs' / UUID).mkdir(parents=True)
    deny(monkeypatch, name)
    text = use(devices.DISK)
    assert f'{name} cannot be read (Permission denied)' in text
    assert use(devices.GPU) == ''
    assert 'cannot be read' in refused(devices.DISK)


def deny(monkeypatch, name):
    """The kernel, or a security module, refuses to show a file."""

    def refuse(function):
        def act(path, *args, **kwargs):
            if str(path).endswith(name):
                number = errno.EACCES
                raise PermissionError(number, os.strerror(number), str(path))
            return function(path, *args, **kwargs)

        return act

    for name_of in ('names', 'folders', 'read', 'read_long', 'place'):
        monkeypatch.setattr(sysfs, name_of, refuse(getattr(sysfs, name_of)))


def test_an_unreadable_file_of_one_disk_says_nothing_of_another(
    here, monkeypatch
):
    here.add_function(HBA, '144d:a80a', 0x010802, 'nvme', block='nvme5n1')
    deny(monkeypatch, 'nvme5n1/holders')
    assert 'nvme5n1/holders cannot be read' in use(HBA)
    assert use(devices.DISK) == ''


def test_the_link_of_one_disk_cannot_be_read(here, wide, monkeypatch):
    """What it needs is unknown: each disk and port may be on its way."""
    here.add_function('0000:c1:00.0', '144d:a80a', 0x010802, block='nvme5n1')
    deny(monkeypatch, 'class/block/nvme5n1')
    text = 'class/block/nvme5n1 cannot be read (Permission denied)'
    assert text in use(HBA)
    assert use(devices.GPU) == ''
    assert any(x.address == devices.GPU for x in os_acc.get_devices())


@pytest.mark.parametrize('file', ['hidden', 'dev'])
def test_a_file_of_one_disk_cannot_be_read(here, monkeypatch, file):
    here.add_function(HBA, '144d:a80a', 0x010802, 'nvme', block='nvme5n1')
    deny(monkeypatch, f'nvme5n1/{file}')
    assert f'nvme5n1/{file} cannot be read' in use(HBA)
    assert use(devices.DISK) == ''
    assert free(devices.DISK) == 1


def test_the_way_of_one_disk_cannot_be_read(wide, monkeypatch):
    """A controller of NVMe over Fabrics that is being removed: EIO."""
    path = disks.connect(wide, 'nvme3', 'fc', OVER_FC)
    disks.add_block(wide, path / 'nvme3n1', '259:60')
    assert use('0000:3b:00.1') == ''
    deny(monkeypatch, 'nvme3/address')
    for address in (HBA, '0000:3b:00.1', NIC):
        assert 'nvme3/address cannot be read' in use(address)
    assert use(devices.DISK) == use(devices.GPU) == ''


@pytest.mark.parametrize(
    'name', ['nvmet/subsystems', 'nvmet/ports', 'kernel/config/target']
)
def test_an_unreadable_target_says_nothing_of_a_gpu(wide, monkeypatch, name):
    deny(monkeypatch, name)
    assert use(devices.GPU) == ''
    used = HBA if 'sub' not in name else devices.DISK
    assert f'{name} cannot be read' in use(used)


@pytest.mark.parametrize('module', ['nvmet', 'target_core_mod'])
def test_a_target_whose_configfs_is_not_mounted_here(wide, module):
    """A container has a sysfs of its own, without configfs."""
    (wide.sys / f'module/{module}').mkdir(parents=True)
    for address in (devices.DISK, HBA, NIC):
        assert 'configfs is not mounted here' in use(address)
    assert use(devices.GPU) == ''
    (wide.root / CONFIGFS / 'nvmet').mkdir(parents=True)
    (wide.root / CONFIGFS / 'target').mkdir()
    assert use(devices.DISK) == ''


def test_a_file_of_an_unknown_form_counts_as_used(here):
    _net('flags')(here)
    (here.sys / 'class/net/eth9/flags').write_text('up\n')
    assert '/sys/class/net/NAME/flags cannot be read' in use(HBA)
    assert use(devices.GPU) == ''


def test_routes_of_an_unknown_form(wide):
    """NVMe over TCP may need each card then; a GPU is free."""
    path = disks.connect(wide, 'nvme3', 'tcp', 'traddr=192.0.2.9')
    disks.add_block(wide, path / 'nvme3n1', '259:60')
    wide.write_file('proc/net/route', 'Iface\nens1 zz\n')
    assert 'unknown form' in use(NIC)
    assert 'unknown form' in use(OTHER_NIC)
    assert use(devices.GPU) == ''


# --- a disk by its number, or by another name


def node(kernel, path):
    """A file of the disk at another place than /dev."""
    kernel.add_node(path, f'b {NUMBER}')
    directory = kernel.sys / 'dev/block'
    directory.mkdir(parents=True, exist_ok=True)
    (directory / NUMBER).symlink_to(kernel.sys / f'class/block/{NAME}')
    # The test's own directory may be below /dev.
    return f'/dev/..{path}'


def test_a_loop_device_on_a_raw_volume_of_kubelet(here):
    """kubelet sets one up on a device file below /var/lib/kubelet."""
    path = node(here, '/var/lib/kubelet/plugins/x/volumeDevices/pvc-1/dev/u')
    _loop(here)
    loop = here.sys / 'class/block/loop0/loop/backing_file'
    loop.write_text(f'{path}\n')
    assert 'a part of loop0' in refused(devices.DISK)


@pytest.mark.parametrize('asked', [True, False])
def test_a_loop_device_of_another_mount_namespace(here, monkeypatch, asked):
    """Its path is not here: the loop device tells root the number."""

    def tell(fd, request, info):
        if not asked:
            raise PermissionError(errno.EPERM, 'Operation not permitted')
        struct.pack_into('=Q', info, 16, os.makedev(259, 0))

    node(here, '/srv/x')
    _loop(here)
    loop = here.sys / 'class/block/loop0/loop/backing_file'
    loop.write_text('/elsewhere/disk\n')
    monkeypatch.setattr(fcntl, 'ioctl', tell)
    assert ('a part of loop0' in use(devices.DISK)) is asked


def test_an_export_by_a_device_file_of_its_own(here):
    path = node(here, '/run/target/disk')
    place = f'{CONFIGFS}/nvmet/subsystems/nqn.test/namespaces/1'
    here.write_file(f'{place}/device_path', f'{path}\n')
    assert 'nqn.test' in use(devices.DISK)


def test_a_backstore_of_a_file_that_is_a_disk(here):
    """The fileio backstore does not open it exclusively."""
    place = f'{CONFIGFS}/target/core/fileio_0/disk2'
    here.write_file(
        f'{place}/info',
        'Status: ACTIVATED  Max Queue Depth: 0\n        TCM FILEIO ID: 0'
        f'        File: /dev/{NAME}  Size: 1024  Mode: O_DSYNC Async: 0\n',
    )
    assert 'fileio_0/disk2' in use(devices.DISK)


def test_swap_on_a_device_file_that_was_made_anew(here):
    here.write_file(
        'proc/swaps', f'Filename Type\n/dev/{NAME}\\040(deleted) partition\n'
    )
    assert 'swap space' in use(devices.DISK)


def test_a_disk_with_a_slash_in_its_name(here):
    """cciss makes /dev/cciss/c0d0, which sysfs calls cciss!c0d0."""
    path = here.add_function(HBA, '103c:323a', 0x010400, 'cciss')
    (here.root / 'dev/cciss').mkdir()
    (here.root / 'dev/cciss/c0d0').touch()
    disks.add_block(here, path / 'block/cciss!c0d0', '104:0')
    assert use(HBA) == ''
    assert open_files.exclusively_used(['cciss!c0d0']) == []
    here.write_file('proc/swaps', 'Filename Type\n/dev/cciss/c0d0 partition\n')
    assert 'swap space' in use(HBA)


def test_a_pool_with_a_blank_in_its_name(here):
    (here.root / 'proc/spl/kstat/zfs/my tank').mkdir(parents=True)
    member(
        here,
        NUMBER,
        'E:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=my_tank\n'
        'E:ID_FS_LABEL_ENC=my\\x20tank\n',
    )
    assert 'the ZFS pool my tank' in use(devices.DISK)


# --- mounts


@pytest.mark.parametrize(
    'after, disk',
    [
        ('btrfs /dev/nvme0n1 rw', True),
        # A member of a bcachefs that is not the first one.
        ('bcachefs /dev/sdx:/dev/nvme0n1 rw', True),
        # The log, or the realtime section, of an XFS on another disk.
        ('xfs /dev/sdx rw,attr2,logdev=/dev/nvme0n1,noquota', True),
        ('xfs /dev/sdx rw,rtdev=/dev/nvme0n1', True),
        ('xfs /dev/disk/by-id/nvme-serial rw', True),
        ('xfs /dev/nvme0n10 rw', False),
        ('nfs4 server:/dev/nvme0n1 rw', False),
        ('tmpfs nvme0n1 rw', False),
    ],
)
def test_a_mount_by_its_source(here, after, disk):
    directory = here.root / 'dev/disk/by-id'
    directory.mkdir(parents=True)
    (directory / 'nvme-serial').symlink_to(here.root / 'dev/nvme0n1')
    here.write_file(
        'proc/self/mountinfo', f'36 35 0:42 / /srv/a\\040b rw - {after}\n'
    )
    assert use(devices.DISK) == (
        'block device nvme0n1 is mounted on /srv/a b' if disk else ''
    )


@pytest.mark.parametrize('pid', ['1', '4711'])
def test_a_mount_in_another_namespace(here, pid):
    """The service has a mount namespace of its own, or a container has."""
    for each, namespace in (('self', 'mnt:[1]'), (pid, 'mnt:[2]')):
        directory = here.root / f'proc/{each}/ns'
        directory.mkdir(parents=True)
        (directory / 'mnt').symlink_to(namespace)
    here.write_file(
        f'proc/{pid}/mountinfo',
        f'36 35 {NUMBER} / /var rw - ext4 /dev/root rw\n',
    )
    assert 'nvme0n1 is mounted on /var' in refused(devices.DISK)


def test_a_mount_of_a_container_as_another_user_sees_it(here, monkeypatch):
    """Who may not see the namespace of a process may see its mounts."""
    here.write_file(
        'proc/4711/mountinfo',
        f'51 50 {NUMBER} / /var rw - ext4 /dev/root rw\n',
    )
    deny(monkeypatch, '4711/ns/mnt')
    assert free(devices.DISK) == 0


def test_a_mount_outside_the_chroot_of_the_first_process(here):
    """The first process that is found may not reach all mounts."""
    mounted = f'35 30 {NUMBER} / /var rw - ext4 /dev/root rw\n'
    chroot = '44 35 0:5 / / rw - tmpfs tmpfs rw\n'
    here.write_file('proc/self/mountinfo', chroot)
    here.write_file('proc/99/mountinfo', mounted + chroot)
    assert 'is mounted on /var' in use(devices.DISK)


@pytest.mark.parametrize('name', ['4711/mountinfo', '1/mountinfo'])
def test_a_process_that_may_not_be_seen_is_left_out(here, monkeypatch, name):
    here.write_file(f'proc/{name}', '')
    deny(monkeypatch, name)
    assert use(devices.DISK) == ''


@pytest.mark.parametrize(
    'kind',
    [
        'sys/fs/ext4',
        'sys/fs/xfs',
        'sys/fs/f2fs',
        'sys/fs/nilfs2',
        'sys/fs/erofs',
        'proc/fs/ntfs3',
    ],
)
def test_a_mount_that_no_process_shows(here, kind):
    """procfs hides it (hidepid=), or umount --lazy has detached it."""
    assert free(devices.DISK) == 1
    _superblock(here, kind)
    assert free(devices.DISK) == 0
    kind = kind.rpartition('/')[2]
    assert f'a file system ({kind}) on block device {NAME}' in refused(
        devices.DISK
    )


def test_a_mount_that_is_seen_is_told_once(here):
    _superblock(here)
    disks.mount(here, here.sys / f'class/block/{NAME}', '/srv')
    found = table.uses(pci.get(devices.DISK), host_use.Snapshot.read())
    assert [x.text for x in found] == [
        f'block device {NAME} is mounted on /srv'
    ]


@pytest.mark.parametrize('make', [_virtiofs, _9p])
@pytest.mark.parametrize('source, used', [('srv', True), ('home', False)])
def test_a_directory_of_another_machine(here, make, source, used):
    """A host that is a virtual machine: it has no block device of it."""
    make(here, source)
    assert ('directory srv that it shares' in use(HBA)) is used


@pytest.mark.parametrize('source', [f'/dev/{NAME}', 'UUID=1234-ABCD'])
def test_a_mount_on_demand(here, source):
    """x-systemd.automount with x-systemd.idle-timeout: it is not mounted."""
    directory = here.root / 'dev/disk/by-uuid'
    directory.mkdir(parents=True)
    (directory / '1234-ABCD').symlink_to(here.root / f'dev/{NAME}')
    _automount(here, source)
    assert free(devices.DISK) == 0
    assert 'is mounted on /backup as soon as' in refused(devices.DISK)


def test_an_entry_of_fstab_that_nobody_mounts(here):
    """Without an automounter it is the operator's decision."""
    _automount(here)
    here.write_file('proc/self/mountinfo', '')
    assert use(devices.DISK) == ''


# --- members of a pool


@pytest.mark.parametrize(
    'text, used',
    [
        ('E:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=tank\n', True),
        # A cache device does not name its pool.
        ('E:ID_FS_TYPE=zfs_member\n', True),
        ('E:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=exported\n', False),
        ('E:ID_FS_TYPE=LVM2_member\n', False),
        ('E:ID_FS_LABEL=tank\nE:ID_FS_TYPE=ext4\n', False),
    ],
)
def test_a_member_of_an_imported_pool(here, text, used):
    member(here, NUMBER, text)
    assert use(devices.DISK) == ''
    (here.root / 'proc/spl/kstat/zfs/tank').mkdir(parents=True)
    assert ('pool tank' in use(devices.DISK)) is used


def test_the_partition_of_a_whole_disk_in_a_pool(here):
    """zpool makes a partition of its own and gives that to ZFS."""
    disk = (here.sys / f'class/block/{NAME}').resolve()
    disks.add_block(here, disk / f'{NAME}p1', '259:31')
    (here.root / 'proc/spl/kstat/zfs/tank').mkdir(parents=True)
    member(here, '259:31', 'E:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=tank\n')
    assert f'{NAME}p1 is a member' in refused(devices.DISK)


@pytest.mark.parametrize('make', [_btrfs, _zfs])
def test_a_member_does_not_count_as_free(here, make):
    """btrfs and ZFS, as an ordinary user sees them in the inventory."""
    assert free(devices.DISK) == 1
    make(here)
    assert free(devices.DISK) == 0


def free(address) -> int:
    (device,) = (x for x in os_acc.get_devices() if x.address == address)
    return device.handles_free


# --- VMD


def test_an_endpoint_of_vmd_and_a_drive_behind_it_go_to_one_guest(here):
    """Each goes with the other: a second instance gets neither."""
    _vmd(here)
    devices.spec({'address': '*', 'command_empties': True})
    os_acc.CONF.set_override('cleaning_command', '/bin/true', 'os_acc')
    for first, second in ((BEHIND_VMD, VMD), (VMD, BEHIND_VMD)):
        owner = devices.instance()
        os_acc.plug(owner, [devices.pci(first)])
        text = str(devices.refused(devices.pci(second)))
        assert owner.uuid in text and first in text
        assert free(second) == 0
        os_acc.unplug(owner)
        assert free(second) == 1


def test_an_exported_controller_behind_vmd(here):
    drive = _vmd(here)
    disks.add_controller(here, drive / 'nvme', 'nvme7', 'pcie')
    place = f'{CONFIGFS}/nvmet/subsystems/nqn.test/passthru/device_path'
    assert use(VMD) == ''
    here.write_file(place, '/dev/nvme7\n')
    assert use(VMD) == use(BEHIND_VMD) != ''


def test_an_exported_controller_over_fibre_channel(wide):
    """The NVMe target passes a drive of another host on."""
    disks.connect(wide, 'nvme3', 'fc', OVER_FC)
    place = f'{CONFIGFS}/nvmet/subsystems/nqn.test/passthru/device_path'
    wide.write_file(place, '/dev/nvme3\n')
    assert 'controller nvme3 is exported' in use(HBA)
    assert use('0000:3b:00.1') == ''


# --- NVMe with native multipath


@pytest.fixture
def two_paths(here):
    """A drive with two ports, each a PCI function."""
    controllers = []
    for number, address in enumerate(('0000:c1:00.0', '0000:c2:00.0'), 5):
        path = here.add_function(
            address,
            '144d:a824',
            0x010802,
            'nvme',
            files={'reset': '', 'reset_method': 'flr\n'},
        )
        controllers.append(
            disks.add_controller(here, path / 'nvme', f'nvme{number}', 'pcie')
        )
    return disks.add_subsystem(here, 5, *controllers)


def test_one_path_of_a_mounted_disk_is_refused(here, two_paths):
    disks.mount(here, two_paths)
    for address in ('0000:c1:00.0', '0000:c2:00.0'):
        assert 'nvme5n1 is mounted on /' in refused(address)
        assert free(address) == 0


def test_an_idle_disk_of_two_paths_can_be_had(here, two_paths):
    request = devices.pci('0000:c1:00.0')
    (van,) = os_acc.plug(devices.instance(), [request])
    assert van.handle.address == '0000:c1:00.0'


def test_a_partition_of_a_disk_of_two_paths(here, two_paths):
    disks.mount(here, disks.add_block(here, two_paths / 'nvme5n1p2', '259:9'))
    assert 'nvme5n1p2 is mounted' in refused('0000:c2:00.0')


def test_a_program_that_has_a_disk_of_two_paths_open(here, two_paths):
    """By the character device of the namespace, for commands of NVMe."""
    place = two_paths.parent / 'ng5n1'
    place.mkdir()
    (place / 'uevent').write_text('DEVNAME=ng5n1\n')
    directory = here.sys / 'dev/char'
    directory.mkdir(parents=True, exist_ok=True)
    (directory / '235:5').symlink_to(place)
    here.add_node('/dev/ng5n1', 'c 235:5')
    pid = here.hold('/dev/ng5n1', 'fio', 'c 235:5')
    for address in ('0000:c1:00.0', '0000:c2:00.0'):
        text = str(devices.refused(devices.pci(address)))
        assert f'process {pid} (fio) has' in text
        assert 'ng5n1' in text


@pytest.mark.parametrize('hidden', [True, False])
def test_a_path_that_nobody_can_open(here, two_paths, hidden):
    """Linux 4.15 has no file hidden yet; the path has no number there."""
    if not hidden:
        for file in here.sys.glob('devices/pci*/**/hidden'):
            file.unlink()
    found = host_use.Snapshot.read()
    assert found.blocks_of('0000:c1:00.0') == ['nvme5n1']
    assert {*found.paths} == {'nvme0n1', 'nvme5n1'}


@pytest.fixture
def two_ports(here):
    """A drive with two ports, and nvme_core.multipath=N.

    :returns: the disk as each port shows it
    """
    shown = []
    for number, address in enumerate(('0000:c1:00.0', '0000:c2:00.0'), 5):
        path = here.add_function(
            address,
            '144d:a824',
            0x010802,
            'nvme',
            files={'reset': '', 'reset_method': 'flr\n'},
        )
        controller = disks.add_controller(
            here, path / 'nvme', f'nvme{number}', 'pcie'
        )
        (controller / 'subsysnqn').write_text('nqn.drive\n')
        disk = disks.add_block(
            here, controller / f'nvme{number}n1', f'259:{number}0'
        )
        (disk / 'wwid').write_text('eui.00253845\n')
        shown.append(disk)
    return shown


def test_the_other_port_of_a_mounted_disk(here, two_ports):
    """Its guest could write to the host's disk."""
    assert free('0000:c2:00.0') == 1
    disks.mount(here, two_ports[0])
    for address in ('0000:c1:00.0', '0000:c2:00.0'):
        assert free(address) == 0
        assert 'nvme5n1 is mounted on /' in refused(address)


def test_a_partition_of_the_disk_of_the_other_port(here, two_ports):
    part = two_ports[0] / 'nvme5n1p2'
    disks.mount(here, disks.add_block(here, part, '259:9'))
    assert 'nvme5n1p2 is mounted' in refused('0000:c2:00.0')
    # A partition that only one port has read is used by no other disk.
    assert use(devices.DISK) == ''


@pytest.mark.parametrize(
    'place, text',
    [
        # A namespace that only the other port has.
        ('nvme6n1/wwid', 'eui.00253846'),
        # Another drive, whose maker gives all of them one name.
        ('subsysnqn', 'nqn.another'),
    ],
)
def test_a_port_that_does_not_lead_to_the_mounted_disk(
    here, two_ports, place, text
):
    (two_ports[1].parent / place).write_text(f'{text}\n')
    disks.mount(here, two_ports[0])
    assert use('0000:c2:00.0') == ''


@pytest.mark.parametrize(
    'name, used',
    [
        ('naa.600508b1001c4d41', True),
        ('t10.ATA     QEMU HARDDISK   QM00001', False),
    ],
)
def test_a_mounted_lun_that_another_adapter_has_too(wide, name, used):
    """Two ports of Fibre Channel, and no multipathd."""
    other = '0000:3b:00.1'
    for number, address in ((5, HBA), (6, other)):
        device = (wide.pci / 'devices' / address).resolve() / (
            f'host{number}/rport-{number}:0-0/target{number}:0:0/'
            f'{number}:0:0:1'
        )
        disk = disks.add_block(
            wide, device / f'block/sd{number}', f'8:{number}'
        )
        (disk / 'device').symlink_to(device)
        (device / 'wwid').write_text(f'{name}\n')
    disks.mount(wide, disk)
    assert 'sd6 is mounted' in use(other)
    assert use(HBA) == ('block device sd6 is mounted on /' if used else '')


def test_a_disk_without_a_worldwide_name(here, monkeypatch):
    """The kernel refuses to show that of a disk of USB, and it is free."""
    read = sysfs.read

    def refuse(path):
        if path.endswith('/device/wwid'):
            raise OSError(errno.EINVAL, 'Invalid argument', path)
        return read(path)

    monkeypatch.setattr(sysfs, 'read', refuse)
    assert use(devices.DISK) == ''


def test_a_disk_at_any_depth_behind_vmd(here):
    """A switch in the domain of a VMD endpoint, and native multipath."""
    vmd = here.add_function('0000:00:0e.0', '8086:467f', 0x010400, 'vmd')
    bridge = disks.add_child(here, vmd / 'pci10000:e0', '10000:e0:06.0')
    drive = disks.add_child(here, bridge / '10000:e1:00.0', '10000:e2:00.0')
    path = disks.add_controller(here, drive / 'nvme', 'nvme3', 'pcie')
    disk = disks.add_subsystem(here, 3, path)
    assert use('0000:00:0e.0') == ''
    disks.mount(here, disk)
    for address in ('0000:00:0e.0', '10000:e2:00.0'):
        assert 'nvme3n1 is mounted' in use(address)


# --- disks over Fibre Channel and over networks


def test_nvme_over_fibre_channel(wide):
    """A disk with native multipath: its path is below nvme-fabrics."""
    path = disks.connect(wide, 'nvme4', 'fc', OVER_FC)
    disks.mount(wide, disks.add_subsystem(wide, 4, path))
    assert 'nvme4n1 is mounted' in refused(HBA)
    assert use('0000:3b:00.1') == ''


def test_nvme_over_fibre_channel_without_multipath(wide):
    path = disks.connect(wide, 'nvme4', 'fc', OVER_FC)
    disks.mount(wide, disks.add_block(wide, path / 'nvme4n1', '259:50'))
    assert 'nvme4n1 is mounted' in refused(HBA)
    assert use('0000:3b:00.1') == ''


@pytest.mark.parametrize('address', ['', OVER_FC.replace('2779', '0000')])
def test_a_port_that_nobody_knows_may_be_each(wide, address):
    path = disks.connect(wide, 'nvme4', 'fc', address)
    disks.mount(wide, disks.add_subsystem(wide, 4, path))
    assert 'nvme4n1 is mounted' in use(HBA)
    assert 'nvme4n1 is mounted' in use('0000:3b:00.1')


@pytest.mark.parametrize('transport', ['tcp', 'rdma'])
@pytest.mark.parametrize(
    'address',
    [
        'traddr=203.0.113.9,trsvcid=4420,host_iface=ens1',
        'traddr=203.0.113.9,trsvcid=4420,host_traddr=192.0.2.5',
        'traddr=203.0.113.9,trsvcid=4420,src_addr=192.0.2.5',
        'traddr=192.0.2.9,trsvcid=4420',
    ],
)
def test_nvme_over_a_network(wide, transport, address):
    path = disks.connect(wide, 'nvme4', transport, address)
    disks.mount(wide, disks.add_subsystem(wide, 4, path))
    assert 'nvme4n1 is mounted' in refused(NIC)
    assert use(OTHER_NIC) == ''


def test_a_network_that_nothing_tells_may_be_each(wide):
    path = disks.connect(wide, 'nvme4', 'tcp', 'traddr=203.0.113.9')
    disks.mount(wide, disks.add_subsystem(wide, 4, path))
    assert 'nvme4n1 is mounted' in use(NIC)
    assert 'nvme4n1 is mounted' in use(OTHER_NIC)


def test_nvme_over_a_vlan_of_a_bond(wide):
    """The interface is two levels above its cards."""
    directory = wide.sys / 'devices/virtual/net'
    for name, *lowers in (('bond0', 'ens1', 'ens2'), ('vlan7', 'bond0')):
        (directory / name).mkdir(parents=True)
        disks.link(wide, f'net/{name}', directory / name)
        for each in lowers:
            (directory / name / f'lower_{each}').symlink_to(
                wide.sys / f'class/net/{each}'
            )
    path = disks.connect(wide, 'nvme4', 'tcp', 'host_iface=vlan7')
    disks.mount(wide, disks.add_subsystem(wide, 4, path))
    assert 'nvme4n1 is mounted' in refused(NIC)
    assert 'nvme4n1 is mounted' in refused(OTHER_NIC)


def test_the_default_route_of_ipv6(wide):
    wide.write_file(
        'proc/net/ipv6_route',
        f'{"0" * 32} 00 {"0" * 32} 00 {"f" * 32} 400 1 0 3 ens2\n',
    )
    address = 'traddr=2001:db8::9,trsvcid=4420'
    path = disks.connect(wide, 'nvme4', 'tcp', address)
    disks.mount(wide, disks.add_subsystem(wide, 4, path))
    assert use(NIC) == ''
    found = table.uses(pci.get(OTHER_NIC), host_use.Snapshot.read())
    assert 'block device nvme4n1 is mounted on /' in [x.text for x in found]


SESSION = 'devices/platform/host9/session2/target9:0:0/9:0:0:0/block/sdb'


@pytest.mark.parametrize(
    'file, text',
    [
        ('iscsi_host/host9/netdev', 'ens1'),
        ('iscsi_host/host9/ipaddress', '192.0.2.5'),
        ('iscsi_connection/connection2:0/local_ipaddr', '192.0.2.5'),
        ('iscsi_connection/connection2:0/address', '192.0.2.77'),
        ('iscsi_connection/connection2:0/persistent_address', '192.0.2.77'),
    ],
)
def test_iscsi_in_software(wide, file, text):
    disks.mount(wide, disks.add_block(wide, wide.sys / SESSION, '8:16'))
    (wide.sys / 'class/iscsi_connection/connection2:0').mkdir(parents=True)
    wide.write_file('sys/class/iscsi_host/host9/netdev', 'default\n')
    wide.write_file(f'sys/class/{file}', f'{text}\n')
    assert 'sdb is mounted' in refused(NIC)
    assert use(OTHER_NIC) == ''


def test_iscsi_while_its_session_is_down(wide, monkeypatch):
    """The kernel shows no address then: each card may be needed."""
    disks.mount(wide, disks.add_block(wide, wide.sys / SESSION, '8:16'))
    (wide.sys / 'class/iscsi_connection/connection2:0').mkdir(parents=True)
    read = sysfs.read

    def down(path):
        if '/iscsi_' in path:
            raise OSError(errno.ENOTCONN, 'Not connected', path)
        return read(path)

    monkeypatch.setattr(sysfs, 'read', down)
    assert 'sdb is mounted' in use(NIC)
    assert 'sdb is mounted' in use(OTHER_NIC)


def test_iscsi_that_has_lost_its_connection(wide):
    disks.mount(wide, disks.add_block(wide, wide.sys / SESSION, '8:16'))
    assert 'sdb is mounted' in use(NIC)


def test_fcoe_over_a_vlan(wide):
    """The SCSI host is below the interface: drivers/scsi/fcoe."""
    directory = wide.sys / 'devices/virtual/net/ens1.100'
    directory.mkdir(parents=True)
    disks.link(wide, 'net/ens1.100', directory)
    (directory / 'lower_ens1').symlink_to(wide.sys / 'class/net/ens1')
    place = (
        directory / 'ctlr_0/host7/rport-7:0-0/target7:0:0/7:0:0:0/block/sdc'
    )
    disks.mount(wide, disks.add_block(wide, place, '8:32'))
    assert 'sdc is mounted' in refused(NIC)
    assert use(OTHER_NIC) == ''


# --- what the host serves to others


def test_a_portal_of_iscsi(wide):
    directory = wide.root / f'{CONFIGFS}/target/iscsi/iqn.test/tpgt_1/np'
    (directory / '192.0.2.5:3260').mkdir(parents=True)
    assert 'iqn.test (iscsi)' in refused(NIC)
    assert use(OTHER_NIC) == ''


@pytest.mark.parametrize('address', ['0.0.0.0', '[::]'])
def test_a_portal_at_any_address_needs_no_certain_card(wide, address):
    directory = wide.root / f'{CONFIGFS}/target/iscsi/iqn.test/tpgt_1/np'
    (directory / f'{address}:3260').mkdir(parents=True)
    assert use(NIC) == ''


def test_a_target_over_infiniband(wide):
    """ib_srpt names its target by the GUID of the port."""
    path = wide.add_function(
        '0000:60:00.0', '15b3:1017', 0x020700, 'mlx5', net='ib0'
    )
    gids = path / 'infiniband/mlx5_0/ports/1/gids'
    gids.mkdir(parents=True)
    (gids / '0').write_text('fe80:0000:0000:0000:506b:4b03:00c1:8d2a\n')
    disks.link(wide, 'infiniband/mlx5_0', gids.parents[2])
    (wide.root / f'{CONFIGFS}/target/srpt/506b:4b03:00c1:8d2a/tpgt_1').mkdir(
        parents=True
    )
    assert '(srpt) of the SCSI target' in use('0000:60:00.0')


def test_a_target_on_a_virtual_port(wide):
    """NPIV with tcm_qla2xxx: the port, and the name of the virtual one."""
    virtual = '50:01:43:80:12:34:56:78:50:01:43:80:12:34:56:79'
    port = '10:00:00:90:fa:94:27:79'
    directory = wide.root / f'{CONFIGFS}/target/qla2xxx_npiv/{port}@{virtual}'
    (directory / 'tpgt_1').mkdir(parents=True)
    assert '(qla2xxx_npiv) of the SCSI target' in refused(HBA)
    assert use('0000:3b:00.1') == ''


def test_a_port_of_nvmet_without_a_subsystem_does_not_listen(wide):
    directory = f'{CONFIGFS}/nvmet/ports/1'
    wide.write_file(f'{directory}/addr_trtype', 'tcp\n')
    wide.write_file(f'{directory}/addr_traddr', '192.0.2.5\n')
    assert use(NIC) == ''
    (wide.root / directory / 'subsystems/nqn.test').mkdir(parents=True)
    assert 'port 1 (tcp 192.0.2.5) of the NVMe target' in refused(NIC)


def test_a_disk_behind_a_backstore(here):
    """iblock shows the disk also if its path was a link that is gone."""
    directory = f'{CONFIGFS}/target/core/iblock_0/disk1'
    here.write_file(f'{directory}/udev_path', '/dev/disk/by-id/gone\n')
    here.write_file(
        f'{directory}/info',
        'Status: ACTIVATED  Max Queue Depth: 0\n'
        f'        iBlock device: {NAME}  UDEV PATH: /dev/disk/by-id/gone\n',
    )
    assert 'backstore iblock_0/disk1' in refused(devices.DISK)


# --- a function without a driver


def test_a_driver_that_is_still_letting_go(here):
    """The kernel removes the link to the driver first: drivers/base/dd.c."""
    disk = (here.sys / f'class/block/{NAME}').resolve()
    disks.mount(here, disk)
    (here.pci / 'devices' / devices.DISK / 'driver').unlink()
    assert 'nvme0n1 is mounted' in refused(devices.DISK)


# --- routes


@given(
    address=strategies.ip_addresses(),
    length=strategies.integers(0, 32),
)
def test_the_longest_prefix_wins(tmp_path_factory, address, length):
    root = tmp_path_factory.mktemp('proc')
    (root / 'net').mkdir()
    wide_route = ipaddress.ip_network(f'{address}/{length // 2}', False)
    narrow = ipaddress.ip_network(f'{address}/{length // 2 + 1}', False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sysfs, 'PROC', str(root))
        text = ''.join(
            _row(network, name)
            for network, name in ((wide_route, 'far'), (narrow, 'near'))
        )
        four = address.version == 4
        (root / 'net' / ('route' if four else 'ipv6_route')).write_text(
            f'head\n{text}' if four else text
        )
        found = ways.Routes()
        assert found.interfaces(str(address)) == {'near'}
        assert found.interfaces('no address') == set()


def _row(network, name):
    if network.version == 6:
        return (
            f'{network.network_address.packed.hex()} {network.prefixlen:02x} '
            f'{"0" * 32} 00 {"0" * 32} 400 1 0 1 {name}\n'
        )
    texts = [
        f'{int.from_bytes(each.packed, sys.byteorder):08X}'
        for each in (network.network_address, network.netmask)
    ]
    return f'{name} {texts[0]} 0 1 0 0 0 {texts[1]} 0 0 0\n'


def test_routes_end_with_their_look_at_the_host(kernel):
    """A service looks often, and must not keep each look."""
    found = ways.Routes()
    assert found.interfaces('192.0.2.1') == set()
    assert found.interfaces('192.0.2.1') == set()
    kept = weakref.ref(found)
    del found
    gc.collect()
    assert kept() is None
