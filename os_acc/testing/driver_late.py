# SPDX-License-Identifier: Apache-2.0

"""Checks of a driver: another VAN that gets the device during an undo."""

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
