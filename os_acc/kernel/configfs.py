# SPDX-License-Identifier: Apache-2.0

"""What the kernel's storage targets export, as configfs shows it."""

from __future__ import annotations

from collections.abc import Iterator
import errno
import os
import re

from os_acc.kernel import block_files
from os_acc.kernel import sysfs


def root(module: str, name: str) -> str:
    """The configfs directory of a kernel subsystem.

    A module makes its directory when it is loaded. A container may have a
    sysfs of its own, without configfs: then a target's exports are not seen.

    :param module: the kernel module that makes the directory
    :raises OSError: if the module is loaded and the directory is not here
    """
    directory = f'{sysfs.SYS}/kernel/config/{name}'
    loaded = os.path.isdir(f'{sysfs.SYS}/module/{module}')
    if loaded and not os.path.isdir(directory):
        raise OSError(
            errno.ENOENT,
            f'the kernel has {module}, and configfs is not mounted here',
            directory,
        )
    return directory


# What the kernel's SCSI target (LIO) exports. Reading it needs no privilege.
#
# It serves hosts by iSCSI, Fibre Channel and the like, and guests by
# vhost-scsi.


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
    :raises OSError: if this cannot be read: see root()
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
    directory = f'{root("target_core_mod", "target")}/core'
    for hba in sysfs.folders(directory):
        for name in sysfs.folders(f'{directory}/{hba}'):
            yield f'{hba}/{name}', f'{directory}/{hba}/{name}'


# What the kernel's NVMe target exports to other hosts. Reading it needs no
# privilege.
#
# The target opens a block device without O_EXCL (nvmet_bdev_ns_enable() in
# drivers/nvme/target/io-cmd-bdev.c), so no other check finds that it is used.


def exported(host: object = None) -> dict[str, str]:
    """List what the subsystems of the NVMe target export, also if disabled.

    A namespace exports a block device; a passthru subsystem exports an NVMe
    controller (drivers/nvme/target/configfs.c).

    :returns: for the name of each, such as nvme0n1 or nvme0, the subsystem
    :raises OSError: if this cannot be read: see root()
    """
    directory = f'{root("nvmet", "nvmet")}/subsystems'
    found = {}
    for subsystem in sysfs.names(directory):
        path = f'{directory}/{subsystem}'
        places = [f'{path}/passthru'] + [
            f'{path}/namespaces/{number}'
            for number in sysfs.names(f'{path}/namespaces')
        ]
        for place in places:
            # An unset path reads as (null). A controller is not a block
            # device.
            text = sysfs.read(f'{place}/device_path') or ''
            if name := block_files.name_of(text):
                found[name] = subsystem
    return found
