# SPDX-License-Identifier: Apache-2.0

"""Which host devices a libvirt domain gives to QEMU by <qemu:commandline>.

libvirt does not know them: https://libvirt.org/drvqemu.html, "Pass-through of
arbitrary QEMU commands".
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
import re
from typing import Any
import uuid

from lxml import etree

from os_acc.kernel import pci_address

_ARGUMENT = '{http://libvirt.org/schemas/domain/qemu/1.0}arg'

# The domain may be left out, and zeros too: set_pci_host_devaddr() in QEMU's
# hw/core/qdev-properties-system.c.
_ADDRESS = re.compile(
    r'(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])', re.I
)


def devices(domain: etree._Element) -> Iterator[str]:
    """Yield the PCI addresses and the UUIDs of mediated devices.

    :param domain: the <domain>
    :returns: in the form of a handle, such as '0000:3b:00.0'
    """
    for argument in domain.iter(_ARGUMENT):
        for key, value in _properties(argument.get('value', '')):
            if key == 'host' and (address := _address(value)):
                yield address
            elif key == 'sysfsdev':
                name = os.path.basename(value.rstrip('/'))
                if found := _address(name) or _uuid(name):
                    yield found


def _properties(text: str) -> list[tuple[str, str]]:
    """The properties of a -device, in QEMU's own form or in JSON.

    :returns: none if it is no device of VFIO, such as vfio-pci-nohotplug
    """
    found: list[tuple[str, Any]]
    if text.startswith('{'):
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            return []
        found = list(read.items())
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
    return pci_address.join(*(int(part or '0', 16) for part in match.groups()))


def _uuid(text: str) -> str | None:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None
