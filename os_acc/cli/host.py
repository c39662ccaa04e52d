# SPDX-License-Identifier: Apache-2.0

"""os-acc host show: the drivers and plugins of this host."""

from __future__ import annotations

import argparse
from typing import Any

from cliff import columns

import os_acc
from os_acc.cli import base
from os_acc.cli import listing
from os_acc.operations import host_info


class HostShow(base.Command, listing.Listing):
    """Show drivers and plugins, handle types and load errors."""

    columns = (
        listing.Column('kind'),
        listing.Column('name'),
        listing.Column('handles'),
        listing.Column('guest_config', long=True),
        listing.Column('status'),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        host = base.look()
        info = host_info.describe(host, None)
        chosen = os_acc.CONF.os_acc.plugin
        rows: list[tuple[Any, ...]] = [
            ('driver', driver.driver_name, _Handles(driver), None, 'loaded')
            for driver in info.driver_info
        ]
        for plugin in info.plugin_info:
            status = 'loaded'
            if plugin.plugin_name == chosen:
                status += ", this host's plugin"
            rows.append(
                (
                    'plugin',
                    plugin.plugin_name,
                    _Handles(plugin),
                    plugin.guest_config_format,
                    status,
                )
            )
        for name, error in sorted(info.load_errors.items()):
            loaded = name not in host.extensions.errors
            status = f'{"faulty" if loaded else "not loaded"}: {error}'
            rows.append((*name.split(' ', 1), None, None, status))
        return self.keys(), rows


class _Handles(columns.FormattableColumn[Any]):
    """The handle classes of a driver or plugin; a table has one on a line."""

    def human_readable(self) -> str:
        return '\n'.join(self._names())

    def machine_readable(self) -> str:
        return ', '.join(self._names())

    def _names(self) -> list[str]:
        return [
            f'{i.handle_object_name} {i.min_version}'
            + (f'-{i.max_version}' if i.max_version != i.min_version else '')
            for i in self._value.handle_info
        ]
