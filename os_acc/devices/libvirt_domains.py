# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which libvirt domains have a device, according to libvirt's state files."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from os_acc.devices import sysfs

# Where libvirt keeps the state of its domains: stateDir, src/qemu/qemu_conf.c.
STATE_FOLDER = '/run/libvirt/qemu'


def users_of(
    pci_address: str | None, mdev_uuid: str | None, except_uuid: str
) -> list[str]:
    """Find the domains that are starting or running and have a device.

    :param pci_address: of the device; None if it is no PCI function
    :param mdev_uuid: of the device; None if it is no mediated device
    :param except_uuid: UUID of the domain that is allowed to have it
    :returns: a clause for each, such as 'libvirt domain web has it'
    """
    found = []
    for name in sysfs.names(STATE_FOLDER):
        if not name.endswith('.xml'):
            continue
        try:
            root = etree.parse(f'{STATE_FOLDER}/{name}').getroot()
        except (OSError, etree.XMLSyntaxError):
            continue
        domain = root.find('domain')
        if domain is None or domain.findtext('uuid') == except_uuid:
            continue
        if any(
            _is(address, pci_address, mdev_uuid)
            for address in _host_addresses(domain)
        ):
            found.append(f'libvirt domain {domain.findtext("name")} has it')
    return found


def _host_addresses(domain: etree._Element) -> Iterator[etree._Element]:
    for path in (
        "devices/hostdev[@type='pci']",
        "devices/hostdev[@type='mdev']",
        "devices/interface[@type='hostdev']",
        "devices/disk[@type='nvme']",
    ):
        yield from domain.iterfind(f'{path}/source/address')


def _is(
    address: etree._Element, pci_address: str | None, mdev_uuid: str | None
) -> bool:
    uuid = address.get('uuid')
    if uuid is not None:
        return uuid.lower() == mdev_uuid
    try:
        parts = [
            int(address.get(name, '0'), 16)
            for name in ('domain', 'bus', 'slot', 'function')
        ]
    except ValueError:
        return False
    return '%04x:%02x:%02x.%x' % tuple(parts) == pci_address
