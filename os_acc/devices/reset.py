# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Resetting a PCI function between two tenants."""

from __future__ import annotations

import logging

from os_acc import exception
from os_acc.devices import pci
from os_acc.devices import sysfs

LOG = logging.getLogger(__name__)

AUTO, NONE, REQUIRED = 'auto', 'none', 'required'
MODES = (AUTO, NONE, REQUIRED)


def can(function: pci.Function) -> bool:
    """Whether the kernel has a way to reset a function by itself.

    Its file ``reset`` is there only then; ``reset_method`` (Linux 5.15) is
    empty where an operator has switched all of them off.
    """
    if 'reset' not in function.entries:
        return False
    if 'reset_method' not in function.entries:
        return True
    return bool(sysfs.read(f'{function.path}/reset_method'))


def is_alone(function: pci.Function) -> bool:
    """Whether no other function shares its bus: a bus reset hits all."""
    bus = function.address.rsplit(':', 1)[0] + ':'
    return all(
        address == function.address or not address.startswith(bus)
        for address in pci.addresses()
    )


def reset(address: str, mode: str, vfio: bool) -> None:
    """Reset a function that nobody uses.

    :param mode: auto: where it can be; required: or fail; none: do nothing
    :param vfio: it is bound to VFIO, which resets it by itself when a guest
        opens and closes it
    :raises CleaningFailed: it must be reset, and was not
    """
    if mode == NONE or (mode == AUTO and vfio):
        return
    function = pci.get(address)
    methods = (sysfs.read(f'{function.path}/reset_method') or '').split()
    possible = can(function)
    if possible and methods == ['bus'] and not is_alone(function):
        possible = False
    reason = 'it has no reset of its own'
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
    LOG.info('PCI function %s: not reset: %s', address, reason)
