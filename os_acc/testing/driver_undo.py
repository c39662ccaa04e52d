# SPDX-License-Identifier: Apache-2.0

"""Checks of a driver: what an undo has to leave alone, or to live with."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from typing import Any

import pytest

import os_acc
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
