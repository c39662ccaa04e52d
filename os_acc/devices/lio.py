# SPDX-License-Identifier: Apache-2.0

"""What the kernel's SCSI target (LIO) exports. Needs no privilege.

It serves hosts by iSCSI, Fibre Channel and the like, and guests by vhost-scsi.
"""

from __future__ import annotations

import re

from os_acc.devices import block_files
from os_acc.devices import configfs
from os_acc.devices import sysfs

# iblock_show_configfs_dev_params() in drivers/target/target_core_iblock.c
_DISK = re.compile(r'iBlock device: (\S+)')
# fd_show_configfs_dev_params() in drivers/target/target_core_file.c: the file
# may be a block device, which is not opened exclusively then.
_FILE = re.compile(r'\bFile: (.+?)  Size: ')


def backstores(host: object = None) -> dict[str, str]:
    """List the block devices that are backstores.

    :returns: for the name of each block device, the backstore, such as
        iblock_0/disk1
    :raises OSError: if this cannot be read: see configfs.root()
    """
    folder = f'{configfs.root("target_core_mod", "target")}/core'
    found = {}
    for hba in sysfs.folders(folder):
        for name in sysfs.folders(f'{folder}/{hba}'):
            path = f'{folder}/{hba}/{name}'
            info = sysfs.read(f'{path}/info') or ''
            files = _FILE.findall(info)
            files.append(sysfs.read(f'{path}/udev_path') or '')
            disks = [
                *_DISK.findall(info),
                *filter(None, map(block_files.name_of, files)),
            ]
            found.update(dict.fromkeys(disks, f'{hba}/{name}'))
    return found
