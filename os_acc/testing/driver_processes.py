# SPDX-License-Identifier: Apache-2.0

"""Checks of a driver: a process that dies, a reboot, and many callers."""

from __future__ import annotations

import collections
import functools
import threading

import pytest

import os_acc
from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc.testing import children
from os_acc.testing import contract_base
from os_acc.testing import crashes
from os_acc.testing import driver_basics
from os_acc.testing import driver_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service
name = driver_basics.name

ASKERS = 16


class Processes(driver_hooks.DriverHooks):
    """Many processes that compete for few handles, and deaths of real
    processes."""

    def test_threads_that_ask_for_the_same(self, service: Service) -> None:
        before = self.look()
        for request in self.requests():
            free = self._free(service, request)
            errors = ask_in_threads(request, ASKERS)
            self._check_winners(errors, free, request)
            self.unplug_all(rules.UNDO)
            self.same(before, rules.UNDO, 'after unplug of all')

    @pytest.mark.os_acc_processes
    def test_two_processes_that_ask_for_the_same(
        self, service: Service
    ) -> None:
        before = self.look()
        for request in self.requests():
            free = self._free(service, request)
            service.stop()

            ask = functools.partial(ask_as_a_process, request)
            pids = [children.start(ask) for _ in range(2)]
            codes = [children.wait(pid) for pid in pids]
            service.restart()
            if codes != [0, 0]:
                rules.ONE_VAN.broken(
                    f'the processes ended with {codes}; see their stderr'
                )
            self._check_winners([], free, request)
            self.unplug_all(rules.UNDO)
            self.same(before, rules.UNDO, 'after unplug of all')

    @pytest.mark.os_acc_processes
    def test_sigkill_before_each_change(self, service: Service) -> None:
        before = self.look()
        for number in range(len(self.requests())):
            place, code = 0, children.KILLED
            while code == children.KILLED:
                code = self._killed_at(service, place, number)
                service.restart()
                text = f'SIGKILL before change {place}'
                self.settled(rules.UNDO_HALF, text)
                if code != children.KILLED:
                    assert code == 0, f'the process ended with {code}'
                self.unplug_all(rules.UNDO)
                self.same(before, rules.UNDO_HALF, text)
                place += 1
            assert place > 1, 'no process was killed'

    def _killed_at(self, service: Service, place: int, number: int) -> int:
        """Plug and unplug in a process that is killed."""
        service.stop()

        def act() -> None:
            instance = service_module.instance()
            os_acc.plug(instance, [self.requests()[number]])
            os_acc.unplug(instance)

        def child() -> None:
            service.mortal.by_signal = True
            os_acc.initialize()
            service.dies_at(place, act)

        return children.run(child)

    @staticmethod
    def _free(service: Service, request: objects.AcceleratorRequest) -> int:
        """How many VANs can be made for such requests."""
        if request.handle is not None:
            return 1
        return sum(
            device.handles_free
            for device in service.driver.get_devices()
            if request.resource_class in (None, device.resource_class)
            and set(request.traits) <= set(device.traits)
        )

    def _check_winners(
        self,
        errors: list[exception.ExceptionBase],
        free: int,
        request: objects.AcceleratorRequest,
    ) -> None:
        for err in errors:
            check_refusal(err)
        handles = collections.Counter(name(van) for van in os_acc.get_vans())
        twice = [each for each, number in handles.items() if number > 1]
        if twice:
            rules.ONE_VAN.broken(f'several VANs have {", ".join(twice)}')
        wanted = min(free, ASKERS)
        if free and len(handles) != wanted:
            rules.ONE_VAN.broken(
                f'{len(handles)} of {ASKERS} askers got a handle, and {free} '
                f'were free for {driver_basics.asks(request)}'
            )


def ask_in_threads(
    request: objects.AcceleratorRequest, count: int
) -> list[exception.ExceptionBase]:
    """Plug a request into many instances at the same time.

    :returns: the errors of those that did not get it
    """
    errors: list[exception.ExceptionBase] = []
    ready = threading.Semaphore(0)
    start = threading.Event()

    def ask() -> None:
        wanted = [service_module.again(request)]
        ready.release()
        start.wait()
        try:
            os_acc.plug(service_module.instance(), wanted)
        except exception.ExceptionBase as err:
            errors.append(err)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
        # One after the other: if coverage is measured, Python 3.11 can fail
        # to start two threads at once beside the audit hook of mortal.py.
        if not ready.acquire(timeout=60):
            raise RuntimeError('a thread did not start within 60 s')
    start.set()
    for thread in threads:
        thread.join()
    return errors


def ask_as_a_process(request: objects.AcceleratorRequest) -> None:
    """Do what one of two processes does."""
    os_acc.initialize()
    for err in ask_in_threads(request, ASKERS // 2):
        check_refusal(err)


def check_refusal(err: exception.ExceptionBase) -> None:
    """Check the error of an asker that came too late."""
    cause = err.__cause__
    if not isinstance(cause, exception.ExceptionBase):
        rules.ONE_VAN.broken(f'an asker got {contract_base.said(err)}')


class DriverCrashes(crashes.Crashes, driver_hooks.DriverHooks):
    """The checks of crashes for a driver, and those of a reboot."""

    serve = rules.SERVE
    undo = rules.UNDO
    undo_half = rules.UNDO_HALF
    save_first = rules.SAVE_FIRST

    def check_reboot(
        self,
        service: Service,
        requests: list[objects.AcceleratorRequest],
        lost_each: bool,
    ) -> bool:
        before = self.look()
        instance = service_module.instance()
        vans = self.plug(instance, requests, rules.SERVE)
        prepared = self.look()
        self.reboot()
        lost: bool = self.look() != prepared
        service.stop()
        self._check_lost(service, vans, lost, lost_each)
        service.reboot()
        service.restart()
        for old, new in zip(vans, os_acc.get_vans(instance), strict=True):
            if new.error is not None:
                rules.SAME_HANDLE.broken(
                    f'after a reboot, {name(old)} was not prepared: '
                    f'{new.error}'
                )
            driver_basics.check_same_handle(old, new)
            self.check_numbers(new)
            if not contract_base.is_intact(service.driver, new):
                rules.INTACT.broken(
                    f'after it was prepared again, it is False for {name(new)}'
                )
        self.unplug(instance, rules.UNDO)
        self.same(
            before, rules.AS_FOUND, 'plugged, rebooted, prepared, unplugged'
        )
        return lost

    def test_a_second_prepare(self, service: Service) -> None:
        """The device is prepared, and os-acc takes it for not intact."""
        before = self.look()
        for request in self.requests():
            instance, van = self.plugged(request, rules.SERVE)
            prepared = self.look()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(service.driver, 'is_intact', lambda van: False)
                (again,) = self.plug(instance, [request], rules.SAME_HANDLE)
            driver_basics.check_same_handle(van, again)
            self.same(prepared, rules.AS_FOUND, 'after the second prepare')
            self.unplug(instance, rules.UNDO)
            self.same(before, rules.AS_FOUND, 'prepared twice, then unplugged')

    def _check_lost(
        self,
        service: Service,
        vans: list[objects.VAN],
        lost: bool,
        lost_each: bool,
    ) -> None:
        """Ask is_intact() for devices that have lost what they were given."""
        default = driver_base.DriverBase.is_intact
        if not lost or type(service.driver).is_intact is default:
            return
        intact = [contract_base.is_intact(service.driver, v) for v in vans]
        if all(intact) or (lost_each and any(intact)):
            rules.INTACT.broken(
                'it is True for devices that have lost their preparation'
            )
