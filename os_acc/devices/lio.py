# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What the kernel's SCSI target (LIO) exports. Needs no privilege.

It serves hosts by iSCSI, Fibre Channel and the like, and guests by vhost-scsi.
"""

from __future__ import annotations

import re

from os_acc.devices import sysfs

# iblock_show_configfs_dev_params() in drivers/target/target_core_iblock.c
_DISK = re.compile(r'iBlock device: (\S+)')


def backstores(host: object = None) -> dict[str, str]:
    """List the block devices that are backstores.

    :returns: for the name of each block device, the backstore, such as
        iblock_0/disk1
    """
    folder = f'{sysfs.SYS}/kernel/config/target/core'
    found = {}
    for hba in sysfs.folders(folder):
        for name in sysfs.folders(f'{folder}/{hba}'):
            path = f'{folder}/{hba}/{name}'
            source = sysfs.read(f'{path}/udev_path') or ''
            if source.startswith('/dev/'):
                found[sysfs.block_name(source)] = f'{hba}/{name}'
            info = sysfs.read(f'{path}/info') or ''
            for match in _DISK.finditer(info):
                found[match[1]] = f'{hba}/{name}'
    return found
