# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The rule of programming: what is in, who uses it, and when it may change.

A device that takes one function at a time has it for all of its handles, and
cannot be programmed while one of them is in use. Each region of a dynamic
device is such a device of its own. A driver calls take(), and if that finds
nothing, program(); the journal has what is in, written before the act.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
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
from os_acc import programs
from os_acc.linux import boot
from os_acc.linux import waiting

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: Entry points: callables that get a device's address and its new function.
HOOKS = 'os_acc.programmed'

# Keys of VAN.driver_data.
UNDECIDED = 'function_undecided'  # it has a handle, and uses nothing
REGION = programs.REGION

# Values of UNDECIDED: it never did; or it has let go.
NEVER, LEFT = 'never', 'left'

#: Is told how far it is: 0.0 to 1.0, None where unknown; and what is done.
Report = Callable[[float | None, str], None]


@dataclasses.dataclass(frozen=True)
class Slot:
    """What is programmed at a time: a device, or a region of one.

    :ivar persistent: it keeps its function when the host is rebooted
    :ivar look: asks the hardware for its function: '' for none; None where
        it cannot tell. Without it the journal is believed
    """

    device: str
    region: str = programs.WHOLE
    persistent: bool = False
    look: Callable[[], str | None] | None = None

    @property
    def label(self) -> str:
        return programs.label(self.device, self.region)

    @property
    def lock_name(self) -> str:
        return programs.lock_name(self.device, self.region)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What shall be in.

    :ivar digest: SHA-256 of the bitstream; None: any with the function
    """

    function_id: str | None = None
    digest: str | None = None

    def is_in(self, there: Wanted, exact: bool) -> bool:
        """:param exact: the bitstream must be the same too"""
        if self.function_id is None:
            return self.digest in (None, there.digest)
        same = spelling(self.function_id) == spelling(there.function_id)
        return same and (not exact or self.digest in (None, there.digest))


def spelling(function_id: str | None) -> str:
    """One spelling of a function's id: tools differ in case and hyphens."""
    return (function_id or '').lower().replace('-', '')


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
        return _take(by, van, slot, wanted, exact=False)


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
        if _take(by, van, slot, wanted, exact=van is None):
            return False
        check()
        unnamed = wanted.function_id is None
        known = _known(by, slot, wanted)
        if broken(by, slot) is None:
            wanted = known
        if van is not None:
            _decide(van, wanted.function_id)
        before = _record(by, slot)
        _write(by, slot, wanted, programs.PROGRAMMING)
        try:
            # Who has saved a VAN since then sees the record, or is seen.
            _check_unused(by, slot, known, before, van)
            act()
            if unnamed and slot.look is not None:
                # What the file put in: it counts as this file from now on.
                seen = slot.look() or wanted.function_id
                wanted = Wanted(seen, wanted.digest)
                if van is not None:
                    _decide(van, seen)
        except _TakenMeanwhile as err:
            if van is not None:
                undecide(van)
                van.save()
            raise err.busy from None
        except BaseException as err:
            text = exception.describe(err)
            _write(by, slot, wanted, programs.ERROR, text)
            if van is not None:
                undecide(van)
                van.save()
            raise
        _write(by, slot, wanted, programs.PROGRAMMED)
    _logger(van).info(
        '%s is programmed with function %s, bitstream %s',
        slot.label,
        wanted.function_id,
        wanted.digest,
    )
    _tell(slot.device, wanted.function_id)
    return True


class _TakenMeanwhile(Exception):
    def __init__(self, busy: exception.DeviceBusy) -> None:
        super().__init__()
        self.busy = busy


def _check_unused(
    by: driver.DriverBase,
    slot: Slot,
    wanted: Wanted,
    before: programs.Program | None,
    van: objects.VAN | None,
) -> None:
    """Look once more, with the record written: nobody came in between."""
    holders = _in_the_way(by, slot, wanted, van)
    if not holders:
        return
    if before is not None:
        _journal(by).save_program(before)
    else:
        _journal(by).forget_program(slot.device, slot.region)
    raise _TakenMeanwhile(
        exception.DeviceBusy(
            device=slot.label,
            holder=', '.join(_user(other) for other in holders),
        )
    )


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
        record = _record(by, slot)
        if record is None or users(by, slot, van.uuid):
            return
        before = Wanted(record.function_id, record.digest)
        _write(by, slot, before, programs.PROGRAMMING)
        try:
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


