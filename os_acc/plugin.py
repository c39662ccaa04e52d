# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The contract of plugins: the instance half, one per hypervisor."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING
from typing import ClassVar

from os_acc import extension

if TYPE_CHECKING:
    from os_acc import objects


class PluginBase(extension.ExtensionBase, abc.ABC):
    """Takes an attach handle into an instance, and out again.

    It knows no driver. A driver may leave hints in ``van.driver_data``:

    - ``device_api``: the mdev type's (vfio-pci, vfio-ap, vfio-ccw; see the
      kernel's Documentation/driver-api/vfio-mediated-device.rst);
    - ``guest_address``: the PCI address that the guest shall see it at.
    """

    #: False: plug and unplug with live=True are refused before anything is
    #: touched.
    supports_live: ClassVar[bool] = True

    @abc.abstractmethod
    def describe(self) -> objects.HostPluginInfo:
        """Say which handle classes, in which versions, the plugin takes."""

    def check_live(self) -> None:
        """Called before a live plug or unplug touches anything. Here: nothing.

        :raises Exception: it cannot be, such as for want of a package
        """

    @abc.abstractmethod
    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Do the instance half.

        :param van: its handle is prepared; set ``van.guest_config`` for the
            guest's definition, or leave it None where there is nothing to add
        :param live: also attach it to the running guest; what is attached
            already is a success
        :raises Exception: any is a failure, and leads to unplug
        """

    @abc.abstractmethod
    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Undo the instance half.

        Succeeds on what was only half plugged, or is gone already.

        :param live: detach it from the running guest, and return only when
            the guest has let go; a guest that does not run has. When a crash
            is recovered from, what the interrupted call was given
        :raises Exception: any means that the guest may still hold it: the
            device half is then left as it is
        """
