# SPDX-License-Identifier: Apache-2.0

"""The kernel's FPGA managers: what they say about the last programming.

An FPGA manager shows its name, state and status in /sys/class/fpga_manager
(Documentation/ABI/testing/sysfs-class-fpga-manager in Linux).
"""

from __future__ import annotations

import dataclasses
import os

from os_acc import exception
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kernel import sysfs

#: A state of a manager, enum fpga_mgr_states in include/linux/fpga/fpga-mgr.h.
OPERATING = 'operating'

_MANAGERS = 'class/fpga_manager'


@dataclasses.dataclass(frozen=True)
class Manager:
    """An FPGA manager, such as fpga0."""

    name: str
    title: str  # the name that its driver gives it
    # one of the kernel's states, such as OPERATING or 'write error'
    state: str
    status: str  # what is wrong, as its driver says; empty if nothing

    @property
    def line(self) -> str:
        """Its name, state and status, for an operator."""
        text = f'{self.name} ({self.title}): {self.state}'
        return f'{text}, {self.status}' if self.status else text


def managers(function: pci.Function) -> list[Manager]:
    """The FPGA managers of the chip that a function belongs to."""
    tops = tuple(
        os.path.realpath(pci.directory(each)) + '/'
        for each in chips.of(function).parents
    )
    read = sysfs.read_if_possible
    found = []
    for name in sysfs.names(f'{sysfs.SYS}/{_MANAGERS}'):
        path = f'{sysfs.SYS}/{_MANAGERS}/{name}'
        if os.path.realpath(path).startswith(tops):
            title = read(f'{path}/name') or 'unnamed'
            state = read(f'{path}/state') or 'unknown'
            status = ', '.join(read(f'{path}/status').splitlines())
            found.append(Manager(name, title, state, status))
    return found


def the_manager(function: pci.Function) -> Manager:
    """The FPGA manager of a chip, which must have one."""
    found = managers(function)
    if len(found) != 1:
        names = ', '.join(each.name for each in found) or 'none'
        raise exception.DeviceError(
            device=f'PCI function {function.address}',
            reason='expected one FPGA manager below it in '
            f'{sysfs.SYS}/{_MANAGERS}, found {names}',
        )
    return found[0]
