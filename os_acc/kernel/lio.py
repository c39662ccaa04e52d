# SPDX-License-Identifier: Apache-2.0

"""What the kernel's SCSI target (LIO) exports. Needs no privilege.

It serves hosts by iSCSI, Fibre Channel and the like, and guests by vhost-scsi.
"""

from __future__ import annotations

from collections.abc import Iterator
import re

from os_acc.kernel import block_files
from os_acc.kernel import configfs
from os_acc.kernel import sysfs

# iblock_show_configfs_dev_params() in drivers/target/target_core_iblock.c
_DISK = re.compile(r'iBlock device: (\S+)')
# fd_show_configfs_dev_params() in drivers/target/target_core_file.c: the file
# may be a block device, which is not opened exclusively then.
_FILE = re.compile(r'\bFile: (.+?)  Size: ')


# pscsi_show_configfs_dev_params() in drivers/target/target_core_pscsi.c
_DEVICE = re.compile(
    r'Channel ID: (\d+) Target ID: (\d+) LUN: (\d+) Host ID: (\d+)'
)


def scsi_devices(host: object = None) -> dict[str, str]:
    """List the SCSI devices that are backstores, such as tape drives.

    :returns: for the name of each in sysfs, such as 5:0:0:1, the backstore
    :raises OSError: as backstores()
    """
    return {
        '{3}:{0}:{1}:{2}'.format(*numbers): store
        for store, path in _stores()
        for numbers in _DEVICE.findall(sysfs.read(f'{path}/info') or '')
    }


def backstores(host: object = None) -> dict[str, str]:
    """List the block devices that are backstores.

    :returns: for the name of each block device, the backstore, such as
        iblock_0/disk1
    :raises OSError: if this cannot be read: see configfs.root()
    """
    found = {}
    for store, path in _stores():
        info = sysfs.read(f'{path}/info') or ''
        files = _FILE.findall(info)
        files.append(sysfs.read(f'{path}/udev_path') or '')
        disks = [
            *_DISK.findall(info),
            *filter(None, map(block_files.name_of, files)),
        ]
        found.update(dict.fromkeys(disks, store))
    return found


def _stores() -> Iterator[tuple[str, str]]:
    """The name and the directory of each backstore."""
    directory = f'{configfs.root("target_core_mod", "target")}/core'
    for hba in sysfs.folders(directory):
        for name in sysfs.folders(f'{directory}/{hba}'):
            yield f'{hba}/{name}', f'{directory}/{hba}/{name}'
