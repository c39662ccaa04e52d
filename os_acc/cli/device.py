# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc device list, device show: the accelerators of this host."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from cliff import lister
from cliff import show

from os_acc import discovery
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
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
            devices = discovery.devices(base.host(base.open_journal()))
        except exception.DiscoveryFailed as err:
            # What the other drivers found is still worth a look.
            devices, self.failed = err.devices, err
        names = [
            name.replace('_', ' ').capitalize() for name in _DEVICE_COLUMNS
        ]
        return names, [
            [
                base.Nullable(_plain(getattr(device, name)))
                for name in _DEVICE_COLUMNS
            ]
            for device in devices
        ]

    failed: exception.DiscoveryFailed | None = None

    def produce_output(self, *args: Any) -> int:
        result: int = super().produce_output(*args)
        if self.failed is not None:
            raise self.failed
        return result


class DeviceShow(base.Command, show.ShowOne):
    """Show all that is known of a device, and whether it can be given out."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'address',
            metavar='ADDRESS',
            help='as device list gives it; or of a VF, a mediated device '
            '(its UUID), or any other PCI function',
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Sequence[Any]]:
        wanted = parsed_args.address.lower()
        host = base.host(base.open_journal())
        told: dict[str, Any] = {}
        for device in _devices_at(host, wanted):
            told |= {
                name.replace('_', ' '): _plain(getattr(device, name))
                for name in _DEVICE_COLUMNS
            }
        for _, driver in sorted(host.extensions.drivers.items()):
            for name, value in (driver.show_device(wanted) or {}).items():
                told.setdefault(name, value)
        if not told:
            raise exception.DeviceNotFound(
                wanted=parsed_args.address,
                reason='no driver knows such an address on this host',
            )
        return (
            [name.capitalize() for name in told],
            [base.Nullable(value) for value in told.values()],
        )


def _devices_at(host: host_module.Host, address: str) -> list[objects.Device]:
    try:
        devices = discovery.devices(host)
    except exception.DiscoveryFailed as err:
        devices = err.devices
    return [device for device in devices if device.address == address]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value
