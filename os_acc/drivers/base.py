# SPDX-License-Identifier: Apache-2.0

"""What the drivers of devices that device_spec offers do alike."""

from __future__ import annotations

import abc
from typing import Any
from typing import ClassVar

from oslo_config import cfg

from os_acc import driver
from os_acc import objects
from os_acc.spec import device_spec


class Driver(driver.DriverBase):
    """A driver of devices that ``[os_acc] device_spec`` offers."""

    @staticmethod
    def specs() -> device_spec.Specs:
        """The entries. If they cannot be read, VANs keep what they have."""
        return device_spec.load_for_vans(cfg.CONF)

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        if not self.is_anothers(van):
            self.undo(van)

    @abc.abstractmethod
    def undo(self, van: objects.VAN) -> None:
        """Undo what prepareVAN has done, however far it has come."""


class OneHandleDriver(Driver):
    """A driver whose VANs all have handles of one class.

    :ivar handle_class: that class
    """

    handle_class: ClassVar[Any]

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        wanted = van.handle or request.handle
        if wanted is None:
            self.choose(van, request)
            return
        wanted = self.handle_class.cast(wanted, f'driver {self.name!r}')
        if van.handle is None:
            self.take(van, wanted)
        else:
            self.take_again(van, wanted)

    @abc.abstractmethod
    def choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Take the first device that serves a request. See choosing."""

    @abc.abstractmethod
    def take(self, van: objects.VAN, handle: Any) -> None:
        """Take the device that a request names."""

    @abc.abstractmethod
    def take_again(self, van: objects.VAN, handle: Any) -> None:
        """Take the device that the VAN has: after a reboot, or if lost."""
