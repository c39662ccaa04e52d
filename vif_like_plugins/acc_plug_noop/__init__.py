# SPDX-License-Identifier: Apache-2.0

"""The plugin for hosts where os-acc prepares devices but attaches none."""

from __future__ import annotations

from os_acc import objects
from os_acc import plugin


class NoopPlugin(plugin.PluginBase):
    """Accepts all handles of os-acc, and does nothing with them."""

    def describe(self) -> objects.HostPluginInfo:
        names = (
            'PCIHandle',
            'MdevHandle',
            'DRCHandle',
            'DeviceFileHandle',
            'BlockHandle',
            'TestHandle',
        )
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[objects.HostHandleInfo.of(name) for name in names],
        )

    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        pass

    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        pass
