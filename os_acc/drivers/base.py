# SPDX-License-Identifier: Apache-2.0

"""What the drivers of devices that device_spec offers do alike."""

from __future__ import annotations

import abc

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
