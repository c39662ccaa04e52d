# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""Prepares the device halves of an instance's VANs, in parallel."""

from __future__ import annotations

from collections.abc import Sequence
import logging
import threading

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import log
from os_acc.attach import failures
from os_acc.attach import parallel
from os_acc.attach import steps
from os_acc.devices import boot
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)

#: The errors of the VANs that could not be prepared, by VAN UUID.
Failed = dict[str, exception.StepFailed]


def prepare(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    keep_going: bool = False,
) -> Failed:
    """Prepare VANs in parallel, at most max_workers at once.

    :param keep_going: True: start the other VANs even after one has failed
    :returns: the errors of the VANs that failed; empty if none failed
    """
    failed: Failed = {}
    stop = threading.Event()

    def one(entry: journal.Entry) -> None:
        if stop.is_set():
            return
        entry.started = True
        try:
            step.prepare(entry)
            return
        except exception.StepFailed as err:
            failed[entry.van.uuid] = err
        except BaseException as err:
            # If the error only ended this thread, the VAN would become
            # "plugged" without a device.
            made = steps.failure(entry.van, 'prepareVAN', err)
            made.__cause__ = err
            failed[entry.van.uuid] = made
        if not keep_going:
            stop.set()

    parallel.run(one, entries, host.conf.os_acc.max_workers, stop)
    return failed


def restore(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
) -> Failed:
    """Prepare VANs again that were plugged before the host was rebooted.

    A VAN that fails stays plugged, with its error and the boot_id of the
    earlier boot. The next plug or recover() tries again.

    :returns: the errors of the VANs that failed; empty if none failed
    """
    failed: Failed = {}
    # VANs that requested a function go first; the others share it.
    for some in (
        [e for e in entries if e.names_function],
        [e for e in entries if not e.names_function],
    ):
        if some:
            failed |= prepare(host, some, step, keep_going=True)
    done = [e.van for e in entries if e.van.uuid not in failed]
    for van in done:
        van.boot_id = boot.boot_id()
        van.error = None
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'prepared again after a reboot'
        )
    host.journal.save_all(done)
    host.journal.settle(
        [], failures.texts(entries, failed), state=states.PLUGGED
    )
    return failed
