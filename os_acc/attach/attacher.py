# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""plug and unplug: the order of the steps, and what a failure undoes."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import contextlib
import functools
import logging
import threading
from typing import NoReturn

from oslo_utils import timeutils

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal as journal_module
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc.attach import plan as validation
from os_acc.attach import steps as steps_module
from os_acc.attach import undo
from os_acc.devices import boot
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)

Entry = journal_module.Entry


class Attacher:
    """Plugs and unplugs with one journal, one lock folder, one set of
    drivers and plugins.
    """

    def __init__(self, host: host_module.Host) -> None:
        self.host = host
        self.extensions = host.extensions
        self.journal = host.journal
        self.locks = host.locks
        self.conf = host.conf

    def plug(
        self,
        instance_info: objects.InstanceInfo,
        requests: Sequence[objects.AcceleratorRequest],
        live: bool = False,
        callback: progress.Callback | None = None,
    ) -> objects.VANList:
        """See os_acc.plug."""
        plans = validation.plan(
            instance_info, requests, live, self.extensions, self.conf
        )
        with self._failing(exception.PlugException, instance_info.uuid):
            with self.locks.instance(instance_info.uuid):
                step = self.steps(callback)
                entries = self._take_up(instance_info, plans, live, step)
                new = [e for e in entries if e.van.state == states.PREPARING]
                if new:
                    self._plug(new, step)
        return objects.VANList(objects=[entry.van for entry in entries])

    def unplug(
        self,
        instance_info: objects.InstanceInfo,
        requests: Sequence[objects.AcceleratorRequest] | None = None,
        live: bool = False,
        callback: progress.Callback | None = None,
    ) -> int:
        """See os_acc.unplug."""
        validation.check_instance(instance_info)
        wanted = None
        if requests is not None:
            wanted = {r.uuid for r in validation.check_requests(requests)}
        with self._failing(exception.UnplugException, instance_info.uuid):
            with self.locks.instance(instance_info.uuid):
                entries = [
                    entry
                    for entry in self.journal.entries(instance_info.uuid)
                    if wanted is None or entry.van.uuid in wanted
                ]
                if not entries:
                    return 0
                for entry in entries:
                    if live:
                        validation.check_live(
                            self.extensions.plugin(entry.van.plugin)
                        )
                    entry.live = live
                self.journal.mark(entries, states.UNPLUGGING)
                failed = self.release(entries, self.steps(callback))
        if failed:
            self._raise(exception.UnplugException, instance_info.uuid, failed)
        return len(entries)

    def steps(
        self, callback: progress.Callback | None = None
    ) -> steps_module.Steps:
        return steps_module.Steps(
            self.extensions,
            self.journal.save,
            progress.Reporter(callback),
            self.journal.programs,
        )

    def release(
        self, entries: Sequence[Entry], step: steps_module.Steps
    ) -> list[exception.ExceptionBase]:
        """Undo both halves of VANs, last first, and drop their rows.

        What fails stays in the journal in state error. Never raises: it is
        the undo of plug, the whole of unplug, and recover's too.

        :param entries: in the order of their plugging; what the plugin has
            not touched is not ``attached``
        :returns: all that failed
        """
        stack = undo.UndoStack()
        for entry in entries:
            if entry.attached:
                stack.push(
                    entry.van.uuid, functools.partial(step.unplug, entry)
                )
        failed = stack.unwind()
        out = [e for e in entries if e.van.uuid not in failed]
        for entry in out:
            entry.attached = False
        errors: list[exception.ExceptionBase] = []
        try:
            self.journal.mark(out, states.UNPREPARING)
        except exception.ExceptionBase as err:
            # The rows still say that there is something to undo: go on.
            errors.append(err)
        for entry in out:
            if entry.started:
                stack.push(
                    entry.van.uuid, functools.partial(step.unprepare, entry)
                )
        failed |= stack.unwind()
        released = [e.van for e in entries if e.van.uuid not in failed]
        try:
            self.journal.settle(
                released, {uuid: str(err) for uuid, err in failed.items()}
            )
        except exception.ExceptionBase as err:
            errors.append(err)
        else:
            for van in released:
                log.about(LOG, van.instance_uuid, van.uuid).info('released')
        return [*failed.values(), *errors]

    def restore(
        self, entries: Sequence[Entry], step: steps_module.Steps
    ) -> dict[str, exception.StepFailed]:
        """Prepare again what was plugged before the host was rebooted.

        What fails stays plugged, with its error and the old boot's id, and
        is tried again by the next plug or recover().

        :returns: the VANs for which it failed, and how
        """
        failed: dict[str, exception.StepFailed] = {}
        # Who asked for no function has the one that the others are given.
        for some in (
            [e for e in entries if e.names_function],
            [e for e in entries if not e.names_function],
        ):
            if some:
                failed |= self._prepare(some, step, keep_going=True)
        done = [e.van for e in entries if e.van.uuid not in failed]
        for van in done:
            van.boot_id = boot.boot_id()
            van.error = None
            log.about(LOG, van.instance_uuid, van.uuid).info(
                'prepared again after a reboot'
            )
        self.journal.save_all(done)
        self.journal.settle(
            [],
            {uuid: str(err) for uuid, err in failed.items()},
            state=states.PLUGGED,
        )
        return failed

    def _take_up(
        self,
        instance_info: objects.InstanceInfo,
        plans: Sequence[validation.Plan],
        live: bool,
        step: steps_module.Steps,
    ) -> list[Entry]:
        """Find what is there of a plug, and make new entries for the rest.

        What an earlier call left half done is undone first.
        """
        there = {
            entry.van.uuid: entry
            for entry in self.journal.entries(instance_info.uuid)
        }
        asked = [
            there[uuid] for p in plans if (uuid := p.request.uuid) in there
        ]
        plugged = [e for e in asked if e.van.state == states.PLUGGED]
        by_uuid = {entry.van.uuid: entry for entry in plugged}
        for plan in plans:
            if plan.request.uuid in by_uuid:
                validation.check_same(
                    plan.request, by_uuid[plan.request.uuid].request
                )
        left = [e for e in asked if e.van.state != states.PLUGGED]
        if left and (errors := self.release(left, step)):
            self._raise(exception.PlugException, instance_info.uuid, errors)
        now = boot.boot_id()
        stale = [e for e in plugged if e.van.boot_id != now]
        if stale and (failed := self.restore(stale, step)):
            raise next(iter(failed.values()))
        return [
            by_uuid.get(plan.request.uuid)
            or _new_entry(plan, instance_info, live, now)
            for plan in plans
        ]

    def _plug(
        self, entries: Sequence[Entry], step: steps_module.Steps
    ) -> None:
        self.journal.add(entries)
        try:
            failed = self._prepare(entries, step)
            if failed:
                raise next(iter(failed.values()))
            vans = [entry.van for entry in entries]
            _set_state(vans, states.PLUGGING)
            self.journal.save_all(vans, attached=True)
            for entry in entries:
                entry.attached = True
                step.plug(entry)
            for entry in entries:
                step.postplug(entry)
            _set_state(vans, states.PLUGGED)
            self.journal.save_all(vans)
        except BaseException as err:
            self._roll_back(entries, step, err)
            raise
        for van in vans:
            log.about(LOG, van.instance_uuid, van.uuid).info(
                'plugged %s by driver %r and plugin %r',
                van.handle.identity if van.handle else None,
                van.driver,
                van.plugin,
            )

    def _roll_back(
        self,
        entries: Sequence[Entry],
        step: steps_module.Steps,
        cause: BaseException,
    ) -> None:
        """Undo a plug; raise PlugException unless the process is to end."""
        instance_uuid = entries[0].van.instance_uuid
        log.about(LOG, instance_uuid).warning(
            'plug failed, undoing it: %s', exception.describe(cause)
        )
        errors = self.release(entries, step)
        if not isinstance(cause, KeyboardInterrupt | SystemExit):
            self._raise(exception.PlugException, instance_uuid, errors, cause)

    def _prepare(
        self,
        entries: Sequence[Entry],
        step: steps_module.Steps,
        keep_going: bool = False,
    ) -> dict[str, exception.StepFailed]:
        """Prepare VANs in parallel.

        :param keep_going: start the others too when one has failed
        :returns: the VANs for which it failed, and how
        """
        failed: dict[str, exception.StepFailed] = {}
        stop = threading.Event()

        def one(entry: Entry) -> None:
            if stop.is_set():
                return
            entry.started = True
            try:
                step.prepare(entry)
                return
            except exception.StepFailed as err:
                failed[entry.van.uuid] = err
            except BaseException as err:
                # Else it would end with its thread, and the VAN be plugged.
                made = steps_module.failure(entry.van, 'prepareVAN', err)
                made.__cause__ = err
                failed[entry.van.uuid] = made
            if not keep_going:
                stop.set()

        workers = min(len(entries), self.conf.os_acc.max_workers)
        with futures.ThreadPoolExecutor(workers, 'os-acc') as pool:
            running = [pool.submit(one, entry) for entry in entries]
            _wait_for_all(running, stop)
        return failed

    @contextlib.contextmanager
    def _failing(
        self, cls: type[exception.AttachException], instance_uuid: str
    ) -> Iterator[None]:
        """From step 2 on every error is a PlugException or its sister."""
        try:
            yield
        except exception.AttachException:
            raise
        except Exception as err:
            self._raise(cls, instance_uuid, [], err)

    @staticmethod
    def _raise(
        cls: type[exception.AttachException],
        instance_uuid: str,
        errors: Sequence[exception.ExceptionBase],
        cause: BaseException | None = None,
    ) -> NoReturn:
        """Raise cls, from the error that a step hides, if it is a step's."""
        text = 'some VANs are still there'
        if cause is not None:
            text = exception.describe(cause)
        first = cause or errors[0]
        if isinstance(first, exception.StepFailed) and first.__cause__:
            first = first.__cause__
        raise cls(
            instance=instance_uuid, err=text, undo_errors=errors
        ) from first


def _new_entry(
    plan: validation.Plan,
    instance_info: objects.InstanceInfo,
    live: bool,
    boot_id: str,
) -> Entry:
    # Whole seconds: all that a versioned object's text keeps.
    now = timeutils.utcnow(with_timezone=True).replace(microsecond=0)
    van = objects.VAN(
        uuid=plan.request.uuid,
        instance_uuid=instance_info.uuid,
        driver=plan.driver.name,
        plugin=plan.plugin.name,
        state=states.PREPARING,
        boot_id=boot_id,
        created_at=now,
        updated_at=now,
    )
    return Entry(van, plan.request, instance_info, live, started=False)


def _set_state(vans: Sequence[objects.VAN], state: str) -> None:
    for van in vans:
        van.state = state


def _wait_for_all(
    running: Sequence[futures.Future[None]], stop: threading.Event
) -> None:
    """Wait, come what may: what works on a device cannot be left alone.

    A KeyboardInterrupt is raised when all have come to an end.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            futures.wait(running)
            break
        except BaseException as err:
            interrupt = err
            stop.set()
    if interrupt is not None:
        raise interrupt
