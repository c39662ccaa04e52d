# SPDX-License-Identifier: Apache-2.0

"""The contract of drivers. A driver does the device half of a device type."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from typing import Any
from typing import ClassVar
from typing import TypeVar

from os_acc import exception
from os_acc import extension
from os_acc import objects
from os_acc.texts import ways

if TYPE_CHECKING:
    from os_acc import journal as journal_module
    from os_acc import locking
    from os_acc import progress

_T = TypeVar('_T')

#: How a VAN moves to another host: the guest keeps running with the device.
LIVE = ways.LIVE
#: How a VAN moves to another host: the device is detached before, and another
#: one is attached after.
REPLUG = ways.REPLUG
#: How a VAN moves to another host: the guest is stopped.
COLD = ways.COLD
#: The three, the best first.
WAYS = ways.WAYS


class DriverBase(extension.ExtensionBase, abc.ABC):
    """Makes an attach handle from an accelerator, and undoes that.

    A driver keeps no state of its own: the state is in the journal.
    os-acc calls its methods from several threads at once, for different VANs.
    Before the driver changes a device, it writes what the undo will need into
    ``van.driver_data`` and calls ``van.save()``. After a crash, os-acc calls
    unprepareVAN in a new process, with the VAN as it was last saved.
    """

    #: True for a driver that claims devices of any type, such as ``pci``. If
    #: another driver claims the same request, that driver gets it.
    generic: ClassVar[bool] = False

    #: Whether the driver programs devices. If it does not, os-acc refuses a
    #: request with a function or a bitstream before anything is touched.
    programs: ClassVar[bool] = False

    #: Whether the driver sets up the network port that a device serves. If it
    #: does not, os-acc refuses a request with a port before anything is
    #: touched.
    sets_ports: ClassVar[bool] = False

    #: Whether unprepareVAN cleans a device by ``[os_acc] cleaning_command``,
    #: once the device is closed. If it does not, os-acc refuses each request
    #: for the driver while that option is set, before anything is touched.
    cleans: ClassVar[bool] = False

    #: Names of the handle classes that the driver makes, for host_info(). If
    #: the plugin takes none of them, os-acc refuses the request before
    #: anything is touched. Empty: this is not checked.
    handle_types: ClassVar[tuple[str, ...]] = ()

    #: The best way in which its VANs move to another host, one of WAYS. COLD
    #: is right if a guest cannot get or give up such a device while it runs.
    moves: ClassVar[str] = COLD

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._journal: journal_module.Journal | None = None
        self._locks: locking.Locks | None = None

    @abc.abstractmethod
    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        """Say whether this driver can serve a request.

        It must be fast and touch nothing. os-acc does not call it if the
        request names a driver.
        """

    @abc.abstractmethod
    def get_devices(self) -> list[objects.Device]:
        """List this host's devices that the driver handles, free or used."""

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Return all that the driver knows about a device or function.

        ``os-acc device show`` calls it. It changes nothing. The default knows
        nothing.

        :param address: the address of a device, as get_devices() gives it, or
            of an attach handle
        :returns: values (texts, numbers or lists) by name, in lower case; None
            if the driver does not handle such a device
        """
        return None

    def takes_unlisted(self, request: objects.AcceleratorRequest) -> bool:
        """Whether prepareVAN may serve a request that no listed device fits.

        ``os-acc plug --dry-run`` calls it, for requests of this driver. If the
        answer is False, a device that get_devices() does not list is an
        obstacle. It changes nothing. The default returns False.
        """
        return False

    def serves(
        self, request: objects.AcceleratorRequest, device: objects.Device
    ) -> bool:
        """Whether a device satisfies a request without a handle.

        ``os-acc plug --dry-run`` calls it. It changes nothing. The default
        compares the resource class and the traits.

        :param device: one that get_devices() has listed
        """
        return request.resource_class in (
            None,
            device.resource_class,
        ) and set(request.traits) <= set(device.traits)

    def check_request(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> None:
        """Check that prepareVAN would give a free handle to a request.

        ``os-acc plug --dry-run`` calls it. A driver whose prepareVAN checks
        more than whether the handle is free must implement it, with the same
        code. It changes nothing and needs neither a lock nor a privilege. The
        default has nothing to check.

        :param handle: get_devices() says that it is free, or that such a
            mediated device can be created. If the request names no handle, it
            is one that the driver could choose
        :raises Exception: what prepareVAN would raise
        """
        return

    def rank(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> int:
        """Say how well a free handle suits a request; the lowest is the best.

        ``os-acc plug --dry-run`` calls it. A driver whose prepareVAN prefers
        one device to another implements it, with the same code. It changes
        nothing. The default prefers none: the first that get_devices() lists
        is taken.

        :param handle: as for check_request()
        """
        return 0

    @abc.abstractmethod
    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        """Do the device half: prepare the device and set ``van.handle``.

        os-acc calls it again for the same VAN after a reboot of the host, and
        when is_intact() has returned False. The VAN then has the handle and
        driver_data that were saved, and the driver prepares the same handle
        again.

        :param van: the driver sets handle, and if needed device (the address
            of the parent device), function_id and driver_data. It calls
            report_progress() during long work
        :raises DeviceNotFound, DeviceBusy, DeviceInUseByHost, Timeout: for
            these reasons. Any exception is a failure; os-acc then calls
            unprepareVAN
        """

    def postplug(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Clean up after the attach. The default does nothing.

        If it fails, os-acc undoes the whole plug. os-acc does not call it
        when it prepares a device again after a reboot of the host, because
        nothing is attached then.
        """

    @abc.abstractmethod
    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Undo the device half, and leave the device as it was found.

        It also succeeds if the VAN was only partly prepared, if the device is
        gone, or if another VAN has the device by now. It does not touch the
        device of another VAN.

        :raises DeviceBusy: if a guest still has the device open
        """

    def is_intact(self, van: objects.VAN) -> bool:
        """Say whether the hardware still holds what prepareVAN has made.

        plug() calls it for a VAN that is already plugged, and calls prepareVAN
        again if the answer is False: somebody may have unbound a function or
        removed a mediated device by hand. It reads the hardware, changes
        nothing, and needs no lock. The default returns True, also for a driver
        that was written before this method existed.

        :param van: it is plugged and was prepared in this boot of the host
        :raises Exception: if the hardware cannot be examined; plug() then
            fails and changes nothing
        """
        return True

    def left_behind(self, van: objects.VAN) -> str | None:
        """Say what stays on the device when the instance moves away.

        ``os-acc migration check`` prints it. It changes nothing. The default
        returns None: nothing stays that the guest would not also lose by a
        restart.

        :returns: a noun, such as 'the data of the drive'; None: nothing
        """
        return None

    def program_device(
        self,
        address: str,
        bitstream: str | None,
        function_id: str | None,
        region: str | None,
        report: progress.Report,
    ) -> bool:
        """Program a function into a device, for the administrator.

        The default raises DeviceError. A driver must implement it if it
        reports a device whose programming is not 'none'.

        :param address: as get_devices() gives it
        :param bitstream: path, URL or image id; None: an image is chosen by
            function_id
        :param report: called during the work with a fraction, or None if that
            is unknown, and a text
        :returns: False if the device already held the bitstream, else True
        :raises DeviceBusy: if the device is in use with another function
        """
        raise exception.DeviceError(
            device=address,
            reason=f'driver {self.name!r} does not program it',
        )

    def free_device(self, address: str) -> list[str]:
        """Return to the host a device that stays prepared between VANs.

        ``os-acc device free`` calls it. The default does nothing.

        :param address: of an attach handle
        :returns: a clause for each thing that was done; empty if there was
            nothing to do, or the driver does not handle such a device
        :raises DeviceBusy: if a VAN has the device
        """
        return []

    def lock(
        self, device: str, timeout: float | None = None
    ) -> AbstractContextManager[None]:
        """Lock a device against other threads and processes.

        :param device: its address
        :param timeout: seconds to wait; None: ``[os_acc] lock_timeout``
        :returns: a context manager that holds the lock
        :raises LockHeld: on entering it, if this thread already holds the lock
        :raises Timeout: on entering it, if another thread or process held the
            lock until the timeout
        """
        return self._connected(self._locks).device(device, timeout)

    def vans_on(self, device: str | None) -> objects.VANList:
        """Return the VANs on a device, in every state.

        :param device: its address, as the driver set it in ``van.device``;
            None: every device, also those of other drivers
        :raises JournalError: if a VAN on this device cannot be read
        """
        return self.journal.vans_on(device)

    def handles(
        self, device: str | None = None
    ) -> list[journal_module.Holder]:
        """List the VANs that have a handle or a device.

        The list includes VANs that cannot be read. vans_on() cannot return
        them. A VAN whose request names a handle has it from the beginning,
        before prepareVAN is called: see handles_of_others().

        :param device: address of a parent device; None: every device, also
            those of other drivers
        :rtype: list[os_acc.journal.Holder]
        """
        return self.journal.handles(device)

    def handles_of_others(self, van: objects.VAN) -> set[str]:
        """Return the identities of the handles that other VANs have.

        A handle that is among them is not free for this VAN.
        """
        return {
            each.handle
            for each in self.handles()
            if each.handle is not None and each.van_uuid != van.uuid
        }

    def is_anothers(self, van: objects.VAN) -> bool:
        """Whether the attach handle no longer belongs to the VAN.

        Another VAN has it by now, or the VAN is no longer in the journal, so
        that another VAN may get it at any time. unprepareVAN then leaves the
        device alone: the undo comes too late. If the answer is False, it
        remains valid while the undo runs: until os-acc deletes the VAN's row,
        the journal gives the handle to no other VAN.

        :raises JournalError: if the journal cannot be read
        """
        # A row of another VAN that is damaged is not asked about.
        return van.handle is not None and not any(
            each.handle == van.handle.identity
            for each in self.journal.handles(van=van.uuid)
        )

    def requests_of(
        self, instance_uuid: str
    ) -> list[objects.AcceleratorRequest]:
        """Return the requests of an instance's VANs.

        VANs that are being plugged are included.
        """
        return self.journal.requests_of(instance_uuid)

    @property
    def journal(self) -> journal_module.Journal:
        """The journal of the host. os_acc.programming uses it.

        :raises LibraryNotInitialized: if connect() was not called
        """
        return self._connected(self._journal)

    def connect(
        self, journal: journal_module.Journal, locks: locking.Locks
    ) -> None:
        """Give the driver the host's journal and locks. os-acc calls it."""
        self._journal = journal
        self._locks = locks

    def _connected(self, part: _T | None) -> _T:
        """Return what connect() has set.

        :param part: the journal or the locks; None before connect()
        :raises LibraryNotInitialized: if connect() was not called
        """
        if part is None:
            raise exception.LibraryNotInitialized(
                f'Driver {self.name!r} is not connected to the journal and '
                'the locks: load() only makes a driver. Use the driver that '
                'os_acc.initialize() has loaded, through os_acc.plug() and '
                "os_acc's other calls, or call connect() on this one"
            )
        return part
