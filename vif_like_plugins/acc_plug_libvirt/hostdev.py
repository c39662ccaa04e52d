# SPDX-License-Identifier: Apache-2.0

"""The <hostdev> element of a VAN.

Its format: https://libvirt.org/formatdomain.html#host-device-assignment
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os
from typing import Any
from typing import Self

from lxml import etree

from os_acc import exception
from os_acc import objects
from os_acc.kernel import pci

ALIAS = 'ua-acc-'

# libvirt names its mdev models as the kernel names the device APIs
# (Documentation/ABI/testing/sysfs-bus-vfio-mdev).
MODELS = ('vfio-pci', 'vfio-ap', 'vfio-ccw')
#: The kernel's file that contains the device API of an mdev.
MDEV_API = '/sys/bus/mdev/devices/{}/mdev_type/device_api'
# Maps the part of an mdev type before the hyphen to the device API:
# drivers/s390/crypto/vfio_ap_ops.c, drivers/s390/cio/vfio_ccw_ops.c
_TYPE_APIS = {'vfio_ap': 'vfio-ap', 'vfio_ccw': 'vfio-ccw'}


@dataclasses.dataclass(frozen=True)
class Builder:
    """Builds the <hostdev> of VANs with the options of [os_acc_libvirt].

    :ivar driver: the attributes of <driver>; if empty, <driver> is left out
    :ivar guest_addresses: maps a device on the host (its canonical PCI
        address or mdev UUID) to the PCI address that it has in the guest
    """

    managed: bool
    driver: dict[str, str]
    rom_bar: bool | None
    display: bool
    ramfb: bool
    guest_addresses: dict[str, str]

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read the options.

        :param config: the values of [os_acc_libvirt]
        """
        driver = {}
        if config.vfio_driver:
            driver = {'name': 'vfio', 'model': config.vfio_driver}
        if config.iommufd is not None:
            driver['iommufd'] = _yes_no(config.iommufd)
        addresses = _guest_addresses(config.guest_addresses)
        return cls(
            managed=config.managed,
            driver=driver,
            rom_bar=config.rom_bar,
            display=config.display,
            ramfb=config.ramfb,
            guest_addresses=addresses,
        )

    def build(self, van: objects.VAN) -> str | None:
        """Build the <hostdev> of a VAN.

        :returns: XML text; None for a TestHandle, which has no device
        :raises UnsupportedHandle: if the VAN has no handle, or one that
            libvirt cannot attach
        :raises InvalidRequest: if a hint in driver_data or an option is
            invalid
        """
        handle = van.handle
        if isinstance(handle, objects.PCIHandle):
            name = handle.address
            hostdev = self._pci(name, handle.managed, van.driver_data)
        elif isinstance(handle, objects.MdevHandle):
            name = handle.uuid
            hostdev = self._mdev(name, _model(handle, van))
        elif isinstance(handle, objects.TestHandle):
            return None
        else:
            raise exception.UnsupportedHandle(
                taker="plugin 'libvirt'",
                handle=handle.obj_name() if handle is not None else None,
                takes='PCIHandle, MdevHandle, BlockHandle, TestHandle',
            )
        etree.SubElement(hostdev, 'alias').set('name', f'{ALIAS}{van.uuid}')
        guest_address = van.driver_data.get(
            'guest_address', self.guest_addresses.get(name)
        )
        # The guest does not see an AP or CCW mdev as a PCI device.
        if guest_address is not None and hostdev.get('model') in (
            None,
            'vfio-pci',
        ):
            _add_guest_address(hostdev, guest_address, van)
            _check_guest_address(hostdev, guest_address, van)
        return etree.tostring(hostdev, encoding='unicode', pretty_print=True)

    def _pci(
        self, address: str, managed: bool | None, hints: dict[str, str]
    ) -> etree._Element:
        hostdev = etree.Element('hostdev')
        hostdev.set('mode', 'subsystem')
        hostdev.set('type', 'pci')
        if managed is None:
            managed = self.managed
        hostdev.set('managed', _yes_no(managed))
        if driver := self._driver(managed, hints):
            etree.SubElement(hostdev, 'driver', driver)
        source = etree.SubElement(hostdev, 'source')
        _set_pci_address(etree.SubElement(source, 'address'), address)
        if self.rom_bar is not None:
            bar = 'on' if self.rom_bar else 'off'
            etree.SubElement(hostdev, 'rom').set('bar', bar)
        return hostdev

    def _driver(self, managed: bool, hints: dict[str, str]) -> dict[str, str]:
        """The attributes of <driver>.

        libvirt needs the model only to bind the function itself: with
        managed='no' it takes any VFIO driver that the function is bound to.
        """
        driver = {}
        if managed and 'vfio_driver' in hints:
            driver = {'name': 'vfio', 'model': hints['vfio_driver']}
        if hints.get('iommufd') == 'yes':
            driver['iommufd'] = 'yes'
        # The hint for one device takes precedence over the option for all,
        # except that the operator decides on iommufd.
        return {
            **self.driver,
            **driver,
            **{n: v for n, v in self.driver.items() if n == 'iommufd'},
        }

    def _mdev(self, uuid: str, model: str) -> etree._Element:
        hostdev = etree.Element('hostdev')
        hostdev.set('mode', 'subsystem')
        hostdev.set('type', 'mdev')
        hostdev.set('managed', 'no')
        hostdev.set('model', model)
        # libvirt accepts display only for vfio-pci, and ramfb only with
        # display.
        if self.display and model == 'vfio-pci':
            hostdev.set('display', 'on')
            if self.ramfb:
                hostdev.set('ramfb', 'on')
        source = etree.SubElement(hostdev, 'source')
        etree.SubElement(source, 'address').set('uuid', uuid)
        return hostdev


