# SPDX-License-Identifier: Apache-2.0

"""Functions that nobody uses, although they are not bound to VFIO.

After a reboot, or once libvirt has given a function back, a driver of the host
has it again. Before such a function is cleaned or taken with others, these
checks ask whether somebody uses it.
"""

from __future__ import annotations

from collections.abc import Iterable

from os_acc import exception
from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.availability import storage
from os_acc.claims import vans
from os_acc.kernel import pci
from os_acc.privileged import device_users
from os_acc.privileged import offers
from os_acc.spec import device_spec

# The reasons that somebody other than the host itself uses a function.
_USED = (availability.Category.HAS_VFS, availability.Category.OPEN)


def check(function: pci.Function, instance_uuid: str, shares: bool) -> None:
    """Check under the lock that a function can be cleaned.

    A function that stores data is to be bound to VFIO first, so this asks what
    is asked before one is taken. Of another function, which stays bound, it
    asks only who uses it.

    :param instance_uuid: the instance that had it: its domain may still name
        the function. Empty: none
    :param shares: whether its guest keeps other functions of the IOMMU group
    :raises DeviceBusy, DeviceInUseByHost: if it is used
    :raises DeviceError: if it stores data and cannot be bound to VFIO
    """
    stores = storage.is_storage(function)
    for obstacle in availability.obstacles(
        function,
        offers.entry(function) if stores else None,
        device_spec.BIND_OS_ACC,
        vans.Vans().asked_by(vans.Taker(functions=_idle_members(function))),
        as_root=True,
        held=True,
        users=lambda: device_users.find(function, instance_uuid, shares),
    ):
        if stores or obstacle.category is availability.Category.HOST_USE:
            raise obstacle.error()
        if obstacle.category in _USED:
            raise exception.DeviceInUseByHost(
                device=obstacle.device, by=obstacle.text
            )


def idle(names: Iterable[str]) -> list[pci.Function]:
    """Find the functions in a list that os-acc could take, too.

    device_spec offers them, and the host does not use them, whatever driver
    they have.

    :param names: PCI addresses; one that does not exist is left out
    """
    return [
        function
        for function in map(pci.find, names)
        if function is not None
        and offers.has(function)
        and host_use.by_host(function) is None
    ]


def _idle_members(function: pci.Function) -> frozenset[str]:
    """The idle members of its IOMMU group; the instance may have had them."""
    members = pci.group_members(function.iommu_group or '')
    found = idle(filter(pci.is_address, members))
    return frozenset(each.address for each in found)
