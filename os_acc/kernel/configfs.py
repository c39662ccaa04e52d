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

    Its module makes the directory when it is loaded. A container may have a
    sysfs of its own, without configfs: then it is an OSError, because a
    target's exports are not seen.
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


# What the kernel's SCSI target (LIO) exports: to hosts by iSCSI, Fibre Channel
# and the like, and to guests by vhost-scsi. Reading it needs no privilege.

# iblock_show_configfs_dev_params() in drivers/target/target_core_iblock.c
_DISK = re.compile(r'iBlock device: (\S+)')
# fd_show_configfs_dev_params() in drivers/target/target_core_file.c: the file
# may be a block device, which is not opened exclusively then.
_FILE = re.compile(r'\bFile: (.+?)  Size: ')
# pscsi_show_configfs_dev_params() in drivers/target/target_core_pscsi.c
_DEVICE = re.compile(
    r'Channel ID: (\d+) Target ID: (\d+) LUN: (\d+) Host ID: (\d+)'
)


def scsi_devices() -> dict[str, str]:
    """The backstore of each SCSI device that is one, such as a tape drive.

    By its name in sysfs, such as 5:0:0:1.
    """
    return {
        '{3}:{0}:{1}:{2}'.format(*numbers): store
        for store, path in _stores()
        for numbers in _DEVICE.findall(sysfs.read(f'{path}/info') or '')
    }


def backstores(host: object = None) -> dict[str, str]:
    """The backstore, such as iblock_0/disk1, of each block device."""
    found = {}
    for store, path in _stores():
        info = sysfs.read(f'{path}/info') or ''
        udev_path = sysfs.read(f'{path}/udev_path') or ''
        files = map(block_files.name_of, [*_FILE.findall(info), udev_path])
        disks = [*_DISK.findall(info), *filter(None, files)]
        found.update(dict.fromkeys(disks, store))
    return found


def _stores() -> Iterator[tuple[str, str]]:
    """The name and the directory of each backstore."""
    directory = f'{root("target_core_mod", "target")}/core'
    for hba in sysfs.folders(directory):
        for name in sysfs.folders(f'{directory}/{hba}'):
            yield f'{hba}/{name}', f'{directory}/{hba}/{name}'


def exported(host: object = None) -> dict[str, str]:
    """The subsystem of all that the NVMe target exports, also if disabled.

    A namespace exports a block device, such as nvme0n1; a passthru subsystem
    exports an NVMe controller, such as nvme0 (drivers/nvme/target/configfs.c).
    The target opens a block device without O_EXCL (nvmet_bdev_ns_enable() in
    io-cmd-bdev.c), so no other check finds that it is used.
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
