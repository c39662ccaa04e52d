# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What is in a device that is programmed, and who uses it: it only looks.

The rule of os_acc.programming is decided on what is found here.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc import driver
from os_acc import objects
from os_acc.devices import boot
from os_acc.journal import programs

# Keys of VAN.driver_data.
UNDECIDED = 'function_undecided'  # it has a handle, and uses nothing
REGION = programs.REGION

# Values of UNDECIDED: it never did; or it has let go.
NEVER, LEFT = 'never', 'left'


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


def record_of(by: driver.DriverBase, slot: Slot) -> programs.Program | None:
    """What the journal says of a slot."""
    if by.journal is None:
        return None
    for record in by.journal.programs(slot.device):
        if record.region == slot.region:
            return record
    return None


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
    record = record_of(by, slot)
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
    record = record_of(by, slot)
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
    record, using = record_of(by, slot), users(by, slot)
    return {
        'function': inside(by, slot).function_id,
        'bitstream': record.digest if record else None,
        'state': broken(by, slot) or 'sound',
        'users': [describe(van) for van in using],
        'can be programmed now': 'no: it is in use'
        if using
        else 'no: it is being programmed, or that was cut short; see recover'
        if record is not None and record.state == programs.PROGRAMMING
        else 'yes',
    }


def describe(van: objects.VAN) -> str:
    """A user of a slot, for a person."""
    text = f'instance {van.instance_uuid} (VAN {van.uuid})'
    if van.function_id is not None:
        text += f' with {van.function_id}'
    return text
