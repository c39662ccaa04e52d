# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What a crash or a reboot left behind: finish it, or undo it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.attach import attacher as attach
from os_acc.devices import boot
from os_acc.journal import programs
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)


def recover(attacher: attach.Attacher) -> objects.RecoveryReport:
    """See os_acc.recover."""
    report = objects.RecoveryReport(
        released=[], restored=[], failed=[], busy=[], unreadable={}
    )
    unsettled = attacher.journal.unsettled(boot.boot_id())
    # Who asked for no function has the one that the others are given.
    unsettled.sort(key=lambda uuid: not _names_function(attacher, uuid))
    for instance_uuid in unsettled:
        with contextlib.ExitStack() as stack:
            lock = attacher.locks.instance(instance_uuid, wait=False)
            try:
                stack.enter_context(lock)
            except exception.Timeout:
                # Whoever holds it is at work on it, and will see to it.
                report.busy.append(instance_uuid)
                log.about(LOG, instance_uuid).info('is worked on: left')
                continue
            try:
                _recover_instance(attacher, instance_uuid, report)
            except exception.JournalError as err:
                # One row that cannot be read must not stop the whole host.
                report.unreadable[instance_uuid] = str(err)
                log.about(LOG, instance_uuid).error('not recovered: %s', err)
    _recover_programming(attacher)
    LOG.info(
        'Recovery: %d VANs released, %d prepared again, %d failed; '
        '%d instances busy, %d not to be read',
        len(report.released),
        len(report.restored),
        len(report.failed),
        len(report.busy),
        len(report.unreadable),
    )
    return report


def _names_function(attacher: attach.Attacher, instance_uuid: str) -> bool:
    # A row that cannot be read is reported when its turn comes.
    with contextlib.suppress(exception.JournalError):
        entries = attacher.journal.entries(instance_uuid)
        return any(entry.names_function for entry in entries)
    return False


def _recover_programming(attacher: attach.Attacher) -> None:
    """A device whose programming was cut short is in error."""
    for found in attacher.journal.programs():
        if found.state != programs.PROGRAMMING:
            continue
        name = programs.lock_name(found.device, found.region)
        with contextlib.suppress(exception.Timeout):
            with attacher.locks.device(name, timeout=0):
                if found not in attacher.journal.programs(found.device):
                    continue
                attacher.journal.save_program(
                    dataclasses.replace(
                        found,
                        state=programs.ERROR,
                        error='it was cut short',
                    )
                )
                LOG.error('%s programming was cut short', found.label)


def _recover_instance(
    attacher: attach.Attacher,
    instance_uuid: str,
    report: objects.RecoveryReport,
) -> None:
    step = attacher.steps()
    for row in attacher.journal.unreadable(instance_uuid):
        raise exception.JournalError(
            path=attacher.journal.path,
            reason=f'VAN {row.van_uuid} cannot be read: {row.reason}',
        )
    entries = attacher.journal.entries(instance_uuid)
    half_done = [e for e in entries if e.van.state != states.PLUGGED]
    stale = [
        e
        for e in entries
        if e.van.state == states.PLUGGED and e.van.boot_id != boot.boot_id()
    ]
    if half_done:
        attacher.release(half_done, step)
    if stale:
        attacher.restore(stale, step)
    # What became of each is what the journal now says.
    left = {e.van.uuid: e.van for e in attacher.journal.entries(instance_uuid)}
    for entry in half_done:
        if entry.van.uuid in left:
            report.failed.append(left[entry.van.uuid])
        else:
            report.released.append(entry.van)
    for entry in stale:
        van = left[entry.van.uuid]
        (report.failed if van.error else report.restored).append(van)
