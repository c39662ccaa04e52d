# SPDX-License-Identifier: Apache-2.0

"""Asking the kernel whether a guest can move live with a device, as root.

A device is asked after a VAN has got it and before its guest has it open.
Another answer than yes is told as a reason.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib

from os_acc import exception
from os_acc.deadlines import waiting
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

    :param seconds: for the whole operation
    :returns: why not, in a clause; None: it can
    :raises DeviceNotFound: if device_spec does not offer it, and no VAN has it
    :raises DeviceBusy: if another VAN has it
    :raises Timeout: if the kernel does not answer in time
    """
    found = arguments.there(address)
    seconds = arguments.seconds(seconds)
    offers.check_part(found)
    return _ask(
        found.path,
        address,
        seconds,
        lambda half: function_notes.locked(found, half),
    )


@context.entry
def mediated(uuid: str, seconds: float) -> str | None:
    """Ask for a mediated device.

    :param seconds: for the whole operation
    :returns: why not, in a clause; None: it can
    :raises DeviceNotFound: if it does not exist, or device_spec does not offer
        it and no VAN has it
    :raises DeviceBusy: if another VAN has it
    :raises Timeout: if the kernel does not answer in time
    """
    path = mdev.directory(uuid)
    seconds = arguments.seconds(seconds)
    if (there := mdev.find(uuid)) is None:
        raise exception.DeviceNotFound(
            wanted=f'mdev {uuid}', reason='this host has none'
        )
    offers.check_mdev(there, new=True)
    notes.check_noted(notes.MDEV, uuid)
    return _ask(
        path, uuid, seconds, lambda half: operation_lock.held(path, half)
    )


def _ask(
    path: str,
    name: str,
    seconds: float,
    locked: Callable[[float], contextlib.AbstractContextManager[int]],
) -> str | None:
    def act() -> str | None:
        try:
            vfio_device.probe(path, name, vfio_device.MIGRATION)
        except OSError as err:
            return f'VFIO answers: {err.strerror or err}'
        return None

    with locked(seconds / 2) as lock:
        return waiting.at_most(
            operation_lock.kept_until(lock, act),
            seconds / 2,
            f'the kernel to say whether {name} can be migrated',
        )
