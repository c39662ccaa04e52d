# SPDX-License-Identifier: Apache-2.0

"""The libvirt plugin: PCI functions, mdevs and disks in a domain's XML."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import functools
import platform
import shlex
import threading
from typing import TYPE_CHECKING
from typing import Any

from oslo_config import cfg

from acc_plug_libvirt import options
from os_acc import finding
from os_acc import objects
from os_acc import plugin
from os_acc.options import nova as nova_options

if TYPE_CHECKING:
    from acc_plug_libvirt import connection
    from acc_plug_libvirt import guest
    from acc_plug_libvirt import hostdev


class LibvirtPlugin(plugin.PluginBase):
    """The plugin for libvirt. A VAN's guest_config is one element.

    It is a <hostdev>, or a <disk> for a BlockHandle.

    The alias of the element is ``ua-acc-<VAN uuid>``. libvirt keeps aliases
    that begin with ua- (https://libvirt.org/formatdomain.html#devices) and
    names them in its events.
    """

    CONFIG_OPTS = options.OPTS

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._connection: connection.Connection | None = None
        self._connection_lock = threading.Lock()
        self._is_power = platform.machine().startswith('ppc64')

    @functools.cached_property
    def builder(self) -> hostdev.Builder:
        """The builder of the XML, made from the options at the first plug.

        __init__ does not read the options, because initialize() checks them
        after it has loaded the plugins. The import is here because it loads
        lxml, which only processes that plug need.
        """
        from acc_plug_libvirt import hostdev

        return hostdev.Builder.from_config(self.config)

    def check_live(self) -> None:
        """Check that live calls are possible.

        :raises HypervisorError: if libvirt-python is not installed
        """
        from acc_plug_libvirt import connection

        connection.module()

    def describe(self) -> objects.HostPluginInfo:
        # Nova's CI boots guests with the TestHandles of Cyborg's fake driver.
        names = ('PCIHandle', 'MdevHandle', 'BlockHandle', 'TestHandle')
        return objects.HostPluginInfo(
            plugin_name=self.name,
            guest_config_format=options.FORMAT,
            handle_info=[objects.HostHandleInfo.of(name) for name in names],
        )

    def has_guest(self, instance_info: objects.InstanceInfo) -> bool | None:
        """Whether libvirt has a domain with the instance's UUID.

        :raises HypervisorError: if libvirt does not answer
        """
        return self.libvirt().domain(instance_info.uuid) is not None

    def runs_guest(self, instance_info: objects.InstanceInfo) -> bool | None:
        """Whether the domain with the instance's UUID runs.

        A domain that is paused, or has a job such as a migration, may run on
        another host at any time: then it is not known.

        :raises HypervisorError: if libvirt does not answer
        """
        return self.libvirt().runs(instance_info.uuid)

    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Set guest_config to the element, or to None for a TestHandle.

        On a Power host, also set drc_index in driver_data: the DRC index by
        which the guest will identify the device. It is left out if it is not
        known before the guest is defined.
        """
        text = van.guest_config = self._build(van)
        if text is None:
            return
        if self._is_power and not isinstance(van.handle, objects.BlockHandle):
            from acc_plug_libvirt import drc

            index = drc.drc_index(text)
            if index is not None:
                van.driver_data['drc_index'] = index
        if live:
            from acc_plug_libvirt import attach

            attach.attach(self.libvirt(), van, self.config.attach_timeout)

    def _build(self, van: objects.VAN) -> str | None:
        if isinstance(van.handle, objects.BlockHandle):
            from acc_plug_libvirt import disk

            return disk.build(van, van.handle)
        return self.builder.build(van)

    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Take the device out of the domain.

        live=False does nothing: the caller undefines or edits the guest.
        live=True removes the device from the guest's definition, then from
        the running guest.
        """
        if not live or isinstance(van.handle, objects.TestHandle | None):
            return
        from acc_plug_libvirt import detach

        conf = self.config
        xml = van.guest_config or self._build(van)
        if xml is None:
            return
        detach.detach(
            self.libvirt(),
            van,
            xml,
            conf.detach_timeout,
            conf.detach_attempts,
            conf.detach_attempt_timeout,
        )

    def guest_move(
        self, instance_info: objects.InstanceInfo, target: str
    ) -> guest.LibvirtGuest:
        """Return what moves the domain with the instance's UUID.

        :param target: a URI of libvirt; for ``ssh://host`` it is made of this
            host's, such as qemu+ssh://host/system
        :raises MigrationConflict: if libvirt has no such domain
        :raises HypervisorError: if a libvirt does not answer
        """
        from acc_plug_libvirt import connection
        from acc_plug_libvirt import guest

        there = connection.Connection(
            guest.target_uri(self._uri(), target), self.config.connect_timeout
        )
        return guest.LibvirtGuest(self.libvirt(), there, instance_info)

    def undefine_command(
        self, instance_info: objects.InstanceInfo
    ) -> str | None:
        """Name the virsh command for a domain that is defined and shut off.

        :raises HypervisorError: if libvirt does not answer
        """
        uuid = instance_info.uuid
        is_off = self.libvirt().runs(uuid) is False
        if not is_off or not self.has_guest(instance_info):
            return None
        uri = shlex.quote(self._uri())
        return f'virsh --connect {uri} undefine --keep-nvram {uuid}'

    def migration_map(
        self,
        vans_source: Sequence[objects.VAN],
        vans_target: Sequence[objects.VAN],
    ) -> objects.MigrationMap:
        """Say how the elements differ: the host's device, and who binds it.

        :raises InvalidRequest: if the VANs do not fit
        """
        from acc_plug_libvirt import moving

        return moving.migration_map(vans_source, vans_target)

    def redefine(
        self, definition: str, migration_map: objects.MigrationMap
    ) -> str:
        """Make the domain's XML for virDomainMigrate.

        It is both the XML of the running guest on the target
        (VIR_MIGRATE_PARAM_DEST_XML) and, made from the guest's definition,
        the one that is kept (VIR_MIGRATE_PARAM_PERSIST_XML). Without the
        second, libvirt keeps the source's devices there.

        :param definition: the domain's XML on the source
        :raises InvalidRequest: if the map does not fit the domain
        """
        from acc_plug_libvirt import moving

        return moving.redefine(definition, migration_map)

    def diagnose(self) -> Iterator[finding.Finding]:
        from acc_plug_libvirt import report

        conf = self.config
        return report.findings(self._uri(), conf.connect_timeout)

    def libvirt(self) -> connection.Connection:
        """The connection to libvirt that all threads share."""
        from acc_plug_libvirt import connection

        with self._connection_lock:
            uri = self._uri()
            if self._connection is None or self._connection.uri != uri:
                self._connection = connection.Connection(
                    uri, self.config.connect_timeout
                )
            return self._connection

    def _uri(self) -> str:
        """The URI of libvirt: the option, or Nova's own, or the default."""
        chosen: str = self.config.connection_uri
        return (
            chosen or nova_options.connection_uri(cfg.CONF) or options.DEFAULT
        )


def update_domain_xml(
    xml: str,
    old_vans: Sequence[objects.VAN],
    new_vans: Sequence[objects.VAN],
) -> str:
    """Rewrite a domain's hostdevs for the VANs of another host.

    See domain_xml.update_domain_xml. The module domain_xml is imported here
    because it loads lxml.
    """
    from acc_plug_libvirt import domain_xml

    return domain_xml.update_domain_xml(xml, old_vans, new_vans)
