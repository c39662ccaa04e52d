# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Adds slots to, and removes them from, an existing LPAR (DLPAR)."""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any

from pypowervm.utils import transaction
from pypowervm.wrappers import base_partition
from pypowervm.wrappers import logical_partition
from pypowervm.wrappers import managed_system

from os_acc import exception
from os_acc import objects
from os_acc import powervm


def io_slot(adapter: Any, handle: objects.DRCHandle) -> Any:
    """Build pypowervm's IOSlot for a handle.

    The REST API expects the DRC index as a decimal number. If it got the hex
    digits of the handle, it could take them for the index of another slot.
    """
    return base_partition.IOSlot.bld(
        adapter, bool(handle.bus_grp_required), int(handle.drc_index, 16)
    )


def attach(lpar_uuid: str, handle: objects.DRCHandle, config: Any) -> None:
    """Add a slot to an LPAR. Does nothing if the LPAR already has it.

    :param config: the values of [os_acc_powervm]
    :raises DeviceBusy: if another partition has the slot
    :raises DeviceNotFound: if the LPAR or the slot does not exist
    :raises HypervisorError: if the LPAR cannot be changed now (RMC, DLPAR),
        or the server refuses
    :raises Timeout: if the server does not answer in time
    """
    index = int(handle.drc_index, 16)

    def add(lpar: Any) -> Any:
        if _slots_at(lpar, index):
            return lpar
        _check_can_modify(lpar)
        _check_owner(lpar.adapter, handle, lpar_uuid)
        lpar.io_config.io_slots.append(io_slot(lpar.adapter, handle))
        return _write(lpar, config)

    changed = _update(lpar_uuid, f'attach of {handle.identity}', add, config)
    if len(_slots_at(changed, index)) != 1:
        raise exception.HypervisorError(
            what=f'attach of {handle.identity} to LPAR {lpar_uuid}',
            reason='the server accepted the slot, but the LPAR does not have '
            'it',
        )


def detach(lpar_uuid: str, handle: objects.DRCHandle, config: Any) -> None:
    """Remove a slot from an LPAR. Does nothing if the LPAR does not have it.

    An LPAR that does not exist has released the slot.

    :param config: the values of [os_acc_powervm]
    :raises HypervisorError, Timeout: as attach()
    """
    index = int(handle.drc_index, 16)

    def remove(lpar: Any) -> Any:
        present = _slots_at(lpar, index)
        if not present:
            return lpar
        _check_can_modify(lpar)
        for slot in present:
            lpar.io_config.io_slots.remove(slot)
        return _write(lpar, config)

    try:
        changed = _update(
            lpar_uuid, f'detach of {handle.identity}', remove, config
        )
    except exception.DeviceNotFound:
        return
    if _slots_at(changed, index):
        raise exception.HypervisorError(
            what=f'detach of {handle.identity} from LPAR {lpar_uuid}',
            reason='the server accepted the removal, but the LPAR still has '
            'the slot',
        )


def _update(
    lpar_uuid: str, what: str, change: Callable[[Any], Any], config: Any
) -> Any:
    """Change an LPAR in a transaction of pypowervm.

    If another client has changed the LPAR since it was read (its etag
    differs), the transaction reads the LPAR and applies the change again, up
    to 60 times with growing delays. update_tries and update_timeout limit
    this further.

    :param what: what is being done, for messages
    :param change: changes and writes an LPAR; returns it
    :returns: the changed LPAR
    """
    deadline = time.monotonic() + config.update_timeout
    tries = 0

    # pypowervm has no types.
    @transaction.entry_transaction  # type: ignore[untyped-decorator]
    def act(lpar: Any) -> Any:
        nonlocal tries
        late = time.monotonic() > deadline
        if tries and (late or tries >= config.update_tries):
            raise exception.HypervisorError(
                what=f'{what}, LPAR {lpar_uuid}',
                reason=f'gave up after {tries} tries: another client changed '
                'the LPAR each time',
            )
        tries += 1
        return change(lpar)

    adapter = powervm.adapter()
    with powervm.errors(f'{what}, LPAR {lpar_uuid}'):
        return act(
            logical_partition.LPAR.getter(adapter, entry_uuid=lpar_uuid)
        )


def _write(lpar: Any, config: Any) -> Any:
    # Without a timeout argument, update() waits for an hour, even if the
    # session has a shorter timeout.
    return lpar.update(timeout=config.request_timeout)


def _slots_at(lpar: Any, index: int) -> list[Any]:
    return [s for s in lpar.io_config.io_slots if s.drc_index == index]


def _check_can_modify(lpar: Any) -> None:
    can, reason = lpar.can_modify_io()
    if not can:
        raise exception.HypervisorError(
            what=f'cannot change the I/O of LPAR {lpar.name} ({lpar.uuid})',
            reason=reason,
        )


def _check_owner(
    adapter: Any, handle: objects.DRCHandle, lpar_uuid: str
) -> None:
    """Check that a slot is free or belongs to the LPAR already.

    This is necessary before every write, because the server would otherwise
    take the slot away from another partition.

    :raises DeviceBusy: if another partition has the slot
    :raises DeviceNotFound: if the managed system has no such slot
    """
    (system,) = managed_system.System.get(adapter)
    for slot in system.asio_config.io_slots:
        if slot.drc_index == int(handle.drc_index, 16):
            owner = slot.part_uuid
            if owner is not None and owner.upper() != lpar_uuid.upper():
                raise exception.DeviceBusy(
                    device=f'slot {handle.drc_index}',
                    holder=f'partition {slot.part_name} ({owner})',
                )
            return
    raise exception.DeviceNotFound(
        wanted=f'slot {handle.drc_index}',
        reason='this managed system has no such DRC index',
    )
