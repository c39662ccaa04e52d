# SPDX-License-Identifier: Apache-2.0

"""Which of Cyborg's devices and handles suits a request best."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc import programming
from os_acc import reserved
from os_acc.drivers import choosing
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kinds.cyborg.driver import listing as cyborg_listing
from os_acc.kinds.cyborg.driver import program as cyborg_program
from os_acc.programming import pending


def ranked(
    driver: driver_base.DriverBase,
    devices: Sequence[cyborg_listing.Found],
    request: objects.AcceleratorRequest,
) -> list[cyborg_listing.Found]:
    """Sort devices: those with the function first, those in use last."""
    pools = driver.journal.pools()
    reservations = reserved.read(driver.journal)
    return choosing.ranked(
        devices,
        lambda found: rank(driver, found, request, pools, reservations),
    )


def rank(
    driver: driver_base.DriverBase,
    found: cyborg_listing.Found,
    request: objects.AcceleratorRequest,
    pools: Iterable[dict[str, Any]] | None = None,
    reservations: Iterable[reserved.Reserved] | None = None,
) -> int:
    """How well a device suits a request. See DriverBase.rank.

    :param pools: as programming.Slot.rank(), as reservations
    """
    if not found.programmable:
        return 0
    slot = cyborg_program.slot_as_found(driver, found)
    wanted = programming.Wanted.of_request(request)
    return slot.rank(wanted, pools, reservations)


def changes(
    driver: driver_base.DriverBase,
    found: cyborg_listing.Found,
    van: objects.VAN,
    request: objects.AcceleratorRequest,
) -> bool:
    """Say whether others program a device. See programming.pending.

    The device's lock is held.
    """
    return found.programmable and pending.changes(
        cyborg_program.slot_as_found(driver, found),
        van.uuid,
        request.function_id,
    )


def free_handles(
    driver: driver_base.DriverBase,
    found: cyborg_listing.Found,
    van: objects.VAN,
) -> list[objects.AttachHandle]:
    """List the handles of a device that no VAN has. The lock is held."""
    taken, mdevs = _taken(driver)
    free = [
        # For a Xilinx card, the user function.
        handles[-1]
        for handles in found.accelerators
        if not any(each.identity in taken for each in handles)
    ]
    if sum(found.mdevs.values()) > mdevs[found.parent]:
        free += [
            objects.MdevHandle(uuid=van.uuid, parent=found.parent, type=kind)
            for kind in found.mdevs
        ]
    return free


def check_siblings(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    found: cyborg_listing.Found,
    handle: objects.AttachHandle,
) -> None:
    """Check that no other instance has a part of the same accelerator.

    :raises DeviceBusy: if one has. It could program the accelerator, or read
        its data
    """
    theirs = set(siblings(found, handle))
    # A VAN of another driver has them on another device.
    for each in driver.handles():
        if each.handle in theirs and each.instance_uuid != van.instance_uuid:
            raise exception.DeviceBusy(
                device=handle.identity,
                reason=f'instance {each.called} has {each.handle} '
                f'(VAN {each.van_uuid}), which belongs to the same '
                'accelerator',
            )


def siblings(
    found: cyborg_listing.Found, handle: objects.AttachHandle
) -> Iterator[str]:
    """List the handles that only the instance that has this one may have.

    They are the rest of its accelerator. If the device can be programmed,
    there are further ones, which Cyborg's driver need not report, because a
    guest that has a PF of the chip may be able to program it. If the handle is
    a VF, they are the PFs of the chip; else all other functions of the chip.
    """
    for each in found.siblings(handle):
        yield each.identity
    if not found.programmable or not isinstance(handle, objects.PCIHandle):
        return
    function = pci.find(handle.address)
    if function is None:
        return
    chip = chips.of(function)
    for address in chip.parents if function.is_vf else chip.functions:
        if address != handle.address:
            yield objects.PCIHandle(address=address).identity


def _taken(
    driver: driver_base.DriverBase,
) -> tuple[frozenset[str], collections.Counter[str]]:
    """List the handles that VANs have, and count the mdevs by parent."""
    taken, mdevs = set(), collections.Counter[str]()
    for each in driver.handles():
        if each.handle is None:
            continue
        taken.add(each.handle)
        if each.device is not None and each.handle.startswith('mdev/'):
            mdevs[each.device] += 1
    return frozenset(taken), mdevs
