# SPDX-License-Identifier: Apache-2.0

"""A plugin for a hypervisor whose guests are lists in a file."""

import os

from oslo_config import cfg

from os_acc import objects
from os_acc import plugin


class ExamplePlugin(plugin.PluginBase):
    CONFIG_OPTS = (
        cfg.StrOpt('element', default='slot', help='What a guest has.'),
        cfg.StrOpt('guests', help='Directory of the guests that run.'),
    )

    def describe(self):
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[objects.HostHandleInfo.of('TestHandle')],
        )

    def plug(self, van, instance_info, live):
        van.guest_config = f'<{self.config.element} {van.handle.name}>'
        if live:
            self._change(instance_info, {van.handle.name}, set())

    def unplug(self, van, instance_info, live):
        if live:
            self._change(instance_info, set(), {van.handle.name})

    def _change(self, instance_info, new, gone):
        path = os.path.join(self.config.guests, instance_info.uuid)
        present = set()
        if os.path.exists(path):
            with open(path, encoding='utf-8') as file:
                present = set(file.read().split())
        with open(path, 'w', encoding='utf-8') as file:
            file.write(' '.join(sorted((present | new) - gone)))
