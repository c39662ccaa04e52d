# SPDX-License-Identifier: Apache-2.0

"""What the kernel's NVMe target exports to other hosts. Needs no privilege.

The target opens a block device without O_EXCL (nvmet_bdev_ns_enable() in
drivers/nvme/target/io-cmd-bdev.c), so no other check finds that it is used.
"""

from __future__ import annotations

from os_acc.kernel import block_files
from os_acc.kernel import configfs
from os_acc.kernel import sysfs


def exported(host: object = None) -> dict[str, str]:
    """List what the subsystems of the NVMe target export, also if disabled.

    A namespace exports a block device; a passthru subsystem exports an NVMe
    controller (drivers/nvme/target/configfs.c).

    :returns: for the name of each, such as nvme0n1 or nvme0, the subsystem
    :raises OSError: if this cannot be read: see configfs.root()
    """
    directory = f'{configfs.root("nvmet", "nvmet")}/subsystems'
    found = {}
    for subsystem in sysfs.names(directory):
        path = f'{directory}/{subsystem}'
        places = [f'{path}/passthru'] + [
            f'{path}/namespaces/{number}'
            for number in sysfs.names(f'{path}/namespaces')
        ]
        for place in places:
            # An unset path reads as (null). A controller is no block device.
            text = sysfs.read(f'{place}/device_path') or ''
            if name := block_files.name_of(text):
                found[name] = subsystem
    return found
