# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""PCI functions, as /sys/bus/pci shows them. Needs no privilege."""

from __future__ import annotations

import dataclasses
import os
import re

from os_acc import exception
from os_acc.devices import sysfs

# The kernel prints the domain with %04x: drivers/pci/probe.c
_BDF = re.compile(r'[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]')

_MODALIAS = re.compile(
    'pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})'
    'sv[0-9A-F]{8}sd[0-9A-F]{8}'
    'bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})'
)

NO_OVERRIDE = '(null)'  # what driver_override reads when it is unset

# Folders that any function may have: drivers/base/power/sysfs.c,
# drivers/pci/pcie/aspm.c, kernel/irq/msi.c
_OF_ANY = frozenset({'power', 'link', 'msi_irqs'})

# Base classes of include/linux/pci_ids.h
CLASS_STORAGE = 0x01
CLASS_NETWORK = 0x02
CLASS_DISPLAY = 0x03
CLASS_BRIDGE = 0x06


def is_address(text: str) -> bool:
    """Whether a text is a PCI address in its canonical form."""
    return _BDF.fullmatch(text) is not None


def folder(address: str) -> str:
    """The folder of a function.

    :raises InvalidRequest: the address is none
    """
    if not is_address(address):
        raise exception.InvalidRequest(
            subject='PCI function',
            field='address',
            value=address,
            expected='a PCI address, dddd:bb:ss.f, in lower case',
        )
    return f'{sysfs.SYS}/bus/pci/devices/{address}'


def driver_folder(driver: str) -> str:
    return f'{sysfs.SYS}/bus/pci/drivers/{driver}'


def addresses() -> list[str]:
    """Of every function of this host, sorted."""
    return sysfs.names(f'{sysfs.SYS}/bus/pci/devices')


@dataclasses.dataclass(slots=True)
class Function:
    """A PCI function as it was found.

    :ivar vendor_id: 4 hex digits, as product_id
    :ivar pci_class: 24 bits: base class, sub-class, programming interface
    :ivar driver: what it is bound to
    :ivar entries: the names in its folder
    :ivar pf: the address of a VF's PF, where it is known without a look
    """

    address: str
    vendor_id: str
    product_id: str
    pci_class: int
    modalias: str
    driver: str | None
    entries: frozenset[str]
    pf: str | None = None

    @property
    def path(self) -> str:
        return folder(self.address)

    @property
    def ids(self) -> str:
        """vendor:product"""
        return f'{self.vendor_id}:{self.product_id}'

    @property
    def base_class(self) -> int:
        return self.pci_class >> 16

    @property
    def is_bridge(self) -> bool:
        return self.base_class == CLASS_BRIDGE

    @property
    def is_vf(self) -> bool:
        return 'physfn' in self.entries

    @property
    def is_pf(self) -> bool:
        """Whether it can have VFs."""
        return 'sriov_totalvfs' in self.entries

    @property
    def physfn(self) -> str | None:
        """The address of a VF's PF."""
        if self.pf is None and self.is_vf:
            return sysfs.link(f'{self.path}/physfn')
        return self.pf

    @property
    def parent(self) -> str:
        """The address of the device that it is a part of."""
        return self.physfn or self.address

    @property
    def parts(self) -> list[str]:
        """What a driver made of it, by the names of their folders."""
        return [
            name for name in sysfs.folders(self.path) if name not in _OF_ANY
        ]

    @property
    def vf_addresses(self) -> list[str]:
        """Of the VFs that a PF has now, in the order of their numbers."""
        links = [e for e in self.entries if e.startswith('virtfn')]
        links.sort(key=lambda name: int(name.removeprefix('virtfn')))
        found = (sysfs.link(f'{self.path}/{name}') for name in links)
        return [address for address in found if address is not None]

    @property
    def iommu_group(self) -> str | None:
        """The number of its IOMMU group; None: it is behind no IOMMU."""
        return sysfs.link(f'{self.path}/iommu_group')

    @property
    def numa_node(self) -> int | None:
        """None: the firmware does not say (the kernel shows -1)."""
        node = sysfs.read_int(f'{self.path}/numa_node')
        return None if node is None or node < 0 else node

    @property
    def driver_override(self) -> str | None:
        """Reading it may block: see vfio.read_binding()."""
        text = sysfs.read(f'{self.path}/driver_override')
        return None if text in (None, '', NO_OVERRIDE) else text


def get(address: str) -> Function:
    """Look at a function.

    :raises DeviceNotFound: there is none at the address
    """
    found = find(address)
    if found is None:
        raise exception.DeviceNotFound(
            wanted=f'PCI function {address}', reason='no such address here'
        )
    return found


def find(address: str) -> Function | None:
    """Look at a function; None where there is none, or it is going away.

    :raises DeviceError: it is there, and cannot be read
    """
    path = folder(address)
    try:
        entries = frozenset(os.listdir(path))
    except FileNotFoundError:
        return None
    text = sysfs.read(f'{path}/modalias')
    if not text:
        # "Gone" is what ends an undo: be sure of it.
        if os.path.exists(f'{path}/modalias'):
            raise exception.DeviceError(
                device=f'PCI function {address}',
                reason='its modalias cannot be read',
            )
        return None
    # One read for all of the ids: modalias_show() in drivers/pci/pci-sysfs.c.
    # Not uevent: to read it may wait for the device's lock, for as long as an
    # unbind of it is blocked (seen on Debian's Linux 6.1).
    match = _MODALIAS.match(text)
    if match is None:
        raise exception.DeviceError(
            device=f'PCI function {address}',
            reason=f'its modalias is {text!r}',
        )
    return Function(
        address=address,
        vendor_id=match[1].lower(),
        product_id=match[2].lower(),
        pci_class=int(match[3] + match[4] + match[5], 16),
        modalias=text,
        driver=sysfs.link(f'{path}/driver') if 'driver' in entries else None,
        entries=entries,
    )


def driver_of(address: str) -> str | None:
    """The driver that a function is bound to now."""
    return sysfs.link(f'{folder(address)}/driver')


def group_members(group: str) -> list[str]:
    """Of an IOMMU group: addresses, or names where it is no PCI."""
    return sysfs.names(f'{sysfs.SYS}/kernel/iommu_groups/{group}/devices')
