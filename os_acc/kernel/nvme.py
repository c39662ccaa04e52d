# SPDX-License-Identifier: Apache-2.0

"""Which NVMe drive a PCI function is, whatever its address."""

from __future__ import annotations

from os_acc.kernel import pci
from os_acc.kernel import sysfs


def drive_of(function: pci.Function) -> str | None:
    """Identify the drive of a function, as drive_id() does.

    The host's NVMe driver shows serial and cntlid: drivers/nvme/host/sysfs.c.

    :returns: None if that driver is not bound, or it is no NVMe drive
    """
    for name in sysfs.names(f'{function.path}/nvme'):
        directory = f'{function.path}/nvme/{name}'
        serial = sysfs.read_if_possible(f'{directory}/serial')
        number = sysfs.read_int(f'{directory}/cntlid')
        if number is not None and (found := drive_id(serial, number)):
            return found
    return None


def drive_id(serial: str, controller_id: int) -> str | None:
    """Name a controller of a drive, which no address does for good.

    :param serial: of the drive: SN in Identify Controller
    :param controller_id: distinguishes its controllers, such as VFs: CNTLID
    :returns: None if the drive has no serial number
    """
    serial = serial.strip()
    return f'{serial}/{controller_id}' if serial.strip('0') else None
