# SPDX-License-Identifier: Apache-2.0

"""Checks of a driver: a device that has failed, and one to be cleaned."""

from __future__ import annotations

import pathlib
import tempfile

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.journal import health as rows
from os_acc.testing import contract_base
from os_acc.testing import driver_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

_OPTION = 'cleaning_command'


class Cleaning(driver_hooks.DriverHooks):
    """What a driver does while [os_acc] cleaning_command is set."""

    def test_cleaning_command_runs_at_the_release(
        self, service: contract_base.Service
    ) -> None:
        with tempfile.TemporaryDirectory() as directory:
            self._try_cleaning(service, pathlib.Path(directory) / 'said')

    def _try_cleaning(
        self, service: contract_base.Service, said: pathlib.Path
    ) -> None:
        run = f"sh -c 'echo $0 >> {said}' {{address}}"
        try:
            for request in self.requests():
                before = self.look()
                os_acc.CONF.set_override(_OPTION, 'false', 'os_acc')
                instance = self._plugged_or_refused(service, request)
                if instance is not None:
                    self._check_cleaned(instance, run)
                    if not said.exists():
                        rules.CLEAN.broken('unplug() succeeds without it')
                    said.unlink()
                self.same(before, rules.CLEAN, 'after the release')
        finally:
            os_acc.CONF.clear_override(_OPTION, 'os_acc')

    def _plugged_or_refused(
        self,
        service: contract_base.Service,
        request: objects.AcceleratorRequest,
    ) -> objects.InstanceInfo | None:
        """Plug a request.

        :returns: its instance; None: it was refused because of the option
        """
        instance = service_module.instance()
        try:
            os_acc.plug(instance, [request])
        except exception.ExceptionBase as err:
            if _OPTION not in contract_base.said(err):
                rules.CLEAN.broken(f'the error does not name it: {err}')
            return None
        if not service.driver.cleans:
            rules.CLEAN.broken('cleans is False, and plug() succeeds')
        return instance

    def _check_cleaned(self, instance: objects.InstanceInfo, run: str) -> None:
        """Let the command fail first, and then let it succeed."""
        try:
            os_acc.unplug(instance)
        except exception.UnplugException:
            pass
        else:
            rules.CLEAN.broken('unplug() succeeds although it fails')
        (van,) = os_acc.get_vans(instance.uuid)
        if van.state != 'error':
            rules.CLEAN.broken(
                f'the VAN is in state {van.state} after it failed'
            )
        os_acc.CONF.set_override(_OPTION, run, 'os_acc')
        self.unplug(instance, rules.CLEAN)


class Failed(driver_hooks.DriverHooks):
    """The first device has failed, and a second one is free."""

    def test_a_failed_device_does_not_stop_the_next(
        self, service: contract_base.Service
    ) -> None:
        """Each of two devices fails in turn, since the first is unknown."""
        request, addresses = self.two_devices()
        driver = service.driver
        for failed in addresses:
            health.mark(
                driver.journal, failed, rows.CLEANING, 'the kit lets it fail'
            )
            try:
                listed = {each.address for each in driver.get_devices()}
            except Exception as err:
                rules.NEXT_DEVICE.broken(
                    f'get_devices() raised {exception.describe(err)} after '
                    f'{failed} had failed'
                )
            if not listed.issuperset(addresses):
                rules.NEXT_DEVICE.broken(
                    f'get_devices() lists {sorted(listed)} after {failed} had '
                    f'failed; the devices are {sorted(addresses)}'
                )
            instance, van = self.plugged(
                service_module.again(request), rules.NEXT_DEVICE
            )
            if van.device == failed:
                rules.NEXT_DEVICE.broken(f'it gave {failed}, which had failed')
            self.unplug(instance, rules.UNDO)
            health.free(driver.journal, failed)
