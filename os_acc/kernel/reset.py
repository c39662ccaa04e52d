# SPDX-License-Identifier: Apache-2.0

"""Whether a PCI function can be reset between two tenants, and when it is."""

from __future__ import annotations

from os_acc.kernel import pci
from os_acc.kernel import sysfs

AUTO, NONE, REQUIRED = 'auto', 'none', 'required'
#: The values of the drivers' option reset, with what they mean.
CHOICES = (
    (AUTO, 'It is reset if VFIO does not do so itself and the kernel can.'),
    (NONE, 'It is never reset.'),
    (REQUIRED, 'It is an error if it cannot be reset.'),
)
MODES = tuple(mode for mode, _ in CHOICES)


def can(function: pci.Function) -> bool:
    """Whether the kernel has a way to reset this one function.

    Only then does it show the file ``reset``. ``reset_method`` (Linux 5.15) is
    empty if an operator has disabled all methods.
    """
    if 'reset' not in function.entries:
        return False
    if 'reset_method' not in function.entries:
        return True
    return bool(sysfs.read(f'{function.path}/reset_method'))


def is_alone(function: pci.Function) -> bool:
    """Whether a bus reset would reset this function and no other."""
    bus = function.address.rsplit(':', 1)[0] + ':'
    return all(
        address == function.address or not address.startswith(bus)
        for address in pci.addresses()
    )
