# SPDX-License-Identifier: Apache-2.0

"""Checks what the document of os-acc apply reserves."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc import exception
from os_acc import finding
from os_acc import host as host_module
from os_acc import objects
from os_acc import reserved
from os_acc.operations import discovery

SUBJECT = 'reserved devices'


def findings(host: host_module.Host) -> Iterator[finding.Finding]:
    """Report who may have each device, and whether this host has it."""
    try:
        reservations = reserved.read(host.journal)
    except exception.JournalError:
        return  # The module state reports it.
    except exception.InvalidRequest as err:
        yield finding.Finding(
            SUBJECT,
            finding.ERROR,
            f'no instance gets a device: {err}',
            'run os-acc apply again',
        )
        return
    if not reservations:
        return
    try:
        devices = discovery.devices(host)
    except exception.DiscoveryFailed as err:
        devices = list(err.devices)
    places = {
        (address, region)
        for device in devices
        for address, region in _places(device)
    }
    for each in reservations:
        subject = f'reserved device {each.label}'
        if any(each.is_about({address}, region) for address, region in places):
            yield finding.Finding(subject, finding.OK, each.text)
        else:
            yield finding.Finding(
                subject,
                finding.WARNING,
                f'{each.text}, but no driver reports it on this host',
                'correct device and region in reserved of the document, and '
                'run os-acc apply again; os-acc device list has the devices',
            )


def _places(device: objects.Device) -> Iterator[tuple[str, str | None]]:
    """The addresses and regions that a device and its handles have."""
    for region in device.functions or (None,):
        yield device.address, region
    for each in device.handles:
        yield each.handle.identity.partition('/')[2], each.region
