# SPDX-License-Identifier: Apache-2.0

"""recover(): finishes or undoes what a crash or a reboot left behind."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import logging
import os
import threading

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import locking
from os_acc import log
from os_acc import objects
from os_acc.attach import parallel
from os_acc.attach import plan
from os_acc.attach import prepare
from os_acc.attach import recorder
from os_acc.attach import release
from os_acc.attach import steps
from os_acc.journal import events
from os_acc.journal import programs
from os_acc.kernel import file_place
from os_acc.kernel import process
from os_acc.kernel import sysfs
from os_acc.kinds.pci.driver import companions
from os_acc.moving import settling
from os_acc.objects import van as states
from os_acc.privileged import notes
from os_acc.programming import announcing
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

# The handles, by the start of their identity, that the privileged half notes.
_NOTED = ('pci', 'mdev', 'file', 'block')


def recover(
    host: host_module.Host, at_start: bool = False
) -> objects.RecoveryReport:
    """See os_acc.recover.

    Instances are recovered in parallel, at most max_workers at once. Nothing
    that one instance raises stops the others.

    :param at_start: True: a process starts, as each command does. It does not
        clean up again after a failed programming
    """
    reports: dict[str, objects.RecoveryReport] = {}
    ended = [
        uuid for uuid, user in host.journal.kept() if process.has_ended(user)
    ]
    # Several processes may have used one instance.
    unsettled = list(
        dict.fromkeys([*host.journal.unsettled(sysfs.boot_id()), *ended])
    )
    stop = threading.Event()
    _note_holders(host)

    def one(instance_uuid: str) -> None:
        if not stop.is_set():
            reports[instance_uuid] = _recover_instance(host, instance_uuid)

    first = [uuid for uuid in unsettled if _names_function(host, uuid)]
    # Instances that requested a function go first; the others share it.
    for wave in (first, [uuid for uuid in unsettled if uuid not in first]):
        if wave:
            parallel.run(one, wave, host.conf.os_acc.max_workers, stop)
    _recover_programming(host)
    _clean_up_programming(host, at_start)
    report = _joined([reports[uuid] for uuid in unsettled if uuid in reports])
    for uuid in unsettled:
        if uuid not in reports:  # what its thread raised is in the log
            report.errors[uuid] = 'its recovery was interrupted'
    LOG.info(
        'Recovery: %d VANs released, %d prepared again, %d failed; '
        '%d instances busy, %d unreadable, %d not recovered',
        len(report.released),
        len(report.restored),
        len(report.failed),
        len(report.busy),
        len(report.unreadable),
        len(report.errors),
    )
    return report


def _note_holders(host: host_module.Host) -> None:
    """Have the privileged half note which VANs have which devices.

    Its notes may be of an earlier version of os-acc, or damaged. A device
    whose note names no VAN is refused to all, even to the VAN that has it, as
    its device or as a companion. Where no device is offered, and none was ever
    given out, there is nothing to note.
    """
    if not host.offers_devices() and not os.path.isdir(notes.FOLDER):
        return
    vans = [
        [van.instance_uuid, van.uuid, name]
        for van, name in _of_plugged(host.journal.vans())
    ]
    if not vans:
        return
    from os_acc.privileged import device_users

    try:
        with host.acting_for():
            device_users.adopt(vans)
    except exception.ExceptionBase as err:
        # A service must be able to start in spite of this error.
        LOG.info('The notes may not name who has the devices: %s', err)


def _of_plugged(vans: Iterable[objects.VAN]) -> list[tuple[objects.VAN, str]]:
    """The devices that plugged VANs have, with the companions of each."""
    plugged = [
        each
        for each in vans
        # The fake driver has no device.
        if each.state in states.WHOLE and each.driver != 'fake'
    ]
    own = {name: each for each in plugged for name in _noted_names(each)}
    of_companions = {
        address: each
        for each in plugged
        for address in companions.addresses_of(each)
        if address not in own
    }
    return [(van, name) for name, van in (own | of_companions).items()]


def _noted_names(van: objects.VAN) -> Iterator[str]:
    if van.handle is None:
        return
    kind, _, name = van.handle.identity.partition('/')
    if kind in _NOTED:
        # Only a device file has a share.
        yield file_place.with_share(*name.partition('/')[::2])


def _joined(
    reports: Sequence[objects.RecoveryReport],
) -> objects.RecoveryReport:
    made = objects.RecoveryReport()
    for report in reports:
        made.released += report.released
        made.restored += report.restored
        made.failed += report.failed
        made.busy += report.busy
        made.unreadable |= report.unreadable
        made.errors |= report.errors
    return made


def _names_function(host: host_module.Host, instance_uuid: str) -> bool:
    # A row that cannot be read is reported when the instance is recovered.
    with contextlib.suppress(Exception):
        entries = host.journal.entries(instance_uuid)
        return any(entry.names_function for entry in entries)
    return False


def _recover_instance(
    host: host_module.Host, instance_uuid: str
) -> objects.RecoveryReport:
    """Recover one instance. Errors go into the report."""
    report = objects.RecoveryReport()
    logger = log.about(LOG, instance_uuid)
    try:
        lock = host.locks.instance(instance_uuid, wait=False)
        with _taken(lock) as locked:
            if locked:
                _recover_vans(host, instance_uuid, report)
            else:
                report.busy.append(instance_uuid)
                logger.info(
                    'not recovered: another thread or process is working on '
                    'the instance'
                )
    except Exception as err:
        # An error must not stop the recovery of the other instances.
        report.errors[instance_uuid] = exception.describe(err)
        log.error(logger, err, 'not recovered')
    return report


@contextlib.contextmanager
def _taken(lock: contextlib.AbstractContextManager[None]) -> Iterator[bool]:
    """Take a lock that does not wait; yields whether it was taken."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except exception.Timeout:
            yield False
        else:
            yield True


