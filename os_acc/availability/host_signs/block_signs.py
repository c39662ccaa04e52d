# SPDX-License-Identifier: Apache-2.0

"""The signs that the host uses a block device."""

from __future__ import annotations

import os
import re

from os_acc.availability.host_signs import mounts
from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import block_files
from os_acc.kernel import configfs
from os_acc.kernel import sysfs
from os_acc.refusals import host_refusals
from os_acc.refusals import refusals
from os_acc.refusals.reasons import Reason


def _mounted(host: Snapshot, name: str) -> Reason | None:
    number = sysfs.read(f'{host.paths[name]}/dev') or ''
    place = host.once(mounts.read).of(number, name)
    if place is None:
        return None
    return refusals.MOUNTED.reason(name=name, place=place)


def _has_superblock(host: Snapshot, name: str) -> Reason | None:
    kind = host.once(mounts.superblocks).get(name)
    if kind is None or _mounted(host, name) is not None:
        return None
    return host_refusals.SUPERBLOCK.reason(name=name, kind=kind)


def _in_zpool(host: Snapshot, name: str) -> Reason | None:
    if not (pools := host.once(imported)):
        return None
    pool = pool_of(host.paths[name])
    if pool is None or (pool and pool not in pools):
        return None
    # A cache or a spare device does not name its pool.
    return host_refusals.IN_ZPOOL.reason(
        name=name, pool=pool or ', '.join(pools)
    )


def _swaps(host: Snapshot) -> frozenset[str]:
    lines = sysfs.read_long(f'{sysfs.PROC}/swaps').splitlines()[1:]
    paths = [sysfs.unescaped(line.split()[0]) for line in lines if line]
    return frozenset(filter(None, map(block_files.name_of, paths)))


def _journals(host: Snapshot) -> frozenset[str]:
    """The names of the journals in use: jbd2_journal_init_dev().

    A journal within its file system has the name of the disk, - and a number.
    """
    return frozenset(sysfs.names(f'{sysfs.PROC}/fs/jbd2'))


def _held(host: Snapshot, name: str) -> Reason | None:
    upper = sysfs.names(f'{host.paths[name]}/holders')
    if not upper:
        return None
    labels = ', '.join(map(_upper_label, upper))
    return refusals.PART_OF_BLOCK_DEVICE.reason(name=name, upper=labels)


def _upper_label(name: str) -> str:
    label = sysfs.read(f'{sysfs.SYS}/class/block/{name}/dm/name')
    return f'{name} ({label})' if label else name


def _in_bcache(host: Snapshot, name: str) -> Reason | None:
    if os.path.isdir(f'{host.paths[name]}/bcache'):
        return refusals.PART_OF_BLOCK_DEVICE.reason(name=name, upper='bcache')
    return None


def _backed(host: Snapshot) -> dict[str, str]:
    """The loop or zram device of each block device that is behind one."""
    found = {}
    for upper, path in host.paths.items():
        if text := sysfs.read(f'{path}/loop/backing_file'):
            name = block_files.behind_loop(upper, text)
        elif text := sysfs.read(f'{path}/backing_dev'):
            name = block_files.name_of(text)
        else:
            continue
        if name is not None:
            found[name] = upper
    return found


def _by_rnbd(host: Snapshot) -> frozenset[str]:
    directory = f'{sysfs.SYS}/class/rnbd-server/ctl/devices'
    links = (
        sysfs.link(f'{directory}/{name}/block_dev')
        for name in sysfs.names(directory)
    )
    return frozenset(filter(None, links))


