# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The rule of programming: who gets what is in, and when it may change.

A device that takes one function at a time has it for all of its handles, and
cannot be programmed while one of them is in use. Each region of a dynamic
device is such a device of its own. A driver calls take(), and if that finds
nothing, program(); the journal has what is in, written before the act.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
from importlib import metadata
import logging
from typing import Any

from oslo_config import cfg
from oslo_utils import timeutils

from os_acc import driver
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.devices import boot
from os_acc.devices import waiting
from os_acc.journal import programs
from os_acc.programming import slots as program_slots

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: Entry points: callables that get a device's address and its new function.
HOOKS = 'os_acc.programmed'

# What is in and who uses it: for drivers, part of the rule.
REGION = program_slots.REGION
UNDECIDED = program_slots.UNDECIDED
NEVER, LEFT = program_slots.NEVER, program_slots.LEFT
Slot = program_slots.Slot
Wanted = program_slots.Wanted
broken = program_slots.broken
common_function = program_slots.common_function
inside = program_slots.inside
rank = program_slots.rank
show = program_slots.show
spelling = program_slots.spelling
users = program_slots.users


def take(
    by: driver.DriverBase, van: objects.VAN, slot: Slot, wanted: Wanted
) -> bool:
    """Give a VAN what is in a slot, if that is what it wants.

    The VAN has its handle, and UNDECIDED and REGION in its driver_data.

    :param wanted: empty: whatever is in
    :returns: False: it has to be programmed, and nobody is in the way now
    :raises DeviceBusy: others use it, with another function
    :raises DeviceError: its programming was cut short, and nothing is wanted
    """
    with _holding(by, slot):
        return _take(by, van, slot, _known(by, slot, wanted), exact=False)


def program(
    by: driver.DriverBase,
    slot: Slot,
    wanted: Wanted,
    check: Callable[[], None],
    act: Callable[[], None],
    van: objects.VAN | None = None,
) -> bool:
    """Put a function into a slot, unless it is in by now.

    :param check: raises where act could not even begin
    :param act: programs and verifies
    :param van: for which; None: for the administrator, who means the very
        bitstream, not only the function
    :returns: whether it was programmed
    :raises DeviceBusy: others use it, with another function
    """
    with _holding(by, slot):
        known = _known(by, slot, wanted)
        if _take(by, van, slot, known, exact=van is None):
            return False
        check()
        unnamed = wanted.function_id is None
        if broken(by, slot) is None:
            wanted = known
        if van is not None:
            _decide(van, wanted.function_id)
        before = program_slots.record_of(by, slot)
        _write(by, slot, wanted, programs.PROGRAMMING)
        try:
            # Who has saved a VAN since then sees the record, or is seen.
            holders = _in_the_way(by, slot, known, van)
            if holders:
                _write_back(by, slot, before)
            else:
                act()
                if unnamed and slot.look is not None:
                    # What the file put in: it counts as this file from now on.
                    seen = slot.look() or wanted.function_id
                    wanted = Wanted(seen, wanted.digest)
                    if van is not None:
                        _decide(van, seen)
        except BaseException as err:
            text = exception.describe(err)
            _write(by, slot, wanted, programs.ERROR, text)
            _let_go(van)
            raise
        if holders:
            _let_go(van)
            raise _busy(slot.label, holders)
        _write(by, slot, wanted, programs.PROGRAMMED)
    _logger(van).info(
        '%s is programmed with function %s, bitstream %s',
        slot.label,
        wanted.function_id,
        wanted.digest,
    )
    _tell(slot.device, wanted.function_id)
    return True


def clear(
    by: driver.DriverBase,
    slot: Slot,
    act: Callable[[], None] | None,
    van: objects.VAN,
) -> None:
    """End a VAN's use of a slot.

    :param act: takes the function out when the last user has gone; None: it
        stays in
    """
    with _holding(by, slot):
        if act is None or van.driver_data.get(UNDECIDED) == NEVER:
            return
        # Two that are released at once must not wait for each other.
        van.driver_data = {**van.driver_data, UNDECIDED: LEFT}
        van.save()
        record = program_slots.record_of(by, slot)
        if record is None or users(by, slot, van.uuid):
            return
        before = Wanted(record.function_id, record.digest)
        _write(by, slot, before, programs.PROGRAMMING)
        try:
            # As in program(): who came since then keeps the function.
            if users(by, slot, van.uuid):
                _write_back(by, slot, record)
                return
            act()
        except BaseException as err:
            text = f'it was not cleared: {exception.describe(err)}'
            _write(by, slot, before, programs.ERROR, text)
            raise
        _journal(by).forget_program(slot.device, slot.region)
    _logger(van).info('%s is cleared', slot.label)
    _tell(slot.device, None)