def _recover_vans(
    host: host_module.Host,
    instance_uuid: str,
    report: objects.RecoveryReport,
) -> None:
    for row in host.journal.unreadable(instance_uuid):
        text = str(plan.unreadable(host, row))
        report.unreadable[instance_uuid] = text
        log.about(LOG, instance_uuid, row.van_uuid).error(
            'not recovered: %s', text
        )
    entries = host.journal.entries(instance_uuid)
    called = entries[0].instance_info if entries else instance_uuid
    step = steps.Steps(host, recorder.Recorder(events.RECOVER, called))
    moving = [e for e in entries if e.van.state in states.MOVING]
    given_up = settling.settle(host, moving, step, report.restored)
    unneeded = [
        e
        for e in entries
        if e in given_up or e.van.state not in states.WHOLE or _has_ended(e)
    ]
    stale = [
        e
        for e in entries
        if e not in unneeded
        and e.van.state == states.PLUGGED
        and e.van.boot_id != sysfs.boot_id()
    ]
    if unneeded:
        result = release.release(host, unneeded, step)
        result.show(unneeded)
        vans = [entry.van for entry in unneeded]
        report.released += [van for van in vans if van.error is None]
        report.failed += [van for van in vans if van.error is not None]
    if stale:
        failed = prepare.restore(host, stale, step)
        for entry in stale:
            if entry.van.uuid in failed:
                entry.van.error = str(failed[entry.van.uuid])
                report.failed.append(entry.van)
            else:
                report.restored.append(entry.van)


def _has_ended(entry: journal.Entry) -> bool:
    """Whether the instance is a process, and the process has ended."""
    user = entry.instance_info.process
    if user is None or not process.has_ended(user):
        return False
    log.about(LOG, entry.van.instance_uuid, entry.van.uuid).info(
        'the process that used it has ended'
    )
    return True


def _recover_programming(host: host_module.Host) -> None:
    """Mark interrupted programming as failed, and call the hooks.

    No VAN gets a device whose programming was interrupted until the device is
    programmed again. The hooks are called for what the process that programmed
    a device did not report to them before it ended.
    """
    try:
        interrupted = [
            found
            for found in host.journal.programs()
            if found.state == programs.PROGRAMMING
        ]
        for found in interrupted:
            _mark_interrupted(host, found)
    except exception.JournalError as err:
        LOG.error('Did not check for interrupted programming: %s', err)
    try:
        announcing.recover(host.journal, functools.partial(_held, host.locks))
    except Exception as err:
        # A service must be able to start in spite of this error.
        log.error(
            LOG,
            err,
            'The hooks were not called for earlier events: %s',
            exception.describe(err),
        )


def _held(
    locks: locking.Locks, name: str
) -> contextlib.AbstractContextManager[bool]:
    """Take a lock of a device, without waiting for it."""
    return _taken(locks.device(name, timeout=0))


def _clean_up_programming(host: host_module.Host, at_start: bool) -> None:
    """Clean up what an interrupted programming has left, as root.

    These are cards that were removed from the bus, DFL cards without a driver,
    and the copies of images, except that of a command that still runs. Where
    nothing is left, the records say so, and a process that starts does not
    start the privileged daemon for it.
    """
    failed = _failed(host)
    if at_start:
        failed = [record for record in failed if not record.cleaned]
    if not failed and not _has_dfl_cards(host):
        return
    from os_acc.privileged.fpga import command as programming
    from os_acc.privileged.fpga import dfl
    from os_acc.privileged.fpga import reenumeration

    seconds = host.conf.os_acc.device_timeout
    done = True
    for step in (
        reenumeration.recover,
        functools.partial(dfl.recover, seconds),
        programming.sweep,
    ):
        try:
            with host.acting_for():
                done = bool(step()) and done
        except Exception as err:
            done = False
            # A service must be able to start in spite of this error.
            LOG.error(
                'Leftovers of an interrupted programming were not cleaned up: '
                '%s',
                exception.describe(err),
            )
    if failed and done:
        with contextlib.suppress(exception.ExceptionBase):
            host.journal.note_cleaned(failed)


def _failed(host: host_module.Host) -> list[programs.Program]:
    """The records of programmings that failed or were interrupted."""
    with contextlib.suppress(exception.ExceptionBase):
        return [
            found
            for found in host.journal.programs()
            if found.state == programs.ERROR
        ]
    return []


def _has_dfl_cards(host: host_module.Host) -> bool:
    """Whether device_spec may offer cards of DFL.

    Such a card is also bound again when its VFs are made or removed, which no
    record of programming shows.
    """
    try:
        specs = device_spec.load(host.conf)
    except exception.InvalidRequest:
        return True  # which cards there are is unknown
    return any(
        spec.programmer == device_spec.PROGRAMMER_DFL for spec in specs.entries
    )


def _mark_interrupted(host: host_module.Host, found: programs.Program) -> None:
    name = programs.lock_name(found.device, found.region)
    with _held(host.locks, name) as held:
        if not held:
            return  # somebody is programming it now
        if found not in host.journal.programs(found.device):
            return
        host.journal.save_program(
            dataclasses.replace(
                found,
                state=programs.ERROR,
                error='it was interrupted',
                announced=False,
            )
        )
        LOG.error('Programming of %s was interrupted', found.label)
