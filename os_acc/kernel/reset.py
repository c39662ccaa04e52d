# SPDX-License-Identifier: Apache-2.0

"""Resetting a PCI function between two tenants."""

from __future__ import annotations

import logging

from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import sysfs

LOG = logging.getLogger(__name__)

AUTO, NONE, REQUIRED = 'auto', 'none', 'required'
#: The values of the drivers' option reset, with what they mean.
CHOICES = (
    (
        AUTO,
        'It is reset if VFIO does not do so itself and the kernel can.',
    ),
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


def reset(address: str, mode: str, vfio: bool) -> None:
    """Reset a function that nobody uses.

    :param mode: AUTO resets it if the kernel can, unless VFIO does so;
        REQUIRED resets or fails; NONE does nothing
    :param vfio: whether it is bound to VFIO, which resets a function when a
        guest opens and closes it
    :raises CleaningFailed: if the reset failed, or the mode is REQUIRED and
        the kernel cannot reset this function alone
    """
    if mode == NONE or (mode == AUTO and vfio):
        return
    function = pci.get(address)
    methods = (sysfs.read(f'{function.path}/reset_method') or '').split()
    possible = can(function)
    if possible and methods == ['bus'] and not is_alone(function):
        possible = False
    reason = 'the kernel has no reset for this function alone'
    if possible:
        try:
            sysfs.write(f'{function.path}/reset', '1')
            return
        except OSError as err:
            reason = f'reset: {err.strerror}'
    if mode == REQUIRED or possible:
        raise exception.CleaningFailed(
            device=f'PCI function {address}', reason=reason
        )
    LOG.info('PCI function %s was not reset: %s', address, reason)
