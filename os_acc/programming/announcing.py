# SPDX-License-Identifier: Apache-2.0

"""Calls the hooks for what has happened to a device, at least once.

The journal has each event before the hooks are called, and notes afterwards
that they were called. If the process ends in between, recovery calls the
hooks. The caller holds the lock of the slot or of the device's health, so that
no two processes report the same event.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import dataclasses
import logging

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import health
from os_acc import journal as journal_module
from os_acc.journal import health as rows
from os_acc.journal import programs
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.programming import hooks

LOG = logging.getLogger(__name__)


def program(journal: journal_module.Journal, record: programs.Program) -> None:
    """Call the hooks for a record, and note that in the journal.

    The caller holds the lock of the record's slot.

    :param record: as it is in the journal; its state is not PROGRAMMING
    """
    hooks.call(event_of(record))
    if record.state == programs.CLEARED:
        _note(lambda: journal.forget_program(record.device, record.region))
        return
    announced = dataclasses.replace(record, announced=True)
    _note(lambda: journal.save_program(announced))


def event_of(record: programs.Program) -> hooks.ProgrammedEvent:
    """Make the event of a record, for the hooks."""
    state, reason, function_id = hooks.ERROR, record.error, None
    if record.state == programs.CLEARED:
        state = hooks.CLEARED
    elif record.is_done(sysfs.boot_id()):
        state, function_id = hooks.PROGRAMMED, record.function_id
    return hooks.ProgrammedEvent(
        device=record.address or record.device,
        driver=record.driver,
        chip_serial=record.serial,
        region=record.region,
        function_id=function_id,
        state=state,
        reason=reason if state == hooks.ERROR else None,
        handles=record.handles,
    )


def mark(
    driver: driver_base.DriverBase, device: str, cause: str, reason: str
) -> None:
    """Stop giving out a device that has failed, and call the hooks.

    Does nothing if it was marked for the same cause before. If the journal
    cannot be written, this is logged: the caller has another error to raise.

    :param device: its address; for a VF that has failed, the VF's
    """
    try:
        with driver.lock(lock_name(device)):
            if any(
                (each.device, each.cause) == (device, cause)
                for each in driver.journal.unhealthy()
            ):
                return
            found = health.mark(
                driver.journal,
                device,
                cause,
                reason,
                driver.name,
                announced=False,
            )
            LOG.error('Device %s is unhealthy: %s', device, reason)
            unhealthy(driver.journal, found)
    except (exception.JournalError, exception.Timeout) as err:
        LOG.error(
            'Device %s is unhealthy (%s), but is not marked as such: %s',
            device,
            reason,
            err,
        )


def unhealthy(journal: journal_module.Journal, found: rows.Health) -> None:
    """Call the hooks for a device that has failed, and note that.

    The caller holds lock_name().
    """
    function = pci.find(found.device) if pci.is_address(found.device) else None
    is_pci = pci.is_address(found.device)
    hooks.call(
        hooks.ProgrammedEvent(
            device=function.parent if function is not None else found.device,
            driver=found.driver,
            chip_serial=None,
            region='',
            function_id=None,
            state=hooks.ERROR,
            reason=found.reason,
            handles=(f'pci/{found.device}',) if is_pci else (),
        )
    )
    _note(lambda: journal.announce_unhealthy(found))


def lock_name(device: str) -> str:
    """The name of the lock to hold while a device's health changes."""
    return f'{device}/health'


def _note(write: Callable[[], None]) -> None:
    """Write that the hooks were called; they are called again otherwise."""
    try:
        write()
    except exception.JournalError as err:
        LOG.warning(
            'Recovery will call the hooks of %s again: %s', hooks.GROUP, err
        )


def recover(
    journal: journal_module.Journal,
    hold: Callable[[str], contextlib.AbstractContextManager[bool]],
) -> None:
    """Call the hooks for events that an earlier process did not report.

    :param hold: takes a lock of this name if nobody else has it, and says
        whether it did. Whoever has it is calling the hooks now
    """
    causes = journal.unhealthy()
    for found in causes:
        if found.announced:
            continue
        with hold(lock_name(found.device)) as held:
            if held and found in journal.unhealthy():
                unhealthy(journal, found)
    booted = [each for each in causes if not health.counts(each)]
    for record in journal.programs():
        ended = [
            each
            for each in booted
            if each.device == record.device and record.state == programs.REBOOT
        ]
        if record.state == programs.PROGRAMMING or (
            record.announced and not ended
        ):
            continue
        name = programs.lock_name(record.device, record.region)
        with hold(name) as held:
            if not held:
                # Whoever has it calls the hooks for this slot.
                continue
            if record in journal.programs(record.device):
                program(journal, record)
    for found in booted:
        journal.forget_unhealthy(found.device, found.cause)
        LOG.info(
            'Device %s is in service again: the host was rebooted',
            found.device,
        )
