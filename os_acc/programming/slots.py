# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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
from oslo_utils import timeutils

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.devices import boot
from os_acc.journal import programs
from os_acc.objects import function_id as function_ids
from os_acc.programming import contents
from os_acc.programming import hooks
from os_acc.programming import uses

LOG = logging.getLogger(__name__)
CONF = cfg.CONF


@dataclasses.dataclass(frozen=True)
class Slot(contents.Contents):
    """A device that is programmed as a whole, or one region of a device.

    A driver that prepares a VAN calls take(). If that returns False, the
    driver calls program(). The journal records what a slot contains; program()
    and clear() write the record before they change the device.
    """

    def take(self, van: objects.VAN, wanted: contents.Wanted) -> bool:
        """Let a VAN use what the slot contains, if that is what it wants.

        The VAN must be saved with its handle, and with UNDECIDED and REGION
        in its driver_data.

        :param wanted: empty: whatever the slot contains
        :returns: True: the VAN uses the slot now. False: the slot must be
            programmed first, and no other VAN is in the way
        :raises DeviceBusy: if others use the slot with another function
        :raises DeviceError: if nothing is wanted and the slot is broken
        """
        with self._held():
            return self._take(van, self._completed(wanted), exact=False)

    def program(
        self,
        wanted: contents.Wanted,
        check: Callable[[], None],
        act: Callable[[], None],
        van: objects.VAN | None = None,
    ) -> bool:
        """Program the slot, unless it contains what is wanted by now.

        :param check: changes nothing; raises an error if act() cannot start
        :param act: programs the device and verifies the result
        :param van: the VAN that needs it. None: the administrator asks for
            this very bitstream, not only for its function
        :returns: whether the slot was programmed
        :raises DeviceBusy: if others use the slot with another function
        """
        with self._held():
            known = self._completed(wanted)
            if self._take(van, known, exact=van is None):
                return False
            check()
            done = self._program(wanted, known, act, van)
        _logger(van).info(
            '%s is programmed with function %s, bitstream %s',
            self.label,
            done.function_id,
            done.digest,
        )
        hooks.call(self.device, done.function_id)
        return True

    def clear(self, act: Callable[[], None] | None, van: objects.VAN) -> None:
        """End the use of the slot by a VAN.

        :param act: removes the function when its last user has left; None:
            the function stays
        """
        with self._held():
            if act is None or van.driver_data.get(uses.UNDECIDED) == (
                uses.NEVER
            ):
                return
            # Saved first: of two VANs that leave at the same time, neither
            # counts the other as a user.
            uses.leave(van)
            record = self.record()
            if record is None or self.users(excluding=van.uuid):
                return
            before = contents.Wanted(record.function_id, record.digest)
            self._save(before, programs.PROGRAMMING)
            try:
                # See _program(): a VAN saved concurrently is found here.
                if self.users(excluding=van.uuid):
                    self._restore(record)
                    return
                act()
            except BaseException as err:
                text = f'it was not cleared: {exception.describe(err)}'
                self._save(before, programs.ERROR, text)
                raise
            self.driver.journal.forget_program(self.device, self.region)
        _logger(van).info('%s is cleared', self.label)
        hooks.call(self.device, None)

    def _take(
        self, van: objects.VAN | None, wanted: contents.Wanted, exact: bool
    ) -> bool:
        """Do what take() does. The lock is held.

        :param wanted: as _completed() returns it
        """
        nothing = wanted == contents.Wanted()
        why = self.broken()
        if nothing and why is not None:
            raise exception.DeviceError(
                device=self.label, reason=f'{why}. Program it again'
            )
        inside = self.inside()
        if nothing or (why is None and wanted.matches(inside, exact)):
            if van is not None:
                uses.decide(van, inside.function_id)
            return True
        if users := self._in_the_way(wanted, van):
            raise self._busy(users, inside.function_id)
        return False

    def _program(
        self,
        wanted: contents.Wanted,
        known: contents.Wanted,
        act: Callable[[], None],
        van: objects.VAN | None,
    ) -> contents.Wanted:
        """Program the slot. The lock is held, and check() has passed.

        :param known: wanted, as _completed() returns it
        :returns: what the slot contains now
        """
        by_file = wanted.function_id is None
        if self.broken() is None:
            wanted = known
        if van is not None:
            uses.decide(van, wanted.function_id)
        before = self.record()
        self._save(wanted, programs.PROGRAMMING)
        try:
            # A VAN saved concurrently either sees this PROGRAMMING row or is
            # found by _in_the_way().
            users = self._in_the_way(known, van)
            if users:
                self._restore(before)
            else:
                act()
                if by_file and self.look is not None:
                    # The bitstream decided the function: record which one.
                    seen = self.look() or wanted.function_id
                    wanted = contents.Wanted(seen, wanted.digest)
                    if van is not None:
                        uses.decide(van, seen)
        except BaseException as err:
            text = exception.describe(err)
            self._save(wanted, programs.ERROR, text)
            _undecide(van)
            raise
        if users:
            _undecide(van)
            raise self._busy(users)
        self._save(wanted, programs.PROGRAMMED)
        return wanted

    def _in_the_way(
        self, wanted: contents.Wanted, van: objects.VAN | None
    ) -> list[objects.VAN]:
        """List the users that programming would take the function from.

        A user from before a reboot of the host that wants the same function
        is not in the way: the reboot took the function from all of its users,
        and one programming gives it back to all of them.

        :param wanted: as _completed() returns it
        """
        now = boot.boot_id()
        return [
            user
            for user in self.users(
                excluding=van.uuid if van is not None else None
            )
            if user.boot_id == now
            or not function_ids.same(user.function_id, wanted.function_id)
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
        timeout = max(CONF.os_acc.lock_timeout, CONF.os_acc.program_timeout)
        with self.driver.lock(self.lock_name, timeout):
            yield

    def _save(
        self, content: contents.Wanted, state: str, error: str | None = None
    ) -> None:
        self.driver.journal.save_program(
            programs.Program(
                device=self.device,
                region=self.region,
                function_id=content.function_id,
                digest=content.digest,
                state=state,
                boot_id=boot.boot_id(),
                error=error,
                updated_at=timeutils.utcnow().isoformat(),
            )
        )

    def _restore(self, record: programs.Program | None) -> None:
        """Put back the record that was there before PROGRAMMING."""
        if record is not None:
            self.driver.journal.save_program(record)
        else:
            self.driver.journal.forget_program(self.device, self.region)


def _undecide(van: objects.VAN | None) -> None:
    if van is not None:
        uses.undecide(van)
        van.save()


def _logger(van: objects.VAN | None) -> Any:
    return log.about(LOG, van.instance_uuid, van.uuid) if van else LOG
