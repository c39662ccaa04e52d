# SPDX-License-Identifier: Apache-2.0

"""AnyDriver: a driver that gives each request the handle that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from os_acc import driver
from os_acc import exception
from os_acc import objects

Hints = Callable[[objects.AcceleratorRequest], dict[str, str]]


class AnyDriver(driver.DriverBase):
    """Prepares nothing, so a test that uses it tests the plugin alone.

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
