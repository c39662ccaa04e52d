# SPDX-License-Identifier: Apache-2.0

"""Whether a guest seems to have a PCI function, as an ordinary user can see.

Only root sees which process has a device open: see open_files. Discovery runs
without privilege, so this module looks at the power state.
"""

from __future__ import annotations

from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio


def seems_open(function: pci.Function) -> bool:
    """Whether a guest seems to have a function open; False also if unknown.

    vfio-pci suspends a function while nobody has it open, and resumes it when
    it is opened (vfio_pci_core_register_device() and vfio_pci_core_enable() in
    drivers/vfio/pci/vfio_pci_core.c, from Linux 5.19 on). The power state
    shows nothing if the module's option disable_idle_d3 is set, or if the
    administrator has turned runtime power management off for the function
    (power/control).
    """
    if not vfio.is_bound(function):
        return False
    power = f'{function.path}/power'
    if (
        sysfs.read(f'{power}/runtime_status') != 'active'
        or sysfs.read(f'{power}/control') != 'auto'
    ):
        return False
    parameters = f'{sysfs.SYS}/module/vfio_pci/parameters'
    return sysfs.read(f'{parameters}/disable_idle_d3') != 'Y'
