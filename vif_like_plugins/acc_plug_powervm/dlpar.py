# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Slots into and out of an LPAR that exists, running (DLPAR) or not."""

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
    """pypowervm's IOSlot for a handle.

    The REST API has the index in decimal: text of hex digits, given as it
    is, would be taken for another slot.
    """
    return base_partition.IOSlot.bld(
        adapter, bool(handle.bus_grp_required), int(handle.drc_index, 16)
    )


def attach(lpar_uuid: str, handle: objects.DRCHandle, config: Any) -> None:
    """Add a slot to an LPAR; if it has it already, write nothing.

    :param config: the values of [os_acc_powervm]
    :raises DeviceBusy: the slot is another partition's
    :raises DeviceNotFound: there is no such LPAR, or no such slot
    :raises HypervisorError: the LPAR cannot be changed now (RMC, DLPAR), or
        the server refused it
    :raises Timeout: no answer in time
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
            reason='the server took it, but the LPAR does not have it',
        )


def detach(lpar_uuid: str, handle: objects.DRCHandle, config: Any) -> None:
    """Take a slot out of an LPAR; if it is not in, write nothing.

    An LPAR that is gone has let go.

    :raises HypervisorError, Timeout: see attach
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
            reason='the server took it, but the LPAR still has it',
        )


def _update(
    lpar_uuid: str, what: str, change: Callable[[Any], Any], config: Any
) -> Any:
    """Change an LPAR in a transaction, with a limit of our own.

    pypowervm's transaction reads the LPAR again and repeats the change when
    its etag has changed meanwhile: up to 60 times, with growing delays.
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
                reason=f'given up after {tries} tries: somebody else changed '
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
    # Without a time of its own update() waits an hour, whatever the session.
    return lpar.update(timeout=config.request_timeout)


def _slots_at(lpar: Any, index: int) -> list[Any]:
    return [s for s in lpar.io_config.io_slots if s.drc_index == index]


def _check_can_modify(lpar: Any) -> None:
    can, reason = lpar.can_modify_io()
    if not can:
        raise exception.HypervisorError(
            what=f'I/O of LPAR {lpar.name} ({lpar.uuid}) cannot be changed',
            reason=reason,
        )


def _check_owner(
    adapter: Any, handle: objects.DRCHandle, lpar_uuid: str
) -> None:
    """Before any write: the server moves a slot from who has it."""
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