def asked(
    by: driver.DriverBase,
    van: objects.VAN,
    slot: Slot,
    request: objects.AcceleratorRequest,
) -> tuple[str | None, str | None]:
    """What a VAN that is prepared shall have: function, bitstream.

    Who asked for nothing, and before a reboot shared the function of one that
    asked for it, must not hold the device without that function.
    """
    wanted = request.function_id, request.bitstream
    if wanted != (None, None) or None in (van.function_id, van.handle):
        return wanted
    if van.boot_id == boot.boot_id():
        return wanted
    for other in by.vans_on(slot.device):
        if (
            other.uuid == van.uuid
            or other.driver_data.get(REGION) != slot.region
            or other.driver_data.get(UNDECIDED) == LEFT
            or spelling(other.function_id) != spelling(van.function_id)
        ):
            continue
        for each in by.requests_of(other.instance_uuid):
            if each.uuid == other.uuid and (
                each.function_id or each.bitstream
            ):
                return van.function_id, each.bitstream
    return wanted


def undecide(van: objects.VAN, region: str | None = None) -> None:
    """Say in a VAN's driver_data that it uses nothing yet.

    :param region: what its handle is of, where that is known by now
    """
    data = {**van.driver_data, UNDECIDED: NEVER}
    if region is not None:
        data[REGION] = region
    van.driver_data = data


def _take(
    by: driver.DriverBase,
    van: objects.VAN | None,
    slot: Slot,
    wanted: Wanted,
    exact: bool,
) -> bool:
    """See take; the slot is held.

    :param wanted: as _known() has it
    """
    nothing = wanted == Wanted()
    why = broken(by, slot)
    if nothing and why is not None:
        raise exception.DeviceError(
            device=slot.label, reason=f'{why}. Program it again'
        )
    there = inside(by, slot)
    if nothing or (why is None and wanted.is_in(there, exact)):
        if van is not None:
            _decide(van, there.function_id)
        return True
    holders = _in_the_way(by, slot, wanted, van)
    if holders:
        label = f'{slot.label}, programmed with {there.function_id},'
        raise _busy(label, holders)
    return False


def _busy(label: str, holders: list[objects.VAN]) -> exception.DeviceBusy:
    return exception.DeviceBusy(
        device=label, holder=', '.join(map(program_slots.describe, holders))
    )


def _known(by: driver.DriverBase, slot: Slot, wanted: Wanted) -> Wanted:
    """With the function that the bitstream had when it was in before."""
    record = program_slots.record_of(by, slot)
    if (
        wanted.function_id is None
        and wanted.digest is not None
        and record is not None
        and record.digest == wanted.digest
    ):
        return Wanted(record.function_id, wanted.digest)
    return wanted


def _in_the_way(
    by: driver.DriverBase,
    slot: Slot,
    wanted: Wanted,
    van: objects.VAN | None,
) -> list[objects.VAN]:
    """Who uses what is in a slot, and would lose it.

    :param wanted: as _known() has it
    """
    now = boot.boot_id()
    function = spelling(wanted.function_id)
    return [
        other
        for other in users(by, slot, van.uuid if van is not None else None)
        # What a reboot took from them all is put back for them all.
        if other.boot_id == now or spelling(other.function_id) != function
    ]


def _let_go(van: objects.VAN | None) -> None:
    if van is not None:
        undecide(van)
        van.save()


def _decide(van: objects.VAN, function_id: str | None) -> None:
    data = dict(van.driver_data)
    data.pop(UNDECIDED, None)
    van.driver_data = data
    van.function_id = function_id
    van.save()


@contextlib.contextmanager
def _holding(by: driver.DriverBase, slot: Slot) -> Iterator[None]:
    # Whoever waits for the same function waits as long as it may take.
    conf = CONF.os_acc
    with by.lock(slot.lock_name, max(conf.lock_timeout, conf.program_timeout)):
        yield


def _write(
    by: driver.DriverBase,
    slot: Slot,
    wanted: Wanted,
    state: str,
    error: str | None = None,
) -> None:
    _journal(by).save_program(
        programs.Program(
            device=slot.device,
            region=slot.region,
            function_id=wanted.function_id,
            digest=wanted.digest,
            state=state,
            boot_id=boot.boot_id(),
            error=error,
            updated_at=timeutils.utcnow().isoformat(),
        )
    )


def _write_back(
    by: driver.DriverBase, slot: Slot, record: programs.Program | None
) -> None:
    """Have in the journal what was there before the last _write()."""
    if record is not None:
        _journal(by).save_program(record)
    else:
        _journal(by).forget_program(slot.device, slot.region)


def _journal(by: driver.DriverBase) -> Any:
    if by.journal is None:
        raise exception.LibraryNotInitialized()
    return by.journal


def _tell(device: str, function_id: str | None) -> None:
    """Call the hooks. What they do or fail to do changes nothing here."""
    for found in metadata.entry_points(group=HOOKS):
        try:
            waiting.at_most(
                functools.partial(_call, found, device, function_id),
                CONF.os_acc.hook_timeout,
                f'hook {found.name!r} of {HOOKS}',
            )
        except Exception as err:
            LOG.error(
                'Hook %r of %s failed for %s and function %s: %s',
                found.name,
                HOOKS,
                device,
                function_id,
                exception.describe(err),
            )


def _call(
    hook: metadata.EntryPoint, device: str, function_id: str | None
) -> None:
    hook.load()(device, function_id)


def _logger(van: objects.VAN | None) -> Any:
    return log.about(LOG, van.instance_uuid, van.uuid) if van else LOG
