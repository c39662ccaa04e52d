# SPDX-License-Identifier: Apache-2.0

"""Keeps the journal's record of what a slot contains."""

from __future__ import annotations

import contextlib
import dataclasses
import logging

from oslo_utils import timeutils

from os_acc import exception
from os_acc import health
from os_acc.journal import health as causes
from os_acc.journal import programs
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.programming import announcing
from os_acc.programming import contents
from os_acc.programming import programmer as programmers
from os_acc.programming import records

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Recorded(contents.Contents):
    """A device, or a region of it, whose record in the journal is written.

    The caller holds the lock of the slot. It calls save() before it changes
    the device, and afterwards one of done(), failed() and restore().
    """

    def needed_programmer(self) -> programmers.Programmer:
        """Return the programmer."""
        if self.programmer is None:
            raise exception.DeviceError(
                device=self.label, reason='nothing can program it'
            )
        return self.programmer

    def catch_up(self) -> None:
        """Deliver to the hooks the events that an earlier process has not
        delivered."""
        for record in self.driver.journal.programs(self.key):
            if (
                record.region == self.region
                and not record.announced
                and record.state != programs.PROGRAMMING
            ):
                announcing.program(self.driver.journal, record)

    def done(
        self, content: contents.Wanted, state: str, error: str | None = None
    ) -> None:
        """Record what the slot has now, and call the hooks."""
        record = self.save(content, state, error)
        # It works again, if an earlier programming has failed.
        self.driver.journal.forget_unhealthy(
            self.key, causes.programming_of(self.region)
        )
        announcing.program(self.driver.journal, record)

    def failed(
        self, content: contents.Wanted, err: BaseException, what: str
    ) -> None:
        """Record that programming or clearing failed, and call the hooks.

        The device is no longer assigned to anybody, unless its programmer
        makes it usable again. An interruption of this thread is not a failure
        of the device: the next request programs it again.

        :param what: what failed, a clause
        """
        text = exception.describe(err)
        journal = self.driver.journal
        cause = causes.programming_of(self.region)
        if isinstance(err, Exception):
            if self._heal():
                journal.forget_unhealthy(self.key, cause)
                text += '. The device was made usable again'
            else:
                reason = f'{what}: {text}'
                health.mark(journal, self.key, cause, reason, self.driver.name)
                LOG.error('Device %s is unhealthy: %s', self.key, reason)
        record = self.save(content, programs.ERROR, text)
        announcing.program(journal, record)

    def _heal(self) -> bool:
        try:
            return self.needed_programmer().heal()
        except Exception as err:
            LOG.error(
                '%s cannot be made usable again: %s',
                self.label,
                exception.describe(err),
            )
            return False

    def save(
        self, content: contents.Wanted, state: str, error: str | None = None
    ) -> programs.Program:
        """Write the record of the slot.

        The hooks are to be called for it, unless it is PROGRAMMING.
        """
        self._forget_others(state)
        chip = self._chip_now()
        record = programs.Program(
            device=self.key,
            region=self.region,
            function_id=content.function_id,
            digest=content.digest,
            state=state,
            boot_id=sysfs.boot_id(),
            error=error,
            updated_at=timeutils.utcnow().isoformat(),
            driver=self.driver.name,
            chip=chip.identity if chip else None,
            address=self.device,
            serial=chip.serial if chip else None,
            handles=self.handles,
            announced=state == programs.PROGRAMMING,
        )
        self.driver.journal.save_program(record)
        return record

    def _chip_now(self) -> chips.Chip | None:
        """The chip as it is now: a new image may have given it other ids."""
        if self.chip is not None:
            with contextlib.suppress(exception.DeviceError, OSError):
                if (there := pci.find(self.device)) is not None:
                    return chips.of(there)
        return self.chip

    def _forget_others(self, state: str) -> None:
        """Forget records that are wrong once the slot's has a new state.

        These are the record that an older version of os-acc had of this slot,
        and, once the whole device is programmed, those of its regions, or the
        other way round.
        """
        for other in self.records():
            older = other.region == self.region and other.device != self.key
            if older or (
                state == programs.PROGRAMMED
                and other.region != self.region
                and records.overlaps(self.region, other.region)
            ):
                self.driver.journal.forget_program(other.device, other.region)

    def restore(self, record: programs.Program | None) -> None:
        """Put back the record that was there before PROGRAMMING."""
        if record is not None:
            self.driver.journal.save_program(record)
        else:
            self.driver.journal.forget_program(self.key, self.region)
