# SPDX-License-Identifier: Apache-2.0

"""Checks of a driver: what an undo, and another VAN, leave alone."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
import threading
from typing import Any

import pytest

import os_acc
from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc.testing import contract_base
from os_acc.testing import driver_basics
from os_acc.testing import driver_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service
name = driver_basics.name


class Undo(driver_hooks.DriverHooks):
    """unprepareVAN(), called when there is little or nothing to undo."""

    def test_undo_of_nothing(self, service: Service) -> None:
        """prepareVAN() has failed before it has chosen a handle."""
        before = self.look()
        van = objects.VAN(
            uuid=self.requests()[0].uuid,
            instance_uuid=service_module.instance().uuid,
            driver=service.driver.name,
            plugin=service.plugin.name,
            state='error',
            boot_id='this',
        )
        self.undo_late(service, van, rules.UNDO_NOTHING)
        self.same(before, rules.UNDO_NOTHING, 'after the undo')

    def test_undo_twice(self, service: Service) -> None:
        """A process has died after the undo, before it deletes the row."""
        before = self.look()
        for request in self.requests():
            instance, van = self.plugged(request, rules.SERVE)
            (saved,) = os_acc.get_vans(instance)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(service.driver.journal, 'settle', _settle)
                with contextlib.suppress(exception.UnplugException):
                    os_acc.unplug(instance)
            self.same(before, rules.UNDO, f'for {name(van)}')
            self.unplug(instance, rules.UNDO_TWICE)
            # And once more, by a VAN that is no longer in the journal.
            self.undo_late(service, saved, rules.UNDO_TWICE)
            self.same(before, rules.UNDO_TWICE, f'for {name(van)}')

    def test_undo_of_a_device_that_another_van_has(
        self, service: Service
    ) -> None:
        """A late undo of an old VAN must not touch the next owner's."""
        for number, request in enumerate(self.requests()):
            instance, old = self.plugged(request, rules.SERVE)
            self.unplug(instance, rules.UNDO)
            # The same request, so that it gets the same handle.
            new = self.requests()[number]
            instance, van = self.plugged(new, rules.SERVE)
            if name(van) != name(old):
                self.unplug(instance, rules.UNDO)
                named = service_module.again(new, handle=old.handle)
                instance, van = self.plugged(named, rules.SERVE)
            before = self.look()
            self.undo_late(service, old, rules.UNDO_STALE)
            self.same(
                before,
                rules.UNDO_STALE,
                f'after the undo of the old {name(old)}',
            )
            (van,) = os_acc.get_vans(instance)
            if not contract_base.is_intact(service.driver, van):
                rules.UNDO_STALE.broken(
                    f'{name(van)} is not intact after the undo of the old VAN'
                )
            self.unplug(instance, rules.UNDO)

    def test_undo_while_a_guest_holds_the_device(
        self, service: Service
    ) -> None:
        before = self.look()
        for request in self.requests():
            instance, van = self.plugged(request, rules.SERVE)
            close = self.hold(van)
            if close is not None:
                self._check_held(instance, van, close)
            self.unplug(instance, rules.UNDO)
            self.same(before, rules.UNDO, f'after unplug of {name(van)}')

    def test_undo_of_a_device_that_is_gone(self, service: Service) -> None:
        before = self.look()
        for request in self.requests():
            instance, _ = self.plugged(request, rules.SERVE)
            (saved,) = os_acc.get_vans(instance)
            restore = self.remove(saved)
            without = self.look()
            self.unplug(instance, rules.UNDO_GONE)
            self.same(without, rules.UNDO_GONE, 'after the undo')
            restore()
            self.same(before, rules.UNDO_GONE, 'after the device is back')

    def test_undo_in_another_process(self, service: Service) -> None:
        """The journal has all that the undo needs."""
        before = self.look()
        for request in self.requests():
            instance, van = self.plugged(request, rules.SERVE)
            with_van = self.look()
            service.restart()
            self.same(with_van, rules.NO_STATE, 'after a start of the process')
            (saved,) = os_acc.get_vans(instance)
            if not contract_base.is_intact(service.driver, saved):
                rules.NO_STATE.broken(
                    f'another process says that {name(van)} is not intact'
                )
            self.unplug(instance, rules.NO_STATE)
            self.same(before, rules.NO_STATE, f'after unplug of {name(van)}')

    def _check_held(
        self,
        instance: objects.InstanceInfo,
        van: objects.VAN,
        close: Callable[[], None],
    ) -> None:
        """Check that nothing is undone until the guest closes the device."""
        with_guest = self.look()
        self._check_busy(instance, van)
        self.same(with_guest, rules.BUSY, 'after the refused unplug')
        close()
        os_acc.recover()
        self.settled(rules.BUSY, 'after the guest has closed the device')

    def _check_busy(
        self, instance: objects.InstanceInfo, van: objects.VAN
    ) -> None:
        try:
            os_acc.unplug(instance)
        except exception.UnplugException as err:
            self.check_deadlines()
            cause = err.__cause__
            if not isinstance(cause, exception.DeviceBusy):
                rules.BUSY.broken(
                    f'for {name(van)} it raised {contract_base.said(err)}'
                )
        else:
            rules.BUSY.broken(f'it took {name(van)} from the guest')


