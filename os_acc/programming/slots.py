# SPDX-License-Identifier: Apache-2.0

"""Slots of devices: which VAN may use a slot, and which may program it.

A device that takes one function at a time provides that function through all
of its handles. It cannot be programmed with another function while one of the
handles is in use. Each region of a dynamic device follows the same rule on
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import logging
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import health
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc.journal import health as causes
from os_acc.journal import programs
from os_acc.kernel import sysfs
from os_acc.objects import van as van_states
from os_acc.programming import activation
from os_acc.programming import bitstreams
from os_acc.programming import contents
from os_acc.programming import kept
from os_acc.programming import pending
from os_acc.programming import recorded
from os_acc.programming import uses
from os_acc.spec import device_spec
from os_acc.texts import forms

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: The errors of a programmer that has not touched the device.
_UNTOUCHED = (
    exception.BitstreamError,
    exception.DeviceBusy,
    exception.DeviceInUseByHost,
)


@dataclasses.dataclass(frozen=True)
class Slot(recorded.Recorded):
    """A device that is programmed as a whole, or one region of a device.

    A driver that prepares a VAN calls take(). If that returns False, the
    driver calls program(). The journal records what a slot contains; program()
    and clear() write the record before they change the device. Before that
    they check that nobody uses the chip: no VAN, no other process, and not the
    host itself. The driver must not hold the lock of the device meanwhile,
    because programming can take long.
    """

    def take(self, van: objects.VAN, wanted: contents.Wanted) -> bool:
        """Let a VAN use what the slot contains, if that is what it needs.

        The VAN must be saved with its handle, and with UNDECIDED and REGION
        in its driver_data.

        :param wanted: empty: whatever the slot contains
        :returns: True: the VAN uses the slot now. False: the slot must be
            programmed first, and no other VAN is in the way
        :raises DeviceBusy: if others use the slot with another function
        :raises DeviceError: if nothing is wanted and the slot is broken
        :raises DeviceUnhealthy: if the device has failed, and the VAN did not
            have it before
        """
        with self._held():
            return self._take(van, self._completed(wanted), exact=False)

    def program(
        self,
        wanted: contents.Wanted,
        file: bitstreams.Bitstream | None = None,
        report: progress.Report = bitstreams.ignore,
        van: objects.VAN | None = None,
    ) -> bool:
        """Program the slot, unless it contains what is wanted by now.

        :param file: the bitstream; None: the device needs none
        :param report: called with a fraction or None, and a text
        :param van: the VAN that needs it. None: the administrator asks for
            this very bitstream, not only for its function
        :returns: whether the slot was programmed
        :raises DeviceBusy: if others use the chip with another function, a
            guest or another process has it open, or a VAN needs it and it is
            reserved: see check_reserved()
        :raises DeviceInUseByHost: if the host uses it
        :raises DeviceUnhealthy: if a VAN needs it, and it has failed before,
            or has the function only after a cold reboot
        """
        programmer = self.needed_programmer()
        with self._held():
            self.catch_up()
            known = self._completed(wanted)
            if self._take(van, known, exact=van is None):
                return False
            if van is not None:
                health.check(self.driver.journal, self.key)
                self.check_reserved(known)
            pending.check(self.label, self.functions)
            programmer.check(file)
            seen = activation.see(self.chip.parents if self.chip else ())

            def act() -> str:
                kind = programmer.program(file, wanted.function_id, report)
                if kind == device_spec.REENUMERATE:
                    report(None, 're-enumerating')
                    with _touched(self.label):
                        activation.reenumerate(self.label, seen)
                    activation.check_function(
                        self.label, programmer, wanted.function_id
                    )
                return kind

            kind = self._program(wanted, known, act, van)
            if kind == device_spec.COLD_REBOOT and van is not None:
                health.check(self.driver.journal, self.key)
        return True

    def check_request(self, request: objects.AcceleratorRequest) -> None:
        """Check what take() and program() would check for a new VAN.

        It takes no lock of the slot, needs no privilege and changes nothing.
        It does not see which processes have the device open, and downloads no
        bitstream.

        :raises: as take() and program()
        """
        health.check(self.driver.journal, self.key)
        function_id = request.function_id
        with bitstreams.local(request.bitstream) as file:
            wanted = contents.Wanted.of_request(request)
            if function_id is None and file is not None:
                wanted = contents.Wanted(self.function_of(file), file.sha256)
            going = self.being_programmed()
            if (
                going is not None
                and wanted.function_id is not None
                and forms.same_function(going.function_id, wanted.function_id)
            ):
                return  # a VAN waits for that, and then uses the function
            known = self._completed(wanted)
            if self._fitting(None, known, False) is None:
                self.check_reserved(known)
                pending.check_host(self.functions)
                fault = self.needed_programmer().fault()
                if fault is not None:
                    raise exception.DeviceError(
                        device=self.label, reason=fault
                    )

    def clear(self, van: objects.VAN, remove: bool) -> None:
        """End the use of the slot by a VAN.

        :param remove: whether to remove the function when its last user has
            left, unless a pool decides it. If the device cannot do this, it
            keeps the function
        """
        with self._held():
            known = self.record()
            if known is not None:
                said = kept.clears(
                    self.driver.journal.pools(), known.function_id
                )
                remove = remove if said is None else said
            if remove and not self.needed_programmer().can_clear:
                _logger(van).warning(
                    '%s keeps its function: nothing can remove it', self.label
                )
                return
            if not remove or van.driver_data.get(uses.UNDECIDED) == (
                uses.NEVER
            ):
                return
            self.catch_up()
            # Saved first: of two VANs that leave at the same time, neither
            # counts the other as a user.
            uses.leave(van)
            record = self.record()
            if (
                record is None
                or self.users(excluding=van.uuid)
                or self.others_at_work()
            ):
                return
            before = contents.Wanted(record.function_id, record.digest)
            self.save(before, programs.PROGRAMMING)
            try:
                # See _program(): a VAN saved concurrently is found here.
                users = self.users(excluding=van.uuid)
                if not users:
                    pending.check(self.label, self.functions)
            except BaseException:
                self.restore(record)
                raise
            if users:
                self.restore(record)
                return
            try:
                self.needed_programmer().clear()
            except _UNTOUCHED:
                self.restore(record)
                raise
            except BaseException as err:
                self.failed(before, err, 'it was not cleared')
                raise
            self.done(contents.Wanted(), programs.CLEARED)
        _logger(van).info('%s is cleared', self.label)

    def _take(
        self, van: objects.VAN | None, wanted: contents.Wanted, exact: bool
    ) -> bool:
        """Do what take() does. The lock is held."""
        if van is not None and van.state not in van_states.WHOLE:
            health.check(self.driver.journal, self.key)
        inside = self._fitting(van, wanted, exact)
        if inside is None:
            return False
        if van is not None:
            uses.decide(van, inside.function_id)
        return True

    def _fitting(
        self, van: objects.VAN | None, wanted: contents.Wanted, exact: bool
    ) -> contents.Wanted | None:
        """Apply the rule of programming. This changes nothing.

        :returns: what the slot contains, if it is what is wanted; None: the
            slot must be programmed first, and no other VAN is in the way
        """
        nothing = wanted == contents.Wanted()
        why = self.broken()
        if nothing and why is not None:
            raise exception.DeviceError(
                device=self.label, reason=f'{why}. Program it again'
            )
        inside = self.inside()
        if nothing or (why is None and wanted.matches(inside, exact)):
            return inside
        if users := self._in_the_way(wanted, van):
            raise self._busy(users, inside.function_id)
        return None

    def _program(
        self,
        wanted: contents.Wanted,
        known: contents.Wanted,
        act: Callable[[], str],
        van: objects.VAN | None,
    ) -> str:
        """Program the slot. The lock is held, and the checks have passed.

        :param known: wanted, as _completed() returns it
        """
        by_file = wanted.function_id is None
        if self.broken() is None:
            wanted = known
        if van is not None:
            uses.decide(van, wanted.function_id)
            # The document of os-acc apply may name another function. When the
            # instance has gone, that function is programmed again.
            self.driver.journal.unsettle_desired()
        before = self.record()
        self.save(wanted, programs.PROGRAMMING)
        try:
            # A VAN saved concurrently either sees this PROGRAMMING row or is
            # found by _in_the_way().
            if users := self._in_the_way(known, van):
                raise self._busy(users)
            pending.check(self.label, self.functions)
        except BaseException:
            self.restore(before)
            _undecide(van)
            raise
        try:
            kind = act()
            is_later = kind == device_spec.COLD_REBOOT
            if (
                by_file
                and not is_later
                and (found := self._look()) is not None
            ):
                # The bitstream decided the function: record which one.
                wanted = contents.Wanted(
                    found or wanted.function_id, wanted.digest
                )
                if van is not None:
                    uses.decide(van, wanted.function_id)
        except _UNTOUCHED:
            self.restore(before)
            _undecide(van)
            raise
        except BaseException as err:
            self.failed(wanted, err, 'its programming failed')
            _undecide(van)
            raise
        _logger(van).info(
            '%s is programmed with function %s, bitstream %s%s',
            self.label,
            wanted.function_id,
            wanted.digest,
            ', which it has after a cold reboot of the host' * is_later,
        )
        if is_later:
            _undecide(van)
            reason = f'it was programmed with {wanted.function_id or "a file"}'
            health.mark(self.driver.journal, self.key, causes.REBOOT, reason)
            self.done(
                wanted,
                programs.REBOOT,
                f'{reason}, which it has only after a power cycle of the host',
            )
        else:
            self.done(wanted, programs.PROGRAMMED)
        return kind

    def _in_the_way(
        self, wanted: contents.Wanted, van: objects.VAN | None
    ) -> list[objects.VAN]:
        """List the users that programming would take the function from.

        A user from before a reboot of the host that wants the same function is
        not counted: the reboot took the function from all of its users,
        and one programming gives it back to all of them. The same is true
        after the card was replaced.

        :raises DeviceBusy: if a region is programmed while the whole device is
            asked about, or the other way round
        """
        for other in self.others_at_work():
            raise exception.DeviceBusy(
                device=self.label,
                reason=f'{other.label} is being programmed now',
            )
        now = sysfs.boot_id()
        return [
            user
            for user in self.users(
                excluding=van.uuid if van is not None else None
            )
            if (
                user.boot_id == now and not uses.chip_replaced(user, self.chip)
            )
            or not forms.same_function(user.function_id, wanted.function_id)
        ]

    def _completed(self, wanted: contents.Wanted) -> contents.Wanted:
        """Add the bitstream's function, if the slot's record knows it."""
        record = self.record()
        if (
            wanted.function_id is None
            and wanted.digest is not None
            and record is not None
            and record.digest == wanted.digest
        ):
            return contents.Wanted(record.function_id, wanted.digest)
        return wanted

    def _busy(
        self, users: list[objects.VAN], function_id: str | None = None
    ) -> exception.DeviceBusy:
        names = ', '.join(map(uses.describe, users))
        state = f'programmed with {function_id} and ' if function_id else ''
        return exception.DeviceBusy(
            device=self.label, reason=f'it is {state}used by {names}'
        )

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        # Another caller may be programming the function that this one wants:
        # wait for as long as that may take.
        limit = CONF.os_acc.program_timeout
        if self.programmer is not None:
            limit = self.programmer.time_limit
        timeout = max(CONF.os_acc.lock_timeout, limit)
        with self.driver.lock(self.lock_name, timeout):
            yield


@contextlib.contextmanager
def _touched(label: str) -> Iterator[None]:
    """Do something after the device was programmed.

    An error that otherwise says that nothing was changed becomes a
    DeviceError, because the device no longer has what it had before.
    """
    try:
        yield
    except _UNTOUCHED as err:
        raise exception.DeviceError(
            device=label,
            reason=f'it was programmed, but a later step failed: {err}',
        ) from err


def _undecide(van: objects.VAN | None) -> None:
    if van is not None:
        uses.undecide(van)
        van.save()


def _logger(van: objects.VAN | None) -> Any:
    return log.about(LOG, van.instance_uuid, van.uuid) if van else LOG
