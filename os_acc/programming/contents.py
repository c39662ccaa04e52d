# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What a slot contains and who uses it: the facts that the rule decides on."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc import driver as driver_module
from os_acc import objects
from os_acc.devices import boot
from os_acc.journal import programs
from os_acc.objects import device as device_objects
from os_acc.objects import function_id as function_ids
from os_acc.programming import uses


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a slot is to contain. Empty: whatever it contains already.

    :ivar function_id: the function; None: the one that the bitstream has
    :ivar digest: SHA-256 of the bitstream; None: any that has the function
    """

    function_id: str | None = None
    digest: str | None = None

    def matches(self, inside: Wanted, exact: bool) -> bool:
        """Say whether a slot has what is wanted, so needs no programming.

        :param inside: what the slot contains
        :param exact: the bitstream must be the same, not only the function
        """
        if self.function_id is None:
            return self.digest in (None, inside.digest)
        return function_ids.same(self.function_id, inside.function_id) and (
            not exact or self.digest in (None, inside.digest)
        )


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a slot contains and who uses it. This class changes nothing.

    A slot is a device that is programmed as a whole, or one region of it.

    :ivar driver: the driver of the device; it has the journal and the locks
    :ivar device: the device's address
    :ivar region: WHOLE if the device is programmed as a whole
    :ivar persistent: the device keeps its function when the host is rebooted
    :ivar look: reads the function from the hardware: '' for none, None if the
        hardware cannot tell. Without it, the journal's record counts
    """

    driver: driver_module.DriverBase
    device: str
    region: str = programs.WHOLE
    persistent: bool = False
    look: Callable[[], str | None] | None = None

    @property
    def label(self) -> str:
        """The slot's name in messages."""
        return programs.label(self.device, self.region)

    @property
    def lock_name(self) -> str:
        """The name of the lock that is held while the slot changes."""
        return programs.lock_name(self.device, self.region)

    def record(self) -> programs.Program | None:
        """Read the journal's record; None if there is none.

        :raises LibraryNotInitialized: if the driver is not connected
        """
        for record in self.driver.journal.programs(self.device):
            if record.region == self.region:
                return record
        return None

    def users(self, excluding: str | None = None) -> list[objects.VAN]:
        """List the VANs that use what the slot contains.

        :param excluding: UUID of a VAN to leave out
        :raises LibraryNotInitialized: if the driver is not connected
        """
        return [
            van
            for van in self.driver.vans_on(self.device)
            if van.uuid != excluding
            and uses.UNDECIDED not in van.driver_data
            # A VAN of another driver names no region: it may use any region.
            and van.driver_data.get(programs.REGION, self.region)
            == self.region
        ]

    def inside(self) -> Wanted:
        """Say what the slot contains; empty if that is unknown or broken."""
        record = self.record()
        if record is not None and record.state != programs.PROGRAMMED:
            return Wanted()
        known = Wanted()
        if record is not None:
            known = Wanted(record.function_id, record.digest)
        seen = self.look() if self.look is not None else None
        if seen is not None:
            if function_ids.same(seen, known.function_id):
                return known if seen else Wanted()
            return Wanted(seen or None)
        if record is None or (
            record.boot_id != boot.boot_id() and not self.persistent
        ):
            return Wanted()
        return known

    def holds(self, function_id: str | None) -> bool:
        """Say whether the slot has what a VAN was given.

        :param function_id: the VAN's; None: whatever the slot contains
        """
        if self.broken() is not None:
            return False
        return function_id is None or function_ids.same(
            function_id, self.inside().function_id
        )

    def broken(self) -> str | None:
        """Say why the slot must not be used as it is; None: it may be."""
        record = self.record()
        if record is None or record.state == programs.PROGRAMMED:
            return None
        if record.state == programs.PROGRAMMING:
            return 'its programming has started and has not ended'
        return f'its programming failed: {record.error}'

    def rank(self, wanted: Wanted) -> int:
        """Say how well the slot suits a request; the lowest is the best.

        :returns: 0: it contains what is wanted; 1: nobody uses it; 2: others
            use it with something else, or nothing is wanted and it is broken
        """
        nothing = wanted == Wanted()
        if nothing and self.broken() is not None:
            return 2
        if nothing or wanted.matches(self.inside(), exact=False):
            return 0
        return 2 if self.users() else 1

    def show(self) -> dict[str, Any]:
        """Describe the slot to an operator, see DriverBase.show_device."""
        record, users = self.record(), self.users()
        if users:
            can_be_programmed = 'no: it is in use'
        elif record is not None and record.state == programs.PROGRAMMING:
            can_be_programmed = (
                'no: it is being programmed, or its programming was '
                'interrupted; see os-acc recover'
            )
        else:
            can_be_programmed = 'yes'
        return {
            'function': self.inside().function_id,
            'bitstream': record.digest if record else None,
            'state': self.broken() or 'ok',
            'users': [uses.describe(van) for van in users],
            'can be programmed now': can_be_programmed,
        }

    def asked(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> tuple[str | None, str | None]:
        """Say what a VAN that is being prepared needs: function, bitstream.

        That is what its request names. A request that names neither gets
        whatever the slot contains. There is one exception: when such a VAN is
        prepared again after a reboot of the host, and another VAN that shares
        the slot requested the function, both need that function. Otherwise
        this VAN would occupy the slot as it is after the reboot, and the other
        VAN could not be restored.
        """
        wanted = request.function_id, request.bitstream
        if wanted != (None, None) or None in (van.function_id, van.handle):
            return wanted
        if van.boot_id == boot.boot_id():
            return wanted
        for other in self.driver.vans_on(self.device):
            if (
                other.uuid == van.uuid
                or other.driver_data.get(programs.REGION) != self.region
                or other.driver_data.get(uses.UNDECIDED) == uses.LEFT
                or not function_ids.same(other.function_id, van.function_id)
            ):
                continue
            for each in self.driver.requests_of(other.instance_uuid):
                if each.uuid == other.uuid and (
                    each.function_id or each.bitstream
                ):
                    return van.function_id, each.bitstream
        return wanted


def common_function(slots: Sequence[Contents]) -> str | None:
    """Give the function of a device if all of its slots have the same one."""
    found = {slot.inside().function_id for slot in slots} - {None}
    return found.pop() if len(found) == 1 else None


def functions(slots: Sequence[Contents]) -> dict[str, str | None]:
    """Give the function of each slot of a device: Device.functions."""
    return {slot.region: slot.inside().function_id for slot in slots}


def show(slots: Sequence[Contents], programming: str) -> dict[str, Any]:
    """Describe all slots of a device, see DriverBase.show_device.

    :param programming: as Device.programming
    """
    if programming != device_objects.PROGRAMMING_DYNAMIC:
        (slot,) = slots
        return {'programming': programming, **slot.show()}
    return {
        'programming': programming,
        'regions': [f'{slot.region}: {_line(slot)}' for slot in slots],
    }


def _line(slot: Contents) -> str:
    """Describe a region in one line, without what it does not have."""
    return ', '.join(
        f'{name} {"; ".join(text) if name == "users" else text}'
        for name, text in slot.show().items()
        if text
    )
