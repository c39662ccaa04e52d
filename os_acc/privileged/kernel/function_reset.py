# SPDX-License-Identifier: Apache-2.0

"""Resetting a PCI function between two tenants, as root."""

from __future__ import annotations

import logging

from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import reset as choices
from os_acc.kernel import sysfs

LOG = logging.getLogger(__name__)


def reset(address: str, mode: str, vfio: bool) -> None:
    """Reset a function that nobody uses.

    :param mode: AUTO resets it if the kernel can, unless VFIO does so;
        REQUIRED resets or fails; NONE does nothing
    :param vfio: whether it is bound to VFIO, which resets a function when a
        guest opens and closes it
    :raises CleaningFailed: if the reset failed, or the mode is REQUIRED and
        the kernel cannot reset this function alone
    """
    if mode == choices.NONE or (mode == choices.AUTO and vfio):
        return
    function = pci.get(address)
    methods = (sysfs.read(f'{function.path}/reset_method') or '').split()
    possible = choices.can(function)
    if possible and methods == ['bus'] and not choices.is_alone(function):
        possible = False
    reason = 'the kernel has no reset for this function alone'
    if possible:
        try:
            sysfs.write(f'{function.path}/reset', '1')
            return
        except OSError as err:
            reason = f'reset: {err.strerror}'
    if mode == choices.REQUIRED or possible:
        raise exception.CleaningFailed(
            device=f'PCI function {address}', reason=reason
        )
    LOG.info('PCI function %s was not reset: %s', address, reason)