def _model(handle: objects.MdevHandle, van: objects.VAN) -> str:
    """Find the model of an mdev.

    It is the hint device_api in driver_data if the driver has set it, else
    the content of the kernel's file, else derived from the mdev type.
    """
    model = van.driver_data.get('device_api')
    if model is None and os.path.exists(path := MDEV_API.format(handle.uuid)):
        with open(path, encoding='ascii') as file:
            model = file.read().strip()
    if model is None:
        model = _TYPE_APIS.get(handle.type.partition('-')[0], 'vfio-pci')
    if model not in MODELS:
        raise exception.InvalidRequest(
            subject=f'VAN {van.uuid}',
            field='device_api',
            value=model,
            expected=f'one of {", ".join(MODELS)}',
        )
    return model


def _add_guest_address(
    hostdev: etree._Element, text: str, van: objects.VAN
) -> None:
    parts = pci.parse(text)
    # 0000:00:00.0 is the host bridge; libvirt reads it as "no address".
    if parts is None or not any(parts):
        raise exception.InvalidRequest(
            subject=f'VAN {van.uuid}',
            field='guest_address',
            value=text,
            expected='a PCI address (dddd:bb:ss.f), not all zero',
        )
    address = etree.SubElement(hostdev, 'address')
    address.set('type', 'pci')
    _set_pci_address(address, pci.join(*parts))


def _check_guest_address(
    hostdev: etree._Element, text: str, van: objects.VAN
) -> None:
    """Check that no other device of the guest has the address.

    libvirt would refuse to define the guest, and name neither device.

    :raises InvalidRequest: if another VAN of the instance has it
    """
    mine = _address_in_guest(hostdev)
    for other in van.others():
        if other.guest_config is not None and (
            _address_in_guest(etree.fromstring(other.guest_config)) == mine
        ):
            name = other.handle.identity if other.handle is not None else None
            raise exception.InvalidRequest(
                subject=f'VAN {van.uuid}',
                field='guest_address',
                value=text,
                expected='an address that no other device of the guest has; '
                f'VAN {other.uuid} ({name}) has this one. See '
                '[os_acc_libvirt] guest_addresses',
            )


def _address_in_guest(element: etree._Element) -> str | None:
    """The PCI address in the guest that an element sets; None if none."""
    address = element.find('address')
    if address is None or address.get('type') != 'pci':
        return None
    return pci.join(
        *(
            int(address.get(name, '0'), 16)
            for name in ('domain', 'bus', 'slot', 'function')
        )
    )


def _guest_addresses(pairs: Sequence[str]) -> dict[str, str]:
    """Read the option guest_addresses.

    :raises InvalidRequest: if a device is listed twice
    """
    found: dict[str, str] = {}
    for each in pairs:
        handle, address = each.split('=')
        name = _canonical(handle)
        if name in found and _canonical(found[name]) != _canonical(address):
            raise exception.InvalidRequest(
                subject='[os_acc_libvirt]',
                field='guest_addresses',
                value=each,
                expected=f'one address for {name}; it has {found[name]} too',
            )
        found[name] = address
    return found


def _set_pci_address(element: etree._Element, address: str) -> None:
    """Set the attributes of an <address>.

    :param address: the canonical form, dddd:bb:ss.f
    """
    domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    element.set('domain', f'0x{domain}')
    element.set('bus', f'0x{bus}')
    element.set('slot', f'0x{slot}')
    element.set('function', f'0x{function}')


def _canonical(handle: str) -> str:
    """Return a PCI address or mdev UUID in the form that handles use."""
    parts = pci.parse(handle)
    return pci.join(*parts) if parts else handle.lower()


def _yes_no(value: bool) -> str:
    return 'yes' if value else 'no'
