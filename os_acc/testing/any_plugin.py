# SPDX-License-Identifier: Apache-2.0

"""AnyPlugin: a plugin that takes every attach handle, and attaches none."""

from __future__ import annotations

from os_acc import objects
from os_acc import plugin
from os_acc.objects import base


class AnyPlugin(plugin.PluginBase):
    """Takes the handles of every class that is registered.

    Also those of an author's own class. It keeps nothing on the host, so a
    test that uses it tests the driver alone.
    """

    def describe(self) -> objects.HostPluginInfo:
        objects.register_all()
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[
                objects.HostHandleInfo.of(name)
                for name, found in sorted(
                    base.VersionedObjectRegistry.obj_classes().items()
                )
                if issubclass(found[0], objects.AttachHandle)
                and found[0] is not objects.AttachHandle
            ],
        )

    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        assert van.handle is not None
        van.guest_config = van.handle.identity

    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Do nothing: nothing is attached."""