def users(
    by: driver.DriverBase, slot: Slot, but: str | None = None
) -> list[objects.VAN]:
    """The VANs that use what is in a slot.

    :param but: without this one
    """
    return [
        van
        for van in by.vans_on(slot.device)
        if van.uuid != but
        and UNDECIDED not in van.driver_data
        # Another driver's VAN may use any region.
        and van.driver_data.get(REGION, slot.region) == slot.region
    ]


def inside(by: driver.DriverBase, slot: Slot) -> Wanted:
    """What is in a slot, as far as it is known and sound."""
    record = _record(by, slot)
    if record is not None and record.state != programs.PROGRAMMED:
        return Wanted()
    known = Wanted()
    if record is not None:
        known = Wanted(record.function_id, record.digest)
    seen = slot.look() if slot.look is not None else None
    if seen is not None:
        if spelling(seen) == spelling(known.function_id):
            return known if seen else Wanted()
        return Wanted(seen or None)
    if record is None or (
        record.boot_id != boot.boot_id() and not slot.persistent
    ):
        return Wanted()
    return known


def common_function(
    by: driver.DriverBase, slots: Sequence[Slot]
) -> str | None:
    """The function that is in a device, if all its regions have the same."""
    found = {inside(by, slot).function_id for slot in slots} - {None}
    return found.pop() if len(found) == 1 else None


def rank(by: driver.DriverBase, slot: Slot, wanted: Wanted) -> int:
    """How well a slot suits: 0: it is in; 1: it is free; 2: neither."""
    nothing = wanted == Wanted()
    if nothing and broken(by, slot) is not None:
        return 2
    if nothing or wanted.is_in(inside(by, slot), exact=False):
        return 0
    return 2 if users(by, slot) else 1


def broken(by: driver.DriverBase, slot: Slot) -> str | None:
    """Why what is in a slot must not be used; None: it may be."""
    record = _record(by, slot)
    if record is None or record.state == programs.PROGRAMMED:
        return None
    if record.state == programs.PROGRAMMING:
        return 'its programming was begun and has not ended'
    return f'its programming failed: {record.error}'


def show(
    by: driver.DriverBase, slots: Sequence[Slot], programming: str
) -> dict[str, Any]:
    """What an operator is told, see DriverBase.show_device."""
    if programming == objects.device.PROGRAMMING_DYNAMIC:
        lines = {slot.region: _show(by, slot) for slot in slots}
        return {
            'programming': programming,
            'regions': [
                f'{region}: '
                + ', '.join(
                    f'{name} {"; ".join(text) if name == "users" else text}'
                    for name, text in line.items()
                )
                for region, line in lines.items()
            ],
        }
    (slot,) = slots
    return {'programming': programming, **_show(by, slot)}


def _show(by: driver.DriverBase, slot: Slot) -> dict[str, Any]:
    record, using = _record(by, slot), users(by, slot)
    return {
        'function': inside(by, slot).function_id,
        'bitstream': record.digest if record else None,
        'state': broken(by, slot) or 'sound',
        'users': [_user(van) for van in using],
        'can be programmed now': 'no: it is in use'
        if using
        else 'no: it is being programmed, or that was cut short; see recover'
        if record is not None and record.state == programs.PROGRAMMING
        else 'yes',
    }


def _user(van: objects.VAN) -> str:
    text = f'instance {van.instance_uuid} (VAN {van.uuid})'
    if van.function_id is not None:
        text += f' with {van.function_id}'
    return text


def _take(
    by: driver.DriverBase,
    van: objects.VAN | None,
    slot: Slot,
    wanted: Wanted,
    exact: bool,
) -> bool:
    """See take; the slot is held."""
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
        raise exception.DeviceBusy(
            device=f'{slot.label}, programmed with {there.function_id},',
            holder=', '.join(_user(other) for other in holders),
        )
    return False


def _known(by: driver.DriverBase, slot: Slot, wanted: Wanted) -> Wanted:
    """With the function that the bitstream had when it was in before."""
    record = _record(by, slot)
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
    """Who uses what is in a slot, and would lose it."""
    now = boot.boot_id()
    function = spelling(_known(by, slot, wanted).function_id)
    return [
        other
        for other in users(by, slot, van.uuid if van is not None else None)
        # What a reboot took from them all is put back for them all.
        if other.boot_id == now or spelling(other.function_id) != function
    ]


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


def _record(by: driver.DriverBase, slot: Slot) -> programs.Program | None:
    if by.journal is None:
        return None
    for record in by.journal.programs(slot.device):
        if record.region == slot.region:
            return record
    return None


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
