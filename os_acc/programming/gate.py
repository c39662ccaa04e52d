# SPDX-License-Identifier: Apache-2.0

"""Who uses a chip besides the VANs that the journal has."""

from __future__ import annotations

from collections.abc import Sequence

from os_acc import exception
from os_acc.availability import host_use
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.kernel import vfio


def check(device: str, functions: Sequence[str]) -> None:
    """Check that nobody uses PCI functions: no process, and not the host.

    If all of them are VFs, a guest that has a PF of their chip is found, too.
    The host's own use of the PFs is not checked then, because other regions of
    the chip may be programmed meanwhile.

    :param device: the device, for the error
    :param functions: the addresses of the functions that give access to what
        is to be programmed; one that does not exist is left out
    :raises DeviceBusy: if a guest or another process has one open
    :raises DeviceInUseByHost: if the host uses one of functions
    """
    there = check_host(functions)
    if not there:
        return
    asked = {each.address for each in there}
    if all(each.is_vf for each in there):
        parents = map(pci.find, chip.parents(there[0]))
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
    :raises DeviceInUseByHost: if the host uses one
    """
    there = [each for each in map(pci.find, functions) if each is not None]
    if there:
        host_use.check_unused(there)
    return there
