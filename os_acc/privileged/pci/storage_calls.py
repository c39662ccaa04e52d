# SPDX-License-Identifier: Apache-2.0

"""Privileged calls for functions that store data, beside those of pci."""

from __future__ import annotations

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import function_notes
from os_acc.privileged import storage


@context.entry
def hand_out(address: str, instance_uuid: str, seconds: float) -> None:
    """Check that a function that the operator has bound can be emptied.

    Then note that the instance may have written to it. take() does so for the
    functions that os-acc binds.

    :raises DeviceBusy: if it may hold the data of another instance
    :raises DeviceError: if it stores data and cannot be emptied, or is not
        bound to VFIO
    """
    function = arguments.function(address)
    arguments.uuid(instance_uuid)
    seconds = arguments.seconds(seconds)

    def act(deadline: waiting.Deadline) -> None:
        now = pci.get(address)
        if not vfio.is_bound(now):
            raise exception.DeviceError(
                device=f'PCI function {address}',
                reason=f'it is bound to {now.driver or "no driver"}, not to '
                'VFIO',
            )
        storage.hand_out(now, instance_uuid)

    what = f'PCI function {address} to be checked'
    function_notes.change(function, seconds, what, act)


@context.entry
def cleaning_progress(address: str) -> tuple[float | None, str] | None:
    """How far pci.clean() has emptied a function; None: it is not doing so."""
    return storage.progress(arguments.function(address).address)
