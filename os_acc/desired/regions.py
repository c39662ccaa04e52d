# SPDX-License-Identifier: Apache-2.0

"""The regions of this host that pools may use, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import datetime

from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc import reserved
from os_acc.desired import documents
from os_acc.desired import filling
from os_acc.journal import programs
from os_acc.kernel import pci
from os_acc.objects import device as device_objects
from os_acc.operations import discovery
from os_acc.programming import place
from os_acc.programming import records
from os_acc.spec import device_spec

#: Seconds for which a region keeps what it was programmed with, or rests after
#: a programming that has failed.
REST = 300

_USED = (device_objects.USED, device_objects.HOST)


def devices_of(
    host: host_module.Host,
) -> tuple[list[objects.Device], str | None]:
    """The devices of this host, and why others may be missing; None: none."""
    try:
        return discovery.devices(host), None
    except exception.DiscoveryFailed as err:
        return list(err.devices), exception.describe(err)


def find(
    host: host_module.Host,
    document: documents.Document,
    devices: Sequence[objects.Device],
    now: datetime.datetime,
) -> list[filling.Region]:
    """Find the regions of devices that can be programmed.

    Each is there once, even if several devices give access to it.
    """
    failed = {e.address for e in devices if e.health != device_objects.OK}
    resting = _resting(host, now)
    places: dict[tuple[str, str], list[objects.Device]] = {}
    for device in devices:
        if device.address not in failed:
            for region in device.functions:
                key = place.of(device, region)
                places.setdefault(key, []).append(device)
    found = []
    for (_, region), those in places.items():
        made = _region(document, region, those)
        if made is not None:
            addresses = set().union(*map(place.addresses, those))
            rests = any(
                each.region == region
                and addresses & {each.device, each.address}
                for each in resting
            )
            late = any(_needs_power_cycle(host, e.address) for e in those)
            fixed = made.fixed or rests or late or bool(failed & addresses)
            found.append(dataclasses.replace(made, fixed=fixed))
    return found


def _region(
    document: documents.Document, region: str, those: Sequence[objects.Device]
) -> filling.Region | None:
    """One region, as the devices that give access to it show it.

    :returns: None: pools may not use it. It is fixed if a part of the document
        names its function
    """
    handles = [
        each
        for device in those
        for each in device.handles
        if records.overlaps(region, each.region)
    ]
    only = _reservations(document, region, those, handles)
    if any(each.project for each in only):
        return None  # the requests of other projects do not get it
    names = [f'{each.address} {region}'.strip() for each in those]
    inside = [each.functions[region] for each in those]
    states = [each.state for each in handles]
    return filling.Region(
        names[0],
        those[0].address,
        region,
        next((each for each in inside if each is not None), None),
        used=any(each in _USED for each in states),
        free=device_objects.FREE in states,
        fixed=any(each.label in names for each in document.functions),
        kinds=tuple(
            filling.Kind(each.resource_class, frozenset(each.traits))
            for each in those
        ),
        only=tuple(each.function for each in only if each.function),
    )


def is_near(
    at: str, now: datetime.datetime, period: datetime.timedelta
) -> bool:
    """Whether a time is at most a period away from now.

    What is further in the future was written while the clock was wrong.

    :param at: of the journal, in UTC, with or without its zone
    """
    then = datetime.datetime.fromisoformat(at).replace(tzinfo=datetime.UTC)
    return abs(now - then) < period


def _reservations(
    document: documents.Document,
    region: str,
    devices: Sequence[objects.Device],
    handles: Sequence[objects.DeviceHandleInfo],
) -> list[reserved.Reserved]:
    """What a document reserves of a region, through whichever device."""
    addresses = {each.address for each in devices}.union(
        *(reserved.names(None, each.handle) for each in handles)
    )
    return [e for e in document.reserved if e.is_about(addresses, region)]


def _resting(
    host: host_module.Host, now: datetime.datetime
) -> list[programs.Program]:
    """The programmings of the last REST seconds, failed ones too."""
    return [
        each
        for each in host.journal.programs()
        if each.updated_at
        and each.state != programs.CLEARED
        and is_near(each.updated_at, now, datetime.timedelta(seconds=REST))
    ]


def _needs_power_cycle(host: host_module.Host, address: str) -> bool:
    """Whether a device has a function only after the host was switched off."""
    function = pci.find(address) if pci.is_address(address) else None
    if function is None:
        return False
    spec = device_spec.load(host.conf).find(function)
    return spec is not None and spec.activation == device_spec.COLD_REBOOT
