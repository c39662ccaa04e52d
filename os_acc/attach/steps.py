# SPDX-License-Identifier: Apache-2.0

"""Runs one step of one VAN: calls a driver or plugin, and logs it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import copy
import dataclasses
import functools
import logging
import time
from typing import Any

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc import reserved
from os_acc.attach import exclusion
from os_acc.attach import failures
from os_acc.attach import plan
from os_acc.attach import recorder
from os_acc.claims import holder
from os_acc.journal import programs
from os_acc.programming import records
from os_acc.programming import uses

LOG = logging.getLogger(__name__)

_DEVICE, _INSTANCE = 'device half', 'instance half'

# The half of a VAN that each step belongs to.
_HALVES = {
    'prepareVAN': _DEVICE,
    'plug': _INSTANCE,
    'postplug': _DEVICE,
    'restore': _INSTANCE,
    'unplug': _INSTANCE,
    'unprepareVAN': _DEVICE,
}


class Steps:
    """The five steps of a VAN, each a call of its driver or plugin.

    A step that fails raises StepFailed.
    """

    def __init__(
        self,
        host: host_module.Host,
        record: recorder.Recorder,
        callback: progress.Callback | None = None,
    ) -> None:
        self.record = record
        # One call works with one journal: read its UUID once.
        self._holder = host.as_holder()
        self._extensions = host.extensions
        self._journal = host.journal
        self._exclusion = exclusion.Exclusion(host.journal, host.conf)
        self._reporter = progress.Reporter(callback)
        self._waiting_since: float | None = None
        self._seconds: dict[tuple[str, str], float] = {}

    @functools.cached_property
    def _reserved(self) -> list[reserved.Reserved]:
        """What is reserved, read once for all VANs of a call."""
        return reserved.for_vans(self._journal)

    def recorded_by(self, record: recorder.Recorder) -> Steps:
        """Return the same steps, recorded by another recorder."""
        made = copy.copy(self)
        made.record = record
        return made

    def begin_release(self) -> None:
        """Restart the time that plugins may wait, and the durations.

        See VAN.time_left() and durations().
        """
        self._waiting_since = None
        self._seconds.clear()

    def durations(self, van: objects.VAN) -> str:
        """Say how long the steps of each half of a VAN took, for the log."""
        return ', '.join(
            f'{half} {self._seconds.get((van.uuid, half), 0.0):.3f} s'
            for half in (_DEVICE, _INSTANCE)
        )

    def _time_left(self, seconds: float) -> float:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return max(self._waiting_since + seconds - now, 0.0)

    def prepare(self, entry: journal.Entry) -> None:
        """Call prepareVAN, and check the handle and the function.

        The caller runs it in a thread of its own. So any exception, even
        SystemExit, counts as a failure of the driver.
        """

        before = entry.van.handle
        kept, free = _chosen(entry.van), None

        def act() -> None:
            van = entry.van
            driver = self._extensions.driver(van.driver)
            plugin = self._extensions.plugin(van.plugin)
            driver.prepareVAN(van, entry.request, entry.instance_info)
            if van.handle is None:
                raise exception.HandleMissing(driver=van.driver)
            if van.function_id is None and entry.request.function_id:
                # A guest must not get a device without its function.
                raise exception.FunctionMissing(
                    driver=van.driver, function=entry.request.function_id
                )
            self._check_programmed(van)
            plan.check_handle(van.handle, plan.takes(plugin))
            if before and before.identity != van.handle.identity:
                raise exception.HandleChanged(
                    driver=van.driver,
                    old=before.identity,
                    new=van.handle.identity,
                )

        def save(van: objects.VAN) -> None:
            # The handle that the guest's definition names stays claimed.
            if before and (
                van.handle is None or van.handle.identity != before.identity
            ):
                wrong, van.handle = van.handle, before
                raise exception.HandleChanged(
                    driver=van.driver,
                    old=before.identity,
                    new=wrong.identity if wrong is not None else None,
                )
            self._journal.save(van)
            nonlocal kept, free
            chosen = van.handle and (
                van.handle.identity,
                van.device,
                _region_of(van),
            )
            if before is None and chosen != free:
                self._check_free(entry, kept)
            kept, free = _chosen(van), chosen

        self._run(entry, 'prepareVAN', act, wrap_all=True, save=save)

    def _check_free(self, entry: journal.Entry, kept: dict[str, Any]) -> None:
        """Check that a VAN can have what its driver has chosen.

        The VAN is saved already. So of two VANs that exclude each other, the
        later one sees the other.

        :param kept: what the VAN is reset to if it cannot
        """
        van = entry.van
        try:
            self._exclusion.check(van)
            reserved.check(
                self._reserved,
                reserved.names(van.device, van.handle),
                _region_of(van),
                entry.request.function_id,
                entry.instance_info.project_id,
            )
        except BaseException:
            # Nobody knows that it is free, so an undo must not touch it.
            for name, value in kept.items():
                setattr(van, name, value)
            self._journal.save(van)
            raise

    def _check_programmed(self, van: objects.VAN) -> None:
        """Refuse a device whose programming failed, for every driver.

        The VAN is saved already, so a caller that programs the device from
        now on sees that the VAN uses it.
        """
        if van.device is None:
            return
        region = van.driver_data.get(programs.REGION)
        found = records.unusable(self._journal, van.device, region)
        if found is not None:
            raise exception.DeviceError(
                device=found.label,
                reason='its programming failed or has not ended'
                + (f': {found.error}' if found.error else '')
                + '. Program it again',
            )

    def _acting_for(
        self, van: objects.VAN
    ) -> contextlib.AbstractContextManager[None]:
        """Say that the privileged calls of a block are made for a VAN."""
        return holder.acting_for(
            dataclasses.replace(
                self._holder, instance=van.instance_uuid, van=van.uuid
            )
        )

    def is_prepared(self, entry: journal.Entry) -> bool:
        """Ask the driver whether the device is as prepareVAN has left it.

        It changes nothing, so it reports no progress.
        """
        van = entry.van
        try:
            with self._acting_for(van):
                return self._extensions.driver(van.driver).is_intact(van)
        except Exception as err:
            raise failure(van, 'is_intact', err) from err

    def is_attached(self, entry: journal.Entry) -> bool:
        """Ask the plugin whether the host has all that plug() has left."""
        van = entry.van
        try:
            with self._acting_for(van):
                return self._extensions.plugin(van.plugin).is_intact(van)
        except Exception as err:
            raise failure(van, 'is_intact of the plugin', err) from err

    def plug(self, entry: journal.Entry) -> None:
        plugin = self._extensions.plugin(entry.van.plugin)
        self._run(
            entry,
            'plug',
            lambda: plugin.plug(entry.van, entry.instance_info, entry.live),
        )

    def restore(self, entry: journal.Entry) -> None:
        """Have the plugin redo the instance half."""
        plugin = self._extensions.plugin(entry.van.plugin)
        self._run(
            entry,
            'restore',
            lambda: plugin.restore(entry.van, entry.instance_info),
        )

    def postplug(self, entry: journal.Entry) -> None:
        driver = self._extensions.driver(entry.van.driver)
        self._run(
            entry,
            'postplug',
            lambda: driver.postplug(entry.van, entry.instance_info),
        )

    def unplug(self, entry: journal.Entry) -> None:
        """Undo plug. Any exception of the plugin becomes StepFailed."""

        def act() -> None:
            plugin = self._extensions.plugin(entry.van.plugin)
            plugin.unplug(entry.van, entry.instance_info, entry.live)

        self._run(entry, 'unplug', act, wrap_all=True)

    def unprepare(self, entry: journal.Entry) -> None:
        """Undo prepareVAN. Any exception of the driver becomes StepFailed."""

        def act() -> None:
            driver = self._extensions.driver(entry.van.driver)
            driver.unprepareVAN(entry.van, entry.instance_info)

        self._run(entry, 'unprepareVAN', act, wrap_all=True)

    def _run(
        self,
        entry: journal.Entry,
        step: str,
        act: Callable[[], None],
        wrap_all: bool = False,
        save: Callable[[objects.VAN], None] | None = None,
    ) -> None:
        van = entry.van
        actor, extension = _actor(van, step), _extension(van, step)
        logger = log.about(LOG, van.instance_uuid, van.uuid)
        event = functools.partial(
            progress.Progress, van.instance_uuid, van.uuid, step
        )
        van.connect(
            save or self._journal.save,
            lambda fraction, message: self._reporter(
                event(progress.RUNNING, fraction, message)
            ),
            self._time_left,
            lambda: [
                each
                for each in self._journal.vans(van.instance_uuid)
                if each.uuid != van.uuid
            ],
        )
        start = time.monotonic()
        try:
            self._reporter(event(progress.STARTED))
            logger.debug('%s by %s', step, actor)
            with self._acting_for(van):
                act()
        except BaseException as err:
            if not isinstance(err, Exception) and not wrap_all:
                # It interrupts the caller's thread. The step did not fail.
                raise
            text = exception.describe(err)
            self._reporter(event(progress.FAILED, message=text))
            took = time.monotonic() - start
            self._record(van, step, extension, took, err)
            said = f'{step} of {actor} failed after {took:.3f} s: {text}'
            if logger.isEnabledFor(logging.DEBUG):
                log.error(logger, err, '%s', said)
            else:
                logger.error('%s', said)
            raise failure(van, step, err) from err
        finally:
            van.connect(None)
            half = (van.uuid, _HALVES[step])
            seconds = time.monotonic() - start
            self._seconds[half] = self._seconds.get(half, 0.0) + seconds
        self._reporter(event(progress.DONE, 1.0))
        self._record(van, step, extension, seconds)
        logger.debug('%s by %s took %.3f s', step, actor, seconds)

    def _record(
        self,
        van: objects.VAN,
        step: str,
        extension: str,
        seconds: float,
        err: BaseException | None = None,
    ) -> None:
        """Record a step; if the call takes long, write what happened."""
        self.record.step(van, step, extension, seconds, err)
        if found := self.record.due():
            self._journal.note(found)


@contextlib.contextmanager
def begun(
    host: host_module.Host,
    operation: str,
    instance: objects.InstanceInfo | str,
    cls: type[exception.AttachException],
    callback: progress.Callback | None,
) -> Iterator[Steps]:
    """Hold the lock of an instance, and record the call.

    :param operation: one of the operations of journal.events
    :param instance: or its UUID
    :param cls: what the errors of the call are raised as
    """
    uuid: str = instance if isinstance(instance, str) else instance.uuid
    with (
        failures.raised_as(cls, uuid),
        recorder.recorded(host, operation, instance) as record,
        host.locks.instance(uuid),
    ):
        yield Steps(host, record, callback)


def failure(
    van: objects.VAN, step: str, err: BaseException
) -> exception.StepFailed:
    """Make the error of a step."""
    return exception.StepFailed(
        van=van.uuid,
        step=step,
        actor=_actor(van, step),
        err=exception.describe(err),
    )


def is_interruption(err: BaseException | None) -> bool:
    """Whether err interrupts the caller's thread: it is not a step's failure.

    Examples are eventlet.Timeout and GreenletExit. KeyboardInterrupt and
    SystemExit in an undo count as failures of that undo.
    """
    return err is not None and not isinstance(
        err, Exception | KeyboardInterrupt | SystemExit
    )


def _actor(van: objects.VAN, step: str) -> str:
    kind = 'plugin' if _is_of_plugin(step) else 'driver'
    return f'{kind} {_extension(van, step)!r}'


def _extension(van: objects.VAN, step: str) -> str:
    """The name of the driver or plugin that does a step."""
    name: str = van.plugin if _is_of_plugin(step) else van.driver
    return name


def _is_of_plugin(step: str) -> bool:
    return step in ('plug', 'unplug', 'restore') or step.endswith('plugin')


def _region_of(van: objects.VAN) -> str | None:
    """The region that a VAN has: see reserved.NOT_YET."""
    region: str | None = van.driver_data.get(programs.REGION)
    if region is None and uses.UNDECIDED in van.driver_data:
        return reserved.NOT_YET
    return region


def _chosen(van: objects.VAN) -> dict[str, Any]:
    """What a driver chooses for a VAN, before it touches the device."""
    return {
        'handle': van.handle,
        'device': van.device,
        'function_id': van.function_id,
        'live_migratable': van.live_migratable,
        'driver_data': dict(van.driver_data),
    }
