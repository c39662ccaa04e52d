# SPDX-License-Identifier: Apache-2.0

"""Which libvirt domains have a device, according to libvirt's state files."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import json
import os
import re
from typing import Any

from lxml import etree

from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import refusals
from os_acc.texts import forms

# Where libvirt keeps the state of its domains: stateDir, src/qemu/qemu_conf.c.
STATE_DIRECTORY = '/run/libvirt/qemu'


@dataclasses.dataclass(frozen=True)
class Domain:
    """A domain that is starting or running."""

    name: str | None
    uuid: str | None
    pid: str | None  # of its QEMU, in decimal digits
    # its host devices that need VFIO: PCI addresses, and UUIDs of mediated
    # devices
    devices: list[str]


def running() -> Iterator[Domain]:
    """Read the state files of all domains."""
    for name in sysfs.names(STATE_DIRECTORY):
        if not name.endswith('.xml'):
            continue
        try:
            root = etree.parse(f'{STATE_DIRECTORY}/{name}').getroot()
        except (OSError, etree.XMLSyntaxError):
            continue
        domain = root.find('domain')
        if domain is not None:
            yield Domain(
                domain.findtext('name'),
                domain.findtext('uuid'),
                root.get('pid'),
                [
                    *filter(None, map(_device, _host_addresses(domain))),
                    *devices(domain),
                ],
            )


def users_of(
    pci_address: str | None, mdev_uuid: str | None, except_uuid: str
) -> list[str]:
    """Find the domains that are starting or running and have a device.

    :param except_uuid: UUID of the domain that is allowed to have it
    :returns: a clause for each, such as 'libvirt domain web has it'
    """
    return [
        refusals.DOMAIN.reason(name=domain.name).text
        for domain in running()
        if domain.uuid != except_uuid
        and (pci_address in domain.devices or mdev_uuid in domain.devices)
    ]


def _host_addresses(domain: etree._Element) -> Iterator[etree._Element]:
    for path in (
        "devices/hostdev[@type='pci']",
        "devices/hostdev[@type='mdev']",
        "devices/interface[@type='hostdev']",
        "devices/disk[@type='nvme']",
    ):
        yield from domain.iterfind(f'{path}/source/address')


def _device(address: etree._Element) -> str | None:
    """The PCI address or UUID of a host device, in the form of a handle."""
    uuid = address.get('uuid')
    if uuid is not None:
        return str(uuid).lower()
    try:
        parts = [
            int(address.get(name, '0'), 16)
            for name in ('domain', 'bus', 'slot', 'function')
        ]
    except ValueError:
        return None
    return pci.join(*parts)


_ARGUMENT = '{http://libvirt.org/schemas/domain/qemu/1.0}arg'

# The domain may be left out, and zeros too: set_pci_host_devaddr() in QEMU's
# hw/core/qdev-properties-system.c.
_ADDRESS = re.compile(
    r'(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])', re.I
)


def devices(domain: etree._Element) -> Iterator[str]:
    """The PCI addresses and UUIDs of mdevs in <qemu:commandline>.

    libvirt does not know these host devices: https://libvirt.org/drvqemu.html,
    "Pass-through of arbitrary QEMU commands".
    """
    for argument in domain.iter(_ARGUMENT):
        for key, value in _properties(argument.get('value', '')):
            if key == 'host' and (address := _address(value)):
                yield address
            elif key == 'sysfsdev':
                name = os.path.basename(value.rstrip('/'))
                if found := _address(name) or forms.uuid(name):
                    yield found


def _properties(text: str) -> list[tuple[str, str]]:
    """The properties of a VFIO -device, in QEMU's own form or in JSON."""
    found: list[tuple[str, Any]]
    if text.startswith('{'):
        try:
            found = list(json.loads(text).items())
        except (ValueError, RecursionError):
            return []
    else:
        # Two commas stand for one in a value.
        text = text.replace(',,', '\0')
        parts = (each.partition('=') for each in text.split(','))
        found = [(key, end.replace('\0', ',')) for key, _, end in parts]
        # The driver is the first property, also without its name.
        if found[0][1] == '':
            found[0] = 'driver', found[0][0]
    driver = str(dict(found).get('driver', ''))
    if not driver.startswith('vfio-'):
        return []
    return [(key, str(value)) for key, value in found]


def _address(text: str) -> str | None:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    return pci.join(*(int(part or '0', 16) for part in match.groups()))
