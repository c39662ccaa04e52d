# SPDX-License-Identifier: Apache-2.0

"""os-acc device list, device show: the accelerators of this host."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable
from typing import Any

from cliff import columns

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import host as host_module
from os_acc import journal as journal_module
from os_acc import objects
from os_acc.availability import nothing_offered
from os_acc.cli import base
from os_acc.cli import listing
from os_acc.cli import names
from os_acc.doctor import entries
from os_acc.objects import device as device_objects
from os_acc.operations import discovery
from os_acc.spec import device_spec

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
    'health',
)


# What a table has without --long.
_SHORT = (
    'address',
    'resource_class',
    'handles_total',
    'handles_free',
    'health',
)

_TITLES = {'handles_total': 'Total', 'handles_free': 'Free'}


class _NotFree(columns.FormattableColumn[dict[str, int]]):
    """How many handles are in each state other than free."""

    def human_readable(self) -> str:
        return ', '.join(f'{n} {state}' for state, n in self._value.items())


class _Handles(columns.FormattableColumn[list[dict[str, Any]]]):
    """The handles of a device. In a table, each is on a line of its own."""

    def human_readable(self) -> str:
        return '\n'.join(map(_handle_line, self._value))


def _handle_line(handle: dict[str, Any]) -> str:
    text = f'{handle["handle"]}: {handle["state"]}'
    if handle['region']:
        text += f', region {handle["region"]}'
    if handle['reason'] is not None:
        text += f', {handle["reason"]}'
    if handle['holder'] is not None:
        text += f' (VAN {handle["holder"]})'
    return text


class _MdevTypes(columns.FormattableColumn[list[dict[str, Any]]]):
    """The mdev types of a device. In a table, each is on its own line."""

    def human_readable(self) -> str:
        return '\n'.join(
            f'{kind["name"]} ({kind["label"]}): {kind["available"]} more can '
            f'be given out, {kind["capacity"]} fit'
            for kind in self._value
        )


class _Functions(columns.FormattableColumn[dict[str, str | None]]):
    """The function of each region. In a table, each is on its own line."""

    def human_readable(self) -> str:
        return '\n'.join(
            (f'region {region}: ' if region else '') + (function or 'unknown')
            for region, function in self._value.items()
        )


class DeviceList(base.Command, listing.Listing):
    """List the accelerators that the drivers find on this host.

    Free counts the handles that are available now. With --long, Not free says
    why the others are not: used, used by the host, absent or reserved. device
    show gives the reason for each. A device whose Health is not ok is assigned
    to nobody: see os-acc device free. If an entry of device_spec offers
    nothing, standard error says why.
    """

    configured = True

    columns = (
        *(
            listing.Column(key, _TITLES.get(key, ''), key not in _SHORT)
            for key in _DEVICE_COLUMNS
        ),
        listing.Column('not_free', long=True),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        host = base.look()
        self._tell_unreadable(host.journal)
        base.tell_if_empty(host.journal)
        self._tell_nothing_offered(host)
        try:
            devices = discovery.devices(host)
        except exception.DiscoveryFailed as err:
            # Print the devices that were found. Then produce_output() fails.
            devices, self.failed = err.devices, err
        return self.keys(), [
            [
                *_fields(device, *_DEVICE_COLUMNS).values(),
                _NotFree(_not_free(device)),
            ]
            for device in devices
        ]

    failed: exception.DiscoveryFailed | None = None

    def _tell_unreadable(self, journal: journal_module.Journal) -> None:
        """Warn of VANs that cannot be read, which no driver can report."""
        for row in journal.unreadable():
            self.say(
                f'VAN {row.van_uuid} of instance {row.instance_uuid} is '
                f'unreadable: {row.reason} (handle {row.handle}, device '
                f'{row.device})'
            )

    def _tell_nothing_offered(self, host: host_module.Host) -> None:
        """Say why entries of device_spec offer nothing."""
        specs = device_spec.load_for_vans(host.conf)
        if isinstance(specs, device_spec.Unreadable):
            return  # no driver can list its devices, and the error says why
        try:
            found = nothing_offered.find(specs, entries.holders(host.journal))
        except Exception as err:
            self.say(f'device_spec: {exception.describe(err)}')
            return
        for each in found:
            self.say(each.text)

    def produce_output(self, *args: Any) -> int:
        result: int = super().produce_output(*args)
        if self.failed is not None:
            raise self.failed
        return result


class DeviceShow(base.Command, listing.Showing):
    """Show all details of a device, and whether it can be plugged."""

    configured = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'address',
            metavar='ADDRESS',
            help='an address that device list shows, the address of any PCI '
            'function, the UUID of a mediated device or its first 8 or more '
            'characters, or the path of a device file',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        wanted = names.device(parsed_args.address)
        host = base.look()
        shown: dict[str, Any] = {}
        devices = base.devices(host)
        wanted = names.mediated_device(_mediated(devices), wanted)
        for device in devices:
            if device.address == wanted:
                shown |= _shown(device, shown)
        for _, driver in sorted(host.extensions.drivers.items()):
            for name, value in self._shown_by(driver, wanted).items():
                # A driver's names may have blanks.
                shown.setdefault(name.lower().replace(' ', '_'), value)
        unreadable = [
            f'{row.van_uuid} of instance {row.instance_uuid}: {row.reason}'
            for row in host.journal.unreadable()
            if wanted in (row.device, (row.handle or '').rpartition('/')[2])
        ]
        if unreadable:
            shown['unreadable_vans'] = unreadable
        if not shown:
            raise exception.DeviceNotFound(
                wanted=parsed_args.address,
                reason='no driver reports this address on this host',
            )
        return list(shown), list(shown.values())

    def _shown_by(
        self, driver: driver_base.DriverBase, address: str
    ) -> dict[str, Any]:
        """Return what a driver shows of a device.

        If the driver fails, its error is printed and nothing is returned.
        """
        try:
            return dict(driver.show_device(address) or {})
        except Exception as err:
            self.say(f'driver {driver.name!r}: {exception.describe(err)}')
            return {}


def _mediated(devices: Iterable[objects.Device]) -> set[str]:
    return {
        each.handle.uuid
        for device in devices
        for each in device.handles
        if isinstance(each.handle, objects.MdevHandle)
    }


def _not_free(device: objects.Device) -> dict[str, int]:
    states = collections.Counter(each.state for each in device.handles)
    del states[device_objects.FREE]
    return dict(states)


def _shown(device: objects.Device, before: dict[str, Any]) -> dict[str, Any]:
    """What is shown of a device.

    :param before: what was shown of other devices at the same address: the
        VFs of a PF that other entries of device_spec name
    """
    shown = _fields(device, *_DEVICE_COLUMNS)
    handles = [
        {
            'handle': each.handle.identity,
            **_fields(each, 'state', 'holder', 'reason', 'region'),
        }
        for each in device.handles
    ]
    kinds = [
        _fields(kind, 'name', 'label', 'capacity', 'available')
        for kind in device.mdev_types
    ]
    if 'handles' in before:
        handles = before['handles'].machine_readable() + handles
        for name in ('handles_total', 'handles_free'):
            shown[name] += before[name]
        for name in ('resource_class', 'traits'):
            shown[name] = _joined(before[name], shown[name])
    if device.health != device_objects.OK:
        shown['health_reason'] = device.health_reason
        shown['health_since'] = device.health_since
    shown['handles'] = _Handles(handles)
    if kinds:
        shown['mdev_types'] = _MdevTypes(kinds)
    if device.functions:
        shown['functions'] = _Functions(dict(device.functions))
    return shown


def _joined(one: Any, other: Any) -> list[Any]:
    both = [*_listed(one), *_listed(other)]
    return list(dict.fromkeys(both))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _fields(described: objects.VersionedObject, *names: str) -> dict[str, Any]:
    """Some fields of an object; its lists as lists of Python."""
    values = {name: getattr(described, name) for name in names}
    return {
        name: list(value) if isinstance(value, list) else value
        for name, value in values.items()
    }
