# SPDX-License-Identifier: Apache-2.0

"""What is about to change in a slot, and who else uses its chip."""

from __future__ import annotations

from collections.abc import Sequence

from os_acc import exception
from os_acc.availability import host_use
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.programming import contents
from os_acc.texts import forms


def changes(
    slot: contents.Contents, van_uuid: str, function_id: str | None
) -> bool:
    """Say whether others program a slot now, or will in a moment.

    A VAN that takes the slot would have to wait for them, as long as they
    program, and might then get nothing. Those that want the same function do
    not count, because the VAN can share the slot with them.

    The caller holds the lock under which VANs get handles of the device. So
    of two VANs, the second one sees the first.

    :param function_id: the function that it needs; None: any, or unknown
    """
    coming = slot.requested(excluding=van_uuid)
    if (record := slot.being_programmed()) is not None:
        coming.append(record.function_id)
    return any(
        each is None or not forms.same_function(each, function_id)
        for each in coming
    )


# Who uses a chip besides the VANs that the journal has.


def check(device: str, functions: Sequence[str]) -> None:
    """Check that nobody uses PCI functions: no process, and not the host.

    If all of them are VFs, a guest that has a PF of their chip is found, too.
    The host's own use of the PFs is not checked then, because other regions of
    the chip may be programmed meanwhile.

    :param functions: the addresses of the functions that give access to what
        is to be programmed; one that does not exist is left out
    """
    present = check_host(functions)
    if not present:
        return
    asked = {each.address for each in present}
    if all(each.is_vf for each in present):
        parents = map(pci.find, chip.parents(present[0]))
        asked.update(
            each.address
            for each in parents
            if each is not None and vfio.is_bound(each)
        )
    from os_acc.privileged import device_users

    users = device_users.of_functions(sorted(asked))
    if users:
        raise exception.DeviceBusy(device=device, reason='; '.join(users))


def check_host(functions: Sequence[str]) -> list[pci.Function]:
    """Check that the host does not use PCI functions. Needs no privilege.

    :returns: those of the functions that exist
    """
    present = [each for each in map(pci.find, functions) if each is not None]
    if present:
        host_use.check_unused(present)
    return present