def _settle(*args: Any, **kwargs: Any) -> None:
    """Do not delete the rows of the VANs whose undo has ended."""
    raise exception.JournalError(path='the journal', reason='by the kit')


# What a driver asks the journal by.
_QUESTIONS = ('handles', 'vans_on')

# Seconds to wait for the other VAN, which mostly takes milliseconds.
_PATIENCE = 20.0

# Whether this thread does the undo.
_undoing: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'os_acc_testing_undoing', default=False
)


class Late(driver_hooks.DriverHooks):
    """Two VANs, of which one must not harm the other."""

    def test_the_others_are_left_alone(self, service: Service) -> None:
        """One VAN keeps its device while another one comes and goes."""
        first, *more = self.requests()
        instance, van = self.plugged(first, rules.SERVE)
        if not more:
            # Whether the driver has a second one is unknown.
            named = first.handle is not None
            more = [] if named else [service_module.again(first)]
        for request in more:
            with contextlib.suppress(exception.PlugException):
                other = service_module.instance()
                os_acc.plug(other, [request])
            for when in ('has come', 'has gone'):
                if not contract_base.is_intact(service.driver, van):
                    rules.OTHERS.broken(
                        f'{name(van)} is not intact after another VAN {when}'
                    )
                self.unplug(other, rules.UNDO)
        self.unplug(instance, rules.UNDO)

    def test_undo_that_another_van_overtakes(self, service: Service) -> None:
        """Another VAN asks for the device while the undo works on it."""
        for request in self.requests():
            instance, _ = self.plugged(request, rules.SERVE)
            (saved,) = os_acc.get_vans(instance)
            self.unplug(instance, rules.UNDO)
            other = _Other(service_module.again(request, handle=saved.handle))
            with pytest.MonkeyPatch.context() as patch:
                _let_in(patch, service.driver, other)
                token = _undoing.set(True)
                try:
                    self.undo_late(service, saved, rules.UNDO_LOCKED)
                finally:
                    _undoing.reset(token)
                other.join()
            for van in os_acc.get_vans(other.instance):
                if not contract_base.is_intact(service.driver, van):
                    rules.UNDO_LOCKED.broken(
                        f'{name(van)} is not intact: the undo of the VAN that '
                        'had it before has gone on after another VAN had got '
                        'it'
                    )
            self.unplug(other.instance, rules.UNDO)


class _Other:
    """Plugs a request in a thread of its own.

    :param request: names the handle
    """

    def __init__(self, request: objects.AcceleratorRequest) -> None:
        self.instance = service_module.instance()
        self._request = request
        self._met = threading.Event()
        self._thread: threading.Thread | None = None

    def come(self) -> None:
        """Ask for the device, and get it or wait for a lock of the undo.

        Only the first call does so.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._plug, daemon=True)
            self._thread.start()
            self._met.wait(_PATIENCE)

    def meets_a_lock(self) -> None:
        """Say that it has to wait until the undo releases a lock."""
        self._met.set()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _plug(self) -> None:
        # Whether it gets the device does not matter here.
        with contextlib.suppress(exception.ExceptionBase):
            os_acc.plug(self.instance, [self._request])
        self._met.set()


def _let_in(
    patch: pytest.MonkeyPatch, driver: driver_base.DriverBase, other: _Other
) -> None:
    """Let another VAN in when the undo has asked who has the device."""
    lock = driver.lock
    held: set[str] = set()

    def asked(ask: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*args: Any) -> Any:
            found = ask(*args)
            if _undoing.get():
                other.come()
            return found

        return answer

    @contextlib.contextmanager
    def locked(device: str, timeout: float | None = None) -> Iterator[None]:
        if not _undoing.get() and device in held:
            other.meets_a_lock()
        with lock(device, timeout):
            if not _undoing.get():
                yield
                return
            held.add(device)
            try:
                yield
            finally:
                held.discard(device)

    for question in _QUESTIONS:
        patch.setattr(driver, question, asked(getattr(driver, question)))
    patch.setattr(driver, 'lock', locked)
