# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc device list, host show: what this host has."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from cliff import lister

import os_acc
from os_acc import exception
from os_acc import host
from os_acc import loader
from os_acc.cli import base

_DEVICE_COLUMNS = (
    'address',
    'driver',
    'vendor_id',
    'product_id',
    'resource_class',
    'traits',
    'numa_node',
    'handles_total',
    'handles_free',
    'programming',
    'function_id',
)


class DeviceList(base.Command, lister.Lister):
    """List the accelerators that the drivers discover on this host."""

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        try:
            devices = host.devices(base.extensions())
        except exception.DiscoveryFailed as err:
            # What the other drivers found is still worth a look.
            devices, self.failed = err.devices, err
        names = [
            name.replace('_', ' ').capitalize() for name in _DEVICE_COLUMNS
        ]
        return names, [
            [_plain(getattr(device, name)) for name in _DEVICE_COLUMNS]
            for device in devices
        ]

    failed: exception.DiscoveryFailed | None = None

    def produce_output(self, *args: Any) -> int:
        result: int = super().produce_output(*args)
        if self.failed is not None:
            raise self.failed
        return result


class HostShow(base.Command, lister.Lister):
    """Show drivers and plugins, what they speak, and what did not load."""

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        info = host.info(loader.load_all(), None)
        chosen = os_acc.CONF.os_acc.plugin
        rows: list[tuple[Any, ...]] = [
            ('driver', driver.driver_name, _handles(driver), 'loaded')
            for driver in info.driver_info
        ]
        for plugin in info.plugin_info:
            status = 'loaded'
            if plugin.plugin_name == chosen:
                status += ", this host's plugin"
            rows.append(
                ('plugin', plugin.plugin_name, _handles(plugin), status)
            )
        for name, error in sorted(info.load_errors.items()):
            rows.append((*name.split(' ', 1), '', f'not loaded: {error}'))
        return ('Kind', 'Name', 'Handles', 'Status'), rows


def _handles(info: Any) -> str:
    return ', '.join(
        f'{i.handle_object_name} {i.min_version}'
        + (f'-{i.max_version}' if i.max_version != i.min_version else '')
        for i in info.handle_info
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value
