# SPDX-License-Identifier: Apache-2.0

"""What is about to change in a slot, before its contents show it."""

from __future__ import annotations

from os_acc.journal import programs
from os_acc.programming import contents
from os_acc.programming import uses
from os_acc.texts import function_id as function_ids


def changes(
    slot: contents.Contents, van_uuid: str, function_id: str | None
) -> bool:
    """Say whether others program a slot now, or will in a moment.

    A VAN that takes the slot would have to wait for them, as long as they
    program, and might then get nothing. Those that want the same function do
    not count, because the VAN can share the slot with them.

    The caller holds the lock under which VANs get handles of the device. So
    of two VANs, the second one sees the first.

    :param van_uuid: the VAN that might take the slot
    :param function_id: the function that it needs; None: any, or unknown
    """
    parents = slot.chip.parents if slot.chip else (slot.device,)
    undecided = [
        van
        for parent in parents
        for van in slot.driver.vans_on(parent)
        if van.uuid != van_uuid
        and van.driver_data.get(uses.UNDECIDED) == uses.NEVER
        and van.driver_data.get(programs.REGION, slot.region) == slot.region
    ]
    coming = [
        each.function_id
        for van in undecided
        for each in slot.driver.requests_of(van.instance_uuid)
        if each.uuid == van.uuid and (each.function_id or each.bitstream)
    ]
    record = _programming(slot)
    if record is not None:
        coming.append(record.function_id)
    return any(
        each is None or not function_ids.same(each, function_id)
        for each in coming
    )


def being_programmed(slot: contents.Contents) -> str | None:
    """Give the function that a slot is being programmed with.

    It is also the one of a programming that was interrupted.

    :returns: None: the slot is not being programmed, or the function is
        unknown
    """
    record = _programming(slot)
    return record.function_id if record is not None else None


def _programming(slot: contents.Contents) -> programs.Program | None:
    record = slot.record()
    if record is None or record.state != programs.PROGRAMMING:
        return None
    return record
