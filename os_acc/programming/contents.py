# SPDX-License-Identifier: Apache-2.0

"""What a slot contains and who uses it: the facts that the rule decides on."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc import reserved
from os_acc.journal import programs
from os_acc.kernel import chip as chips
from os_acc.kernel import sysfs
from os_acc.objects import device as device_objects
from os_acc.programming import bitstreams
from os_acc.programming import kept
from os_acc.programming import programmer as programmers
from os_acc.programming import records
from os_acc.programming import uses
from os_acc.texts import forms

#: The digest of a bitstream that has not been read: no slot has it.
UNKNOWN = ''

#: How well a slot suits a request, the best first: it holds what is wanted, or
#: will in a moment; it is empty; it holds what no pool keeps; it holds what a
#: pool keeps; others use it with something else, it must not be programmed for
#: the request, or it is broken.
HOLDS, EMPTY, NOT_KEPT, KEPT, IN_USE = range(5)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a slot is to contain. Empty: whatever it contains already.

    :ivar function_id: the function; None: the one that the bitstream has
    :ivar digest: SHA-256 of the bitstream; None: any that has the function
    """

    function_id: str | None = None
    digest: str | None = None

    @classmethod
    def of_request(cls, request: objects.AcceleratorRequest) -> Wanted:
        """What a request wants, before its bitstream is read."""
        if request.function_id is None and request.bitstream is not None:
            return cls(digest=UNKNOWN)
        return cls(request.function_id)

    def matches(self, inside: Wanted, exact: bool) -> bool:
        """Say whether a slot has what is wanted, so needs no programming.

        :param inside: what the slot contains
        :param exact: the bitstream must be the same, not only the function
        """
        if self.function_id is None:
            return self.digest in (None, inside.digest)
        return forms.same_function(self.function_id, inside.function_id) and (
            not exact or self.digest in (None, inside.digest)
        )


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a slot contains and who uses it. This class changes nothing.

    A slot is a device that is programmed as a whole, or one region of it.

    :ivar driver: the driver of the device; it has the journal and the locks
    :ivar device: the device's address
    :ivar region: WHOLE if the device is programmed as a whole
    :ivar programmer: programs it and looks at it; None: it is only shown
    :ivar persistent: the device keeps its function when the host is rebooted
    :ivar chip: the chip that the device belongs to; None: it is no FPGA with
        PCI functions
    :ivar functions: the addresses of the PCI functions that give access to
        what the slot contains: of a region its VF, else those of the chip
    :ivar handles: the identities of its attach handles
    """

    driver: driver_base.DriverBase
    device: str
    region: str = programs.WHOLE
    programmer: programmers.Programmer | None = None
    persistent: bool = False
    chip: chips.Chip | None = None
    functions: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The slot's name in messages."""
        return programs.label(self.device, self.region)

    @property
    def key(self) -> str:
        """The address that records and locks have: of the chip if any."""
        return self.chip.address if self.chip is not None else self.device

    @property
    def lock_name(self) -> str:
        """The name of the lock that is held while the slot changes."""
        return programs.lock_name(self.key, self.region)

    def record(self) -> programs.Program | None:
        """Read the journal's record of the present card."""
        for record in self.records():
            if (
                record.region == self.region
                and record.state != programs.CLEARED
                and not records.is_replaced(record, self.chip)
            ):
                return dataclasses.replace(record, device=self.key)
        return None

    def being_programmed(self) -> programs.Program | None:
        """Read the record of a programming that goes on.

        It may also be one that was interrupted.
        """
        record = self.record()
        if record is None or record.state != programs.PROGRAMMING:
            return None
        return record

    def records(self) -> list[programs.Program]:
        """Read the journal's records of all regions of the chip."""
        return records.of(self.driver.journal, self.chip, self.device)

    def users(self, excluding: str | None = None) -> list[objects.VAN]:
        """List the VANs that use what the slot contains."""
        return [
            van
            for van in self._vans()
            if van.uuid != excluding
            and uses.UNDECIDED not in van.driver_data
            and records.overlaps(
                self.region, van.driver_data.get(programs.REGION)
            )
        ]

    def _vans(self) -> list[objects.VAN]:
        """List the VANs on all devices of the chip."""
        devices = self.chip.parents if self.chip else (self.device,)
        return [van for each in devices for van in self.driver.vans_on(each)]

    def function_of(self, file: bitstreams.Bitstream) -> str | None:
        """Read from a bitstream which function it has. See Programmer."""
        if self.programmer is None:
            return None
        return self.programmer.function_of(file)

    def _look(self) -> str | None:
        return self.programmer.look() if self.programmer is not None else None

    def inside(self) -> Wanted:
        """Say what the slot contains; empty if that is unknown or broken."""
        if self.broken() is not None:
            return Wanted()
        record = self.record()
        known = Wanted()
        if record is not None:
            known = Wanted(record.function_id, record.digest)
        seen = self._look()
        if seen is not None:
            if forms.same_function(seen, known.function_id):
                return known if seen else Wanted()
            return Wanted(seen or None)
        if record is None or (
            record.boot_id != sysfs.boot_id()
            and not self.persistent
            and record.state != programs.REBOOT
        ):
            return Wanted()
        return known

    def holds(self, van: objects.VAN) -> bool:
        """Say whether the slot has what a VAN was given.

        It does not if the card was replaced by another one.
        """
        if self.broken() is not None or uses.chip_replaced(van, self.chip):
            return False
        return van.function_id is None or forms.same_function(
            van.function_id, self.inside().function_id
        )

    def broken(self) -> str | None:
        """Say why the slot must not be used as it is; None: it may be.

        What failed for the whole device also concerns its regions, and the
        other way round.
        """
        for record in self.records():
            if (
                record.state == programs.CLEARED
                or not records.overlaps(self.region, record.region)
                or records.is_replaced(record, self.chip)
                or record.is_done(sysfs.boot_id())
            ):
                continue
            if record.state == programs.REBOOT:
                return (
                    'it has its old function until a power cycle of the host'
                )
            if record.state == programs.PROGRAMMING:
                return 'its programming has started and has not ended'
            return f'its programming failed: {record.error}'
        return None

    def others_at_work(self) -> list[programs.Program]:
        """List the records of programming that goes on beside this slot.

        That is programming of the whole device while this slot is a region,
        or the other way round. The slot's lock is held.
        """
        return [
            record
            for record in self.records()
            if record.state == programs.PROGRAMMING
            and record.region != self.region
            and records.overlaps(self.region, record.region)
            and self._is_locked(record.region)
        ]

    def _is_locked(self, region: str) -> bool:
        """Whether somebody holds the lock of another region of the chip.

        If not, the process that was programming it has ended.
        """
        name = programs.lock_name(self.key, region)
        try:
            with self.driver.lock(name, 0):
                return False
        except exception.Timeout:
            return True

    def rank(
        self,
        wanted: Wanted,
        pools: Iterable[dict[str, Any]] | None = None,
        reservations: Iterable[reserved.Reserved] | None = None,
    ) -> int:
        """Say how well the slot suits a request; the lowest is the best.

        A caller that ranks many slots reads pools and reservations once.

        :param pools: as Journal.pools(); None: they are read
        :param reservations: as reserved.read(); None: they are read
        :returns: one of HOLDS, EMPTY, NOT_KEPT, KEPT and IN_USE
        """
        if wanted == Wanted():
            if self.broken() is not None:
                return IN_USE
            return self._kept_or(HOLDS, pools)
        inside = self.inside()
        if wanted.matches(inside, exact=False):
            return HOLDS
        if (record := self.being_programmed()) is not None:
            # A VAN for the same function waits, and then shares the slot.
            same = forms.same_function(record.function_id, wanted.function_id)
            return HOLDS if same and wanted.function_id else IN_USE
        if self.users():
            return IN_USE
        if coming := self.requested():
            same = all(
                forms.same_function(wanted.function_id, f) for f in coming
            )
            return HOLDS if same and wanted.function_id else IN_USE
        try:
            self.check_reserved(wanted, reservations)
        except exception.DeviceBusy:
            return IN_USE
        if inside == Wanted():
            return EMPTY
        return self._kept_or(NOT_KEPT, pools)

    def check_reserved(
        self,
        wanted: Wanted,
        reservations: Iterable[reserved.Reserved] | None = None,
    ) -> None:
        """Check that it may be programmed for an instance.

        :param reservations: as reserved.read(); None: they are read
        :raises DeviceBusy: if a document of os-acc apply says that it is
            programmed ahead of time only, or reserves it or one of its handles
            for another function
        """
        if reservations is None:
            reservations = reserved.read(self.driver.journal)
        reserved.check_programming(
            reservations,
            {
                self.key,
                self.device,
                *self.functions,
                *(each.partition('/')[2] for each in self.handles),
            },
            self.region,
            wanted.function_id,
        )

    def _kept_or(
        self, otherwise: int, pools: Iterable[dict[str, Any]] | None
    ) -> int:
        known = self.driver.journal.pools() if pools is None else pools
        is_kept = kept.is_kept(known, self.inside().function_id)
        return KEPT if is_kept else otherwise

    def requested(self, excluding: str | None = None) -> list[str | None]:
        """The functions that VANs with a handle of the slot wait for.

        :param excluding: UUID of a VAN to leave out
        :returns: None for a function that only the bitstream tells
        """
        found = [
            self._request_of(van)
            for van in self._vans()
            if van.uuid != excluding
            and van.driver_data.get(uses.UNDECIDED) == uses.NEVER
            and records.overlaps(
                self.region, van.driver_data.get(programs.REGION)
            )
        ]
        return [each.function_id for each in found if each is not None]

    def _request_of(
        self, van: objects.VAN
    ) -> objects.AcceleratorRequest | None:
        """The request of a VAN, if it names a function or a bitstream."""
        for each in self.driver.requests_of(van.instance_uuid):
            if each.uuid == van.uuid and (each.function_id or each.bitstream):
                return each
        return None

    def show(self) -> dict[str, Any]:
        """Describe the slot to an operator, see DriverBase.show_device."""
        record, users = self.record(), self.users()
        if users:
            can_be_programmed = 'no: it is in use'
        elif self.being_programmed() is not None:
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
        if van.boot_id == sysfs.boot_id():
            return wanted
        for other in self._vans():
            if (
                other.uuid == van.uuid
                or other.driver_data.get(programs.REGION) != self.region
                or other.driver_data.get(uses.UNDECIDED) == uses.LEFT
                or not forms.same_function(other.function_id, van.function_id)
            ):
                continue
            if (request_of_other := self._request_of(other)) is not None:
                return van.function_id, request_of_other.bitstream
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
