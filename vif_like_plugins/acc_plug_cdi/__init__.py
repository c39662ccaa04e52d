# SPDX-License-Identifier: Apache-2.0

"""The plugin cdi: device files for containers, by a CDI spec for each VAN."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator

from oslo_config import cfg

from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc import plugin
from os_acc.containers import options as container_opts

HANDLES = ('PCIHandle', 'MdevHandle', 'DeviceFileHandle', 'BlockHandle')


class CDIPlugin(plugin.PluginBase):
    """The plugin for container runtimes that know CDI.

    guest_config is the qualified name of the device, such as
    ``os-acc.openstack.org/accelerator=UUID``: that is how a runtime is told
    which device a container gets, as in ``podman run --device NAME``. A
    container gets its devices when it starts, so nothing is live.

    The Container Device Interface (CDI):
    https://github.com/cncf-tags/container-device-interface
    """

    CONFIG_OPTS = container_opts.OPTS
    supports_live = False

    def describe(self) -> objects.HostPluginInfo:
        return objects.HostPluginInfo(
            plugin_name=self.name,
            guest_config_format='cdi-device',
            handle_info=[objects.HostHandleInfo.of(name) for name in HANDLES],
        )

    def has_guest(self, instance_info: objects.InstanceInfo) -> bool | None:
        """Whether a container has a device of the instance.

        :returns: None if there is none: a container may still be started
        :raises PrivilegeError: if not all processes of the host can be seen
        """
        # The import is here because it loads the privileged half.
        from os_acc.privileged import container_specs

        return bool(container_specs.users_of(instance_info.uuid)) or None

    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Write the spec, and set guest_config to the name of the device.

        :raises DeviceError: if a container cannot use the device as it is
        :raises InvalidRequest: if another VAN of the instance sets a variable
            or a path to another value
        :raises DeviceBusy: if somebody else's spec has the name
        """
        from os_acc.privileged import container_specs

        van.guest_config = container_specs.write(
            van.uuid, van.instance_uuid, _primitive(van)
        )

    def restore(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        """Write the spec again, with the numbers that the files have now."""
        self.plug(van, instance_info, live=False)

    def is_intact(self, van: objects.VAN) -> bool:
        """Whether the spec is there and fits the device and the options.

        Also False if the device is gone, or if no container can use it as it
        is, such as a function that is not bound to VFIO. restore() then says
        why, unless the driver has repaired the device before.
        """
        from os_acc.privileged import container_specs

        try:
            return container_specs.is_written(van.uuid, _primitive(van))
        except (exception.DeviceError, exception.DeviceNotFound):
            return False

    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Remove the spec, and wait until no container has the device.

        :raises DeviceBusy: if a container still has it
        """
        from os_acc.privileged import container_specs

        container_specs.withdraw(
            van.uuid, van.time_left(cfg.CONF.os_acc.release_timeout)
        )

    def diagnose(self) -> Iterator[finding.Finding]:
        from acc_plug_cdi import report
        from acc_plug_cdi import runtimes

        yield from report.directory(self.config.spec_dir)
        yield from runtimes.findings(self.config.spec_dir)
        yield from report.entries(cfg.CONF)
        yield from report.users()

    def leftovers(
        self, van_uuids: Collection[str]
    ) -> Iterator[finding.Finding]:
        from acc_plug_cdi import report

        return report.leftovers(
            self.config.spec_dir, self.config.kind, van_uuids
        )


def _primitive(van: objects.VAN) -> dict[str, object]:
    handle = van.handle
    assert handle is not None
    return handle.obj_to_primitive()
