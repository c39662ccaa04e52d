# SPDX-License-Identifier: Apache-2.0
"""Prepares the device halves of an instance's VANs, in parallel."""

from __future__ import annotations

from collections.abc import Sequence
import logging
import threading

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import log
from os_acc import objects
from os_acc.attach import failures
from os_acc.attach import parallel
from os_acc.attach import steps
from os_acc.kernel import sysfs

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
    """Prepare VANs again: the host was rebooted, or they are not intact.

    A VAN that fails stays plugged, with its error and the boot_id that it
    had. The next plug tries again; recover() does so after a reboot.

    :param entries: all are in the same state
    """
    failed: Failed = {}
    # VANs that requested a function go first; the others share it.
    for some in (
        [e for e in entries if e.names_function],
        [e for e in entries if not e.names_function],
    ):
        if some:
            failed |= prepare(host, some, step, keep_going=True)
    ready = [e for e in entries if e.van.uuid not in failed]
    failed |= restore_attachments(ready, step)
    done = [e.van for e in ready if e.van.uuid not in failed]
    now = sysfs.boot_id()
    for van in done:
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'prepared again%s: %s',
            '' if van.boot_id == now else ' after a reboot',
            step.durations(van),
        )
        van.boot_id, van.error = now, None
    events = step.record.restored(done, [e.van for e in entries], failed)
    host.journal.save_all(done, events=[] if failed else events)
    host.journal.settle(
        [],
        failures.texts(entries, failed),
        state=entries[0].van.state,
        events=events if failed else [],
    )
    return failed


def restore_attachments(
    entries: Sequence[journal.Entry], step: steps.Steps
) -> Failed:
    """Have the plugins redo the instance halves of prepared VANs."""
    failed: Failed = {}
    for entry in entries:
        try:
            step.restore(entry)
        except exception.StepFailed as err:
            failed[entry.van.uuid] = err
    return failed


def make_intact(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    step: steps.Steps,
    live: bool,
) -> None:
    """Prepare those plugged VANs again whose devices are not intact.

    These are VANs from before a reboot of the host, and VANs whose driver
    says that the hardware no longer holds what it has made. If only what the
    plugin has left on the host is missing, only that is made again.

    :param live: the guest runs: a VAN whose device is lost is not prepared
        again, because the guest would not get it back
    """
    now = sysfs.boot_id()
    stale = {e.van.uuid for e in entries if e.van.boot_id != now}
    lost = {
        e.van.uuid
        for e in entries
        if e.van.uuid not in stale and not step.is_prepared(e)
    }
    detached = [
        e
        for e in entries
        if e.van.uuid not in stale | lost and not step.is_attached(e)
    ]
    for entry in entries:
        if entry.van.uuid in lost:
            _report_lost(entry.van, live)
    _update(host, [e.van for e in entries if e.van.uuid not in stale | lost])
    again = [e for e in entries if e.van.uuid in stale | lost]
    if again and (failed := restore(host, again, step)):
        raise next(iter(failed.values()))
    if failed := restore_attachments(detached, step):
        raise next(iter(failed.values()))
    if detached:
        host.journal.save_all(
            [entry.van for entry in detached], events=step.record.taken()
        )
    _update(host, [entry.van for entry in again])


def _update(host: host_module.Host, vans: Sequence[objects.VAN]) -> None:
    """Delete the errors of intact VANs, and set missing owners.

    A VAN has an error if an earlier attempt failed and somebody has repaired
    the device since; it has no owner if an earlier version of os-acc has
    plugged it.
    """
    changed = [
        van for van in vans if van.error is not None or van.owner is None
    ]
    for van in changed:
        van.error, van.owner = None, van.owner or host.owner
    if changed:
        host.journal.save_all(changed)


def _report_lost(van: objects.VAN, live: bool) -> None:
    """Log that a device is not intact; raise an error if a guest runs."""
    device = van.handle.identity if van.handle is not None else van.device
    text = (
        f'it is not as driver {van.driver!r} prepared it; somebody may have '
        'unbound or removed it by hand'
    )
    if live:
        raise exception.DeviceError(
            device=device,
            reason=f'{text}. The guest runs, so it is not prepared again: '
            'stop the guest and plug it with live=False, as a hard reboot '
            'does',
        )
    log.about(LOG, van.instance_uuid, van.uuid).warning(
        '%s is prepared again: %s', device, text
    )
