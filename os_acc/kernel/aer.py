# SPDX-License-Identifier: Apache-2.0

"""Fatal PCIe errors, as the kernel counts them.

See Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats of the kernel.
The counters start at 0 when the kernel finds the device: at boot, and when it
was removed from the bus and found again.
"""

from __future__ import annotations

import dataclasses

from os_acc.kernel import pci
from os_acc.kernel import sysfs

_TOTAL = 'TOTAL_ERR_FATAL'


@dataclasses.dataclass(frozen=True)
class Fatal:
    """The fatal errors of a device, in one generation.

    Counts of different generations cannot be compared. The generation is a
    text that changes when the kernel finds the device again.
    """

    generation: str
    count: int


def fatal(address: str) -> Fatal | None:
    """Count the fatal errors of a PCI function. Those of a VF are its PF's.

    None: the function has no AER, or the firmware handles the errors.
    """
    path = pci.directory(address)
    text = sysfs.read(f'{path}/aer_dev_fatal')
    for line in (text or '').splitlines():
        name, _, number = line.partition(' ')
        if name == _TOTAL and number.strip().isdecimal():
            generation = f'{sysfs.boot_id()} {pci.inode(address)}'
            return Fatal(generation, int(number))
    return None
