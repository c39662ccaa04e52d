# SPDX-License-Identifier: Apache-2.0

"""The contract of plugins: the instance half, one per hypervisor."""

from __future__ import annotations

import abc
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import ClassVar

from os_acc import extension

if TYPE_CHECKING:
    from os_acc import finding
    from os_acc import guest_move
    from os_acc import objects


class PluginBase(extension.ExtensionBase, abc.ABC):
    """Attaches attach handles to instances, and detaches them.

    A plugin does not know the driver. But a driver may leave hints in
    ``van.driver_data``:

    - ``device_api``: the device API of the mdev type (vfio-pci, vfio-ap,
      vfio-ccw; see the kernel's
      Documentation/driver-api/vfio-mediated-device.rst);
    - ``guest_address``: the PCI address at which the guest sees the device.
    """

    #: False: os-acc refuses plug and unplug with live=True before anything is
    #: touched.
    supports_live: ClassVar[bool] = True

    @abc.abstractmethod
    def describe(self) -> objects.HostPluginInfo:
        """Return which attach handle classes and versions the plugin
        accepts."""

    def check_live(self) -> None:
        """Check that a live plug or unplug is possible at all.

        os-acc calls it before anything is touched. The default does nothing.

        :raises Exception: if it is impossible, for example because a package
            is missing
        """

    def has_guest(self, instance_info: objects.InstanceInfo) -> bool | None:
        """Say whether the hypervisor has a guest of the instance.

        release_orphans() leaves alone the VANs of an instance that has a
        guest, running or not. The default cannot tell.

        :returns: None if the plugin cannot tell; then only the list of the
            caller of release_orphans() applies
        :raises Exception: if the hypervisor does not answer; the VANs of the
            instance are then not released
        """
        return None

    def runs_guest(self, instance_info: objects.InstanceInfo) -> bool | None:
        """Say whether the guest of the instance runs on this host now.

        recover() uses it to settle a migration whose caller has died. The
        default cannot tell.

        :returns: False if there is no guest, or it does not run; None if the
            plugin cannot tell, or the guest is being moved just now
        :raises Exception: if the hypervisor does not answer; nothing is then
            decided
        """
        return None

    @abc.abstractmethod
    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Do the instance half.

        :param van: its handle is prepared. The plugin sets
            ``van.guest_config`` for the guest's definition, or leaves it
            None if there is nothing to add. A live plug writes what the
            undo will need into ``van.driver_data`` and calls ``van.save()``
            before it attaches anything
        :param live: also attach the device to the running guest. A device
            that is already attached is a success. If the guest was shut down
            while it was being moved, write the device into its definition
        :raises Exception: any exception is a failure; os-acc then calls
            unplug()
        """

    def restore(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Do the instance half again, for a guest that does not run.

        os-acc calls it after a reboot of the host, and when is_intact() has
        returned False, after prepareVAN has prepared the same handle again.
        The numbers of the device may have changed, such as that of its IOMMU
        group. The default does nothing, which suits a plugin whose
        ``guest_config`` remains valid and that keeps nothing on the host.

        :param van: the plugin may change ``van.guest_config``
        :raises Exception: any exception is a failure. The VAN stays plugged
            with its error, and the next plug() or recover() tries again
        """

    def is_intact(self, van: objects.VAN) -> bool:
        """Say whether what plug() has left on the host is still there.

        plug() calls it for a VAN that is already plugged, and calls restore()
        if the answer is False: somebody may have removed a file by hand. It
        changes nothing. The default returns True.

        :raises Exception: if it cannot tell; plug() then fails and changes
            nothing
        """
        return True

    @abc.abstractmethod
    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Undo the instance half.

        Succeeds if the VAN was only partly plugged, or is already unplugged.
        Fails as long as the hypervisor may still attach the device for an
        earlier plug(). If it waits for the guest, it waits at most for
        ``van.time_left()``, so that the VANs of one guest do not wait one
        after the other.

        :param live: detach the device from the running guest, and return only
            when the guest has released it. A guest that does not run has
            released it. After a crash, this is the value that the interrupted
            call had
        :raises Exception: any exception means that the guest may still hold
            the device. os-acc then leaves the device half as it is
        """

    def guest_move(
        self, instance_info: objects.InstanceInfo, target: str
    ) -> guest_move.GuestMove | None:
        """Return what moves the guest of an instance to another host.

        ``os-acc migrate`` calls it. The default returns None: os-acc cannot
        move guests of this plugin.

        :param target: the other host, as ``ssh://[user@]host[:port]``, or as
            a URI of the hypervisor
        :raises InvalidRequest: if the hypervisor has no such target
        :raises Exception: if a hypervisor does not answer
        """
        return None

    def undefine_command(
        self, instance_info: objects.InstanceInfo
    ) -> str | None:
        """Name the command that removes the guest's definition here.

        A cold move that was killed may have left the guest defined on both
        hosts. ``os-acc migration finish`` on the source and ``os-acc migration
        abort`` on the target then show this command, so that nobody starts the
        guest twice. Nothing is changed.

        :returns: None if there is no definition here, if the guest runs with
            it, or if the plugin cannot tell, which is the default
        :raises Exception: if the hypervisor does not answer
        """
        return None

    def migration_map(
        self,
        vans_source: Sequence[objects.VAN],
        vans_target: Sequence[objects.VAN],
    ) -> objects.MigrationMap | None:
        """Say what changes in a guest's definition when it moves live.

        The guest keeps running with its devices, so that all that it sees of
        them stays the same. It changes nothing. The default returns None.

        :param vans_source: the guest's VANs of this plugin on the source
        :param vans_target: those with the same UUIDs on the target, in any
            order. Another host has made them: trust no text in them
        :returns: None if guests of this plugin cannot move live
        :raises InvalidRequest: if the VANs do not fit
        """
        return None

    def redefine(
        self, definition: str, migration_map: objects.MigrationMap
    ) -> str:
        """Make the definition of a guest that moves for the target.

        Only what the map names is changed. Applying it twice gives the same.
        The default returns the definition as it is.

        :param definition: the whole definition of the guest on the source
        :param migration_map: what migration_map() has returned
        :raises InvalidRequest: if the map does not fit the definition
        """
        return definition

    def leftovers(
        self, van_uuids: Collection[str]
    ) -> Iterable[finding.Finding]:
        """Report what plug() has left on the host for VANs that are gone.

        ``os-acc doctor`` calls it. It must change nothing. The default finds
        nothing.

        :param van_uuids: the VANs that exist, of all plugins
        """
        return ()
