# SPDX-License-Identifier: Apache-2.0

"""Cleaning a device between two tenants, as root."""

from __future__ import annotations

import logging
import shlex

from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import reset as reset_modes
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.privileged import arguments
from os_acc.privileged import command
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged import storage

LOG = logging.getLogger(__name__)


def clean(
    function: pci.Function,
    mode: str,
    seconds: float,
    lock: int,
    instance_uuid: str | None = None,
    drive: str | None = None,
) -> None:
    """Reset a function, empty it, then run the operator's command on it.

    Only a function that stores data is emptied. See storage.empty().

    The command is an option of the privileged daemon: no caller can choose it.

    :param instance_uuid: the instance that had it; None: unknown
    :param drive: which drive it was before it was bound to VFIO; None: unknown
    """
    if mode not in reset_modes.MODES:
        arguments.refuse(
            'reset', mode, f'one of {", ".join(reset_modes.MODES)}'
        )
    on_vfio = vfio.is_bound(function)
    operation_lock.at_most(
        lock,
        lambda: reset(function.address, mode, on_vfio),
        seconds,
        f'a reset of {function.address}',
    )
    drive = storage.empty(function, instance_uuid, drive)
    run_command(function.address)
    storage.mark_empty(function, drive)


def reset(address: str, mode: str, on_vfio: bool) -> None:
    """Reset a function that nobody uses.

    :param mode: AUTO resets it if the kernel can, unless VFIO does so;
        REQUIRED resets or fails; NONE does nothing
    :param on_vfio: whether it is bound to VFIO, which resets a function when a
        guest opens and closes it
    :raises CleaningFailed: if the reset failed, or the mode is REQUIRED and
        the kernel cannot reset this function alone
    """
    if mode == reset_modes.NONE or (mode == reset_modes.AUTO and on_vfio):
        return
    function = pci.get(address)
    methods = (sysfs.read(f'{function.path}/reset_method') or '').split()
    possible = reset_modes.can(function)
    if possible and methods == ['bus'] and not reset_modes.is_alone(function):
        possible = False
    reason = 'the kernel has no reset for this function alone'
    if possible:
        try:
            sysfs.write(f'{function.path}/reset', '1')
            return
        except OSError as err:
            reason = f'reset: {err.strerror}'
    if mode == reset_modes.REQUIRED or possible:
        raise exception.CleaningFailed(
            device=f'PCI function {address}', reason=reason
        )
    LOG.info('PCI function %s was not reset: %s', address, reason)


def is_wanted() -> bool:
    """Whether root's configuration sets ``[os_acc] cleaning_command``."""
    return bool(offers.configuration().os_acc.cleaning_command)


def run_command(address: str) -> notes.Cleaned:
    """Run ``[os_acc] cleaning_command`` for a device. See command.run().

    The option comes from files that only root can write: see offers.

    :param address: replaces ``{address}``: the PCI address of a function, also
        of a vGPU's; the UUID of an mdev; the path of a device file; the name
        of a work queue; the world wide name of a namespace
    :returns: for notes.forget()
    """
    conf = offers.configuration()
    template = conf.os_acc.cleaning_command
    if not template:
        return notes.Cleaned.COMMAND
    words = [
        word.replace('{address}', address) for word in shlex.split(template)
    ]
    try:
        command.run(address, words, conf.os_acc.cleaning_timeout, [])
    except exception.DeviceError as err:
        raise exception.CleaningFailed(
            device=address, reason=f'cleaning_command {err.kwargs["reason"]}'
        ) from err
    return notes.Cleaned.COMMAND
