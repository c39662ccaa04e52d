# SPDX-License-Identifier: Apache-2.0

"""Checks of a driver: a process that dies, and a host that is rebooted."""

from __future__ import annotations

import pytest

import os_acc
from os_acc import driver as driver_base
from os_acc import objects
from os_acc.testing import contract_base
from os_acc.testing import crashes
from os_acc.testing import driver_basics
from os_acc.testing import driver_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service
name = driver_basics.name


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
