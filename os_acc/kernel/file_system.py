# SPDX-License-Identifier: Apache-2.0

"""Which file system a directory is on, by mountinfo of proc(5)."""

from __future__ import annotations

import os
import re

from os_acc.kernel import sysfs

# File systems whose files are gone after a reboot.
_VOLATILE = frozenset({'tmpfs', 'ramfs', 'rootfs'})
# A container's layers: its files are gone with the container, and on a live
# medium after a reboot.
_LAYERED = frozenset({'overlay', 'aufs'})
# Other hosts can write to them, and SQLite's write-ahead log needs memory that
# all users of the journal share (https://sqlite.org/wal.html). A FUSE file
# system may be one too.
_REMOTE = frozenset(
    {'nfs', 'nfs4', 'cifs', 'smb3', 'ceph', '9p', 'afs', 'lustre', 'gfs2'}
    | {'glusterfs', 'ocfs2', 'gpfs', 'beegfs', 'virtiofs', 'fuse'}
)
# What one machine alone can mount.
_ON_DISKS = frozenset(
    {'ext2', 'ext3', 'ext4', 'xfs', 'btrfs', 'zfs', 'f2fs', 'bcachefs'}
    | {'jfs', 'reiserfs', 'nilfs2', 'vfat', 'exfat', 'ntfs', 'ntfs3'}
)
_ESCAPE = re.compile(r'\\([0-7]{3})')


def type_of(path: str) -> str | None:
    """The type of the file system of a path, which need not exist yet.

    :returns: such as ``tmpfs``; None if the kernel shows no mounts
    """
    real = os.path.realpath(path)
    found, longest = None, -1
    with open(
        f'{sysfs.PROC}/self/mountinfo', encoding='utf-8', errors='replace'
    ) as file:
        for line in file:
            fields = line.split()
            if '-' not in fields[6:-1]:
                continue
            # The kernel writes blanks and backslashes in octal digits.
            place = _ESCAPE.sub(lambda m: chr(int(m[1], 8)), fields[4])
            inside = place.rstrip('/') + '/'
            # Of two mounts on one directory, the later one hides the other.
            if f'{real}/'.startswith(inside) and len(inside) >= longest:
                longest = len(inside)
                found = fields[fields.index('-', 6) + 1]
    return found


#: What a file system means to the files on it.
LOCAL, VOLATILE, LAYERED, REMOTE = 'local', 'volatile', 'layered', 'remote'


def nature(kind: str) -> str:
    """Say what a file system of a type means to the files on it.

    :param kind: such as ``tmpfs``
    :returns: VOLATILE: gone after a reboot; LAYERED: gone with the container;
        REMOTE: on another host; LOCAL: none of these
    """
    if kind in _VOLATILE:
        return VOLATILE
    if kind in _LAYERED or kind == 'fuse.fuse-overlayfs':
        return LAYERED
    # FUSE adds its own name: fuse.sshfs, fuse.glusterfs.
    return REMOTE if kind.partition('.')[0] in _REMOTE else LOCAL


def is_local(kind: str) -> bool:
    """Whether files on a file system of a type are on one machine for sure.

    :param kind: such as ``xfs``
    :returns: False: other machines may have the same files
    """
    return kind in _ON_DISKS or nature(kind) in (VOLATILE, LAYERED)