SIGNS = (
    sign.BlockSign(
        '/proc/PID/mountinfo',
        'A file system on it is mounted, in the mount namespace of any '
        'process that this process can see. The number of the device says '
        'so, or the source, or a log or realtime device of XFS.',
        'Linux 2.6.26',
        _mounted,
    ),
    sign.BlockSign(
        '/etc/fstab, with an autofs in /proc/PID/mountinfo',
        'It is mounted as soon as somebody accesses it (x-systemd.automount).',
        'systemd 205',
        sign.in_table(mounts.automatic, host_refusals.AUTOMOUNT, 'place'),
    ),
    sign.BlockSign(
        '/sys/fs/KIND/NAME (ext4, xfs, f2fs, nilfs2, erofs), '
        '/proc/fs/ntfs3/NAME',
        'A file system on it is mounted, also where this process does not '
        'see the mount: in a mount namespace of a process that is hidden, or '
        'after umount --lazy.',
        'Linux 2.6.29 (ext4), 3.17 (XFS)',
        _has_superblock,
    ),
    sign.BlockSign(
        '/sys/fs/btrfs/UUID/devices/NAME',
        'It is a member of a mounted btrfs. mountinfo names only one member.',
        'Linux 3.14',
        sign.in_table(mounts.btrfs_members, host_refusals.IN_BTRFS, 'uuid'),
    ),
    sign.BlockSign(
        '/proc/spl/kstat/zfs/POOL, with ID_FS_TYPE=zfs_member and '
        'ID_FS_LABEL in /run/udev/data/bMAJOR:MINOR',
        'It is a member of a ZFS pool that is imported.',
        'OpenZFS 0.6, udev 165',
        _in_zpool,
    ),
    sign.BlockSign(
        '/proc/swaps',
        'The host swaps to it.',
        'Linux 2.6',
        sign.in_set(_swaps, refusals.SWAP),
    ),
    sign.BlockSign(
        '/proc/fs/jbd2/NAME',
        'The journal of a mounted ext4 or OCFS2 of another disk is on it.',
        'Linux 2.6.28',
        sign.in_set(_journals, host_refusals.JOURNAL),
    ),
    sign.BlockSign(
        '/sys/class/block/NAME/holders',
        'md, dm, LVM, bcache or DRBD has it.',
        'Linux 2.6.17',
        _held,
    ),
    sign.BlockSign(
        '/sys/class/block/NAME/bcache',
        'bcache has it as a cache or as a backing device, also if no bcache '
        'device is running.',
        'Linux 3.10',
        _in_bcache,
    ),
    sign.BlockSign(
        '/sys/class/block/loopN/loop/backing_file, '
        '/sys/class/block/zramN/backing_dev',
        'A loop device or zram keeps its data on it. The path may belong to '
        'another mount namespace: the loop device itself shows root the '
        'number.',
        'Linux 2.6.37, 4.14',
        sign.in_table(_backed, refusals.PART_OF_BLOCK_DEVICE, 'upper'),
    ),
    sign.BlockSign(
        '/sys/kernel/config/nvmet/subsystems/NQN/namespaces/N/device_path',
        'The NVMe target exports it, even if the export is disabled.',
        'Linux 4.8',
        sign.in_table(
            configfs.exported, refusals.EXPORTED_NAMESPACE, 'subsystem'
        ),
    ),
    sign.BlockSign(
        '/sys/class/rnbd-server/ctl/devices/NAME/block_dev',
        'The RNBD target exports it over RDMA.',
        'Linux 5.8',
        sign.in_set(_by_rnbd, host_refusals.EXPORTED_BY_RNBD),
    ),
    sign.BlockSign(
        '/sys/kernel/config/target/core/HBA/NAME/udev_path and info',
        'The SCSI target (LIO) has it as a backstore, also for vhost.',
        'Linux 2.6.38',
        sign.in_table(
            configfs.backstores, host_refusals.EXPORTED_LUN, 'store'
        ),
    ),
)


# The pools of ZFS that are imported, and their members. Only root can ask ZFS
# for the members. Everybody can read which pools are imported, and what udev
# has read of each block device.

# What blkid calls a member: libblkid/src/superblocks/zfs.c
_TYPE = 'zfs_member'
# blkid_encode_string() in libblkid/src/encode.c
_ENCODED = re.compile(r'\\x([0-9a-f]{2})')


def imported(host: object = None) -> list[str]:
    """The names of the imported pools: kstat.zfs of OpenZFS has them."""
    return sysfs.folders(f'{sysfs.PROC}/spl/kstat/zfs')


def pool_of(path: str) -> str | None:
    """The pool of which a block device is a member; None if of none.

    The name is empty if the member does not have it, as a cache device.

    :param path: its directory in sysfs
    """
    number = sysfs.read(f'{path}/dev')
    text = sysfs.read(f'{sysfs.UDEV_DATA}/b{number}') or ''
    values = dict(
        line.removeprefix('E:').split('=', 1)
        for line in text.splitlines()
        if line.startswith('E:') and '=' in line
    )
    if values.get('ID_FS_TYPE') != _TYPE:
        return None
    # ID_FS_LABEL has _ for a blank, which the name of a pool may have.
    return _ENCODED.sub(
        lambda match: chr(int(match[1], 16)),
        values.get('ID_FS_LABEL_ENC') or values.get('ID_FS_LABEL', ''),
    )
