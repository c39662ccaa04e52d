# SPDX-License-Identifier: Apache-2.0

"""Which file system a directory is on, by mountinfo of proc(5)."""

from __future__ import annotations

import os

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


def type_of(path: str) -> str | None:
    """The type of the file system of a path, such as ``tmpfs``.

    The path need not exist yet. None: the kernel shows no mounts.
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
            inside = sysfs.unescaped(fields[4]).rstrip('/') + '/'
            # Of two mounts on one directory, the later one hides the other.
            if f'{real}/'.startswith(inside) and len(inside) >= longest:
                longest = len(inside)
                found = fields[fields.index('-', 6) + 1]
    return found


#: What a file system means to the files on it.
LOCAL, VOLATILE, LAYERED, REMOTE = 'local', 'volatile', 'layered', 'remote'


def nature(kind: str) -> str:
    """Say what a file system of a type means to the files on it.

    VOLATILE: gone after a reboot; LAYERED: gone with the container; REMOTE: on
    another host; LOCAL: none of these.
    """
    if kind in _VOLATILE:
        return VOLATILE
    if kind in _LAYERED or kind == 'fuse.fuse-overlayfs':
        return LAYERED
    # FUSE adds its own name: fuse.sshfs, fuse.glusterfs.
    return REMOTE if kind.partition('.')[0] in _REMOTE else LOCAL


def is_local(kind: str) -> bool:
    """Whether no other machine can have the files on a type of file system."""
    return kind in _ON_DISKS or nature(kind) in (VOLATILE, LAYERED)
