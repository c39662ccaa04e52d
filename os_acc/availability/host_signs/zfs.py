# SPDX-License-Identifier: Apache-2.0

"""The pools of ZFS that are imported, and their members.

Only root can ask ZFS for the members. Everybody can read which pools are
imported, and what udev has read of each block device.
"""

from __future__ import annotations

import re

from os_acc.kernel import sysfs

# What blkid calls a member: libblkid/src/superblocks/zfs.c
_TYPE = 'zfs_member'
# blkid_encode_string() in libblkid/src/encode.c
_ENCODED = re.compile(r'\\x([0-9a-f]{2})')


def imported(host: object = None) -> list[str]:
    """The names of the imported pools: kstat.zfs of OpenZFS has them."""
    return sysfs.folders(f'{sysfs.PROC}/spl/kstat/zfs')


def pool_of(path: str) -> str | None:
    """Of which pool a block device is a member.

    :param path: its directory in sysfs
    :returns: the pool's name, which is empty if the member does not have it,
        as a cache device; None if it is no member
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
