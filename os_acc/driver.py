# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The contract of drivers: the device half, one per device type."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from typing import Any
from typing import ClassVar

from os_acc import exception
from os_acc import extension
from os_acc import objects

if TYPE_CHECKING:
    from os_acc import journal as journal_module
    from os_acc import locking
    from os_acc import progress


class DriverBase(extension.ExtensionBase, abc.ABC):
    """Takes an accelerator to an attach handle, and back.

    A driver keeps no state of its own: the journal has it. Its methods are
    called from several threads at once, for different VANs. What undo will
    need goes into ``van.driver_data``, then ``van.save()``, and only then the
    device is touched: after a crash anywhere, unprepareVAN is called in a new
    process, with the VAN as it was last saved.
    """

    #: True for a catch-all: a specific driver's claim goes first.
    generic: ClassVar[bool] = False

    #: Whether it programs devices. A request with a function or a bitstream
    #: for a driver that does not is refused before anything is touched.
    programs: ClassVar[bool] = False

    #: Names of the handle classes that it makes, for host_info(). If given,
    #: a plugin that takes none of them is refused before anything is touched.
    handle_types: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._journal: journal_module.Journal | None = None
        self._locks: locking.Locks | None = None

    @abc.abstractmethod
    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        """Say whether this driver is for such a request.

        Cheap, and touches nothing. Not asked when the request names a driver.
        """

    @abc.abstractmethod
    def get_devices(self) -> list[objects.Device]:
        """List this host's devices of the driver's kind, free or not."""

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Tell an operator all that is known of a device or function.

        It only looks. Here: nothing.

        :param address: as get_devices() gives it, or a handle's
        :returns: names, in lower case, and values: texts, numbers, lists;
            None: it is not of this driver's kind
        """
        return None

    @abc.abstractmethod
    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        """Do the device half: set ``van.handle``, and make it good.

        Called again for the same VAN after the host was rebooted: its handle
        and driver_data are then as they were saved, and it makes the same
        handle good again.

        :param van: set handle, and device (the parent's address), function_id
            and driver_data as needed; report_progress() for what is long
        :raises DeviceNotFound, DeviceBusy, DeviceInUseByHost, Timeout: as
            they say; any exception is a failure, and leads to unprepareVAN
        """

    def postplug(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Clean up after the attach. Here: nothing.

        A failure undoes the whole plug. Not called when a device is prepared
        again after a reboot of the host: that attaches nothing.
        """

    @abc.abstractmethod
    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Undo the device half, and leave the device as it was found.

        Succeeds on what was only half prepared, or is gone already, or is
        another VAN's by now (which it leaves alone).

        :raises DeviceBusy: a guest still holds the device
        """

    def program_device(
        self,
        address: str,
        bitstream: str | None,
        function_id: str | None,
        region: str | None,
        report: progress.Report,
    ) -> bool:
        """Put a function into a device, for its administrator.

        Here: it cannot be done. A driver that reports a device whose
        programming is not 'none' can do it.

        :param address: as get_devices() gives it
        :param bitstream: path, URL or image id; None: found by function_id
        :param report: is told how far it is: a fraction or None, and a text
        :returns: whether it was programmed; False: it was in already
        :raises DeviceBusy: it is in use, with another function
        """
        raise exception.DeviceError(
            device=address,
            reason=f'driver {self.name!r} does not program it',
        )

    def lock(
        self, device: str, timeout: float | None = None
    ) -> AbstractContextManager[None]:
        """Hold a device against other threads and processes.

        :param device: its address
        :param timeout: seconds to wait; None: lock_timeout
        :returns: a context manager; entering it again inside itself raises
            LockHeld
        :raises Timeout: someone else held it for all of lock_timeout
        """
        return self._connected().device(device, timeout)

    def vans_on(self, device: str | None) -> objects.VANList:
        """What the journal holds on a device, in every state.

        :param device: its address, as the driver set it in ``van.device``;
            None: on every device, other drivers' too
        """
        self._connected()
        if self._journal is None:
            return objects.VANList()
        return self._journal.vans_on(device)

    def handles(
        self, device: str | None = None
    ) -> list[journal_module.Holder]:
        """List which handles and devices are taken, and by whom.

        Counts VANs that cannot be read too, which vans_on() cannot return.

        :param device: address of a parent device; None: every device, also
            those of other drivers
        """
        self._connected()
        if self._journal is None:
            return []
        return self._journal.handles(device)

    def requests_of(
        self, instance_uuid: str
    ) -> list[objects.AcceleratorRequest]:
        """What an instance has, and what is being plugged for it now."""
        self._connected()
        if self._journal is None:
            return []
        return self._journal.requests_of(instance_uuid)

    @property
    def journal(self) -> journal_module.Journal | None:
        """The journal, for os_acc.programming; None if there is none yet."""
        return self._journal

    def connect(
        self, journal: journal_module.Journal | None, locks: locking.Locks
    ) -> None:
        """Give the driver the host's journal and locks. os-acc calls it.

        :param journal: None if there is no journal yet, for looking only
        """
        self._journal = journal
        self._locks = locks

    def _connected(self) -> locking.Locks:
        """Return the locks, unless load() made this driver for no host.

        :raises LibraryNotInitialized: if nobody has called connect()
        """
        if self._locks is None:
            raise exception.LibraryNotInitialized(
                f'Driver {self.name!r} is not connected to the journal and '
                'the locks: load() only makes a driver. Use the driver that '
                'os_acc.initialize() has loaded, through os_acc.plug() and '
                "os_acc's other calls, or call connect() on this one"
            )
        return self._locks
