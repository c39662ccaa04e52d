# SPDX-License-Identifier: Apache-2.0

"""Cleaning a device between two tenants, as root."""

from __future__ import annotations

import shlex

from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import reset
from os_acc.kernel import vfio
from os_acc.privileged import arguments
from os_acc.privileged import command
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged import storage
from os_acc.privileged.kernel import function_reset


def clean(
    function: pci.Function, mode: str, seconds: float, lock: int
) -> None:
    """Reset a function, empty it, then run the operator's command on it.

    Only a function that stores data is emptied. See storage.empty().

    The command is an option of the privileged daemon: no caller can choose it.

    :param lock: the operation lock that the caller holds on the function
    """
    if mode not in reset.MODES:
        arguments.refuse('reset', mode, f'one of {", ".join(reset.MODES)}')
    vfio_bound = vfio.is_bound(function)

    def act() -> None:
        function_reset.reset(function.address, mode, vfio_bound)

    what = f'a reset of {function.address}'
    operation_lock.at_most(lock, act, seconds, what)
    storage.empty(function)
    run_command(function.address)
    storage.mark_empty(function)


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
