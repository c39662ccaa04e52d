# SPDX-License-Identifier: Apache-2.0

"""What the author of a plugin defines for the contract, and its driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc import plugin as plugin_base
from os_acc.testing import contract_base

Hints = Callable[[objects.AcceleratorRequest], dict[str, str]]


class AnyDriver(driver_base.DriverBase):
    """Gives each request the handle that it names, and prepares nothing.

    So a test that uses it tests the plugin alone.

    :ivar hints: returns the values of driver_data for a request
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.hints: Hints = lambda request: {}

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        return request.handle is not None

    def get_devices(self) -> list[objects.Device]:
        return []

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        if request.handle is None:
            raise exception.DeviceNotFound(
                wanted=f'request {request.uuid}',
                reason='it names no attach handle',
            )
        if van.handle is None:
            van.handle = request.handle
            van.driver_data = self.hints(request)
            van.save()

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Do nothing: nothing was prepared."""


class PluginHooks(contract_base.ContractBase):
    """make_plugin(), requests() and look(), and what is optional."""

    def make_plugin(self) -> plugin_base.PluginBase:
        """Make the plugin, as each new process does.

        The author defines it, mostly as ``return MyPlugin.load('my')``.
        """
        raise NotImplementedError

    def make_driver(self) -> driver_base.DriverBase:
        """Make the driver. The default gives the handle of the request."""
        made = AnyDriver.load('any')
        made.hints = self.hints
        return made

    def hints(self, request: objects.AcceleratorRequest) -> dict[str, str]:
        """Return the hints of the driver for the plugin. Default: none."""
        return {}

    def two_handles(self) -> list[objects.AcceleratorRequest]:
        """Return requests whose handles differ. The default: requests()."""
        return self.requests()

    def definition(self, van: objects.VAN) -> str:
        """Return the whole definition of a guest that has a VAN.

        The rest of it is the same for each VAN. The default skips the test
        that needs it.
        """
        pytest.skip('definition() is not defined: there is no guest to move')

    def run_guest(self, instance: objects.InstanceInfo) -> None:
        """Let a guest of an instance run.

        The default skips the tests that need it.
        """
        pytest.skip('run_guest() is not defined: no guest can run')

    def end_guest(self, instance: objects.InstanceInfo) -> None:
        """Let the guest of an instance end: it is shut off, or gone.

        The default skips the test that needs it.
        """
        pytest.skip('end_guest() is not defined: no guest can end')

    def hold(self, van: objects.VAN) -> Callable[[], None]:
        """Let the guest keep the device of a VAN, whoever asks for it.

        The kit then waits for the plugin to give up. So make the plugin's
        deadline short, by its options. The default skips the test that needs
        it.

        :returns: a function that lets the guest release devices again
        """
        pytest.skip('hold() is not defined: no guest can refuse')

    def break_api(self) -> Callable[[], None]:
        """Let every call of the hypervisor's API fail.

        The default skips the test that needs it.

        :returns: a function that repairs the API
        """
        pytest.skip('break_api() is not defined: no API can fail')

    def attached(self, van: objects.VAN) -> bool | None:
        """Ask the hypervisor whether the guest has the device of a VAN.

        :returns: None if that cannot be told, which is the default
        """
        return None
