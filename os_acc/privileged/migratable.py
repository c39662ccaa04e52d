# SPDX-License-Identifier: Apache-2.0

"""Asking the kernel whether a guest can move live with a device, as root.

A device is asked after a VAN has got it and before its guest has it open.
Another answer than yes is told as a reason.
"""

from __future__ import annotations

import functools

from os_acc.kernel import mdev
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged.kernel import vfio_device


@context.entry
def function(address: str, seconds: float) -> str | None:
    """Ask for a PCI function that is bound to a VFIO driver.

    :returns: why not, in a clause; None: it can
    :raises DeviceNotFound: if device_spec does not offer it, and no VAN has it
    :raises DeviceBusy: if another VAN has it
    """
    found = arguments.there(address)
    seconds = arguments.seconds(seconds)
    offers.check_part(found)
    return function_notes.change(
        found,
        seconds,
        _what(address),
        lambda deadline: _ask(found.path, address),
    )


@context.entry
def mediated(uuid: str, seconds: float) -> str | None:
    """Ask for a mediated device. See function()."""
    path = mdev.directory(uuid)
    seconds = arguments.seconds(seconds)
    offers.check_mdev(arguments.mdev_there(uuid), new=True)
    notes.check_noted(notes.MDEV, uuid)
    return operation_lock.within(
        functools.partial(operation_lock.held, path),
        seconds,
        _what(uuid),
        lambda deadline: _ask(path, uuid),
    )


def _what(name: str) -> str:
    return f'the kernel to say whether {name} can be migrated'


def _ask(path: str, name: str) -> str | None:
    try:
        vfio_device.probe(path, name, vfio_device.MIGRATION)
    except OSError as err:
        return f'VFIO answers: {err.strerror or err}'
    return None
