# SPDX-License-Identifier: Apache-2.0

"""Checks of a driver on a host with a device that has failed."""

from __future__ import annotations

from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.journal import health as rows
from os_acc.testing import contract_base
from os_acc.testing import driver_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module


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
            self._check_taken(van, failed)
            self.unplug(instance, rules.UNDO)
            health.free(driver.journal, failed)

    @staticmethod
    def _check_taken(van: objects.VAN, failed: str) -> None:
        if van.device == failed:
            rules.NEXT_DEVICE.broken(f'it gave {failed}, which had failed')
