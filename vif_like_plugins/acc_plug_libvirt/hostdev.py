# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The <hostdev> element of a VAN.

Its format: https://libvirt.org/formatdomain.html#host-device-assignment
"""

from __future__ import annotations

import copy
import functools
import os
import threading
from typing import Any

from lxml import etree

from os_acc import exception
from os_acc import objects
from os_acc.objects import fields

ALIAS = 'ua-acc-'

# libvirt's models have the names of the kernel's device_api values
# (Documentation/ABI/testing/sysfs-bus-vfio-mdev).
MODELS = ('vfio-pci', 'vfio-ap', 'vfio-ccw')
_MDEV_API = '/sys/bus/mdev/devices/{}/mdev_type/device_api'
# drivers/s390/crypto/vfio_ap_ops.c, drivers/s390/cio/vfio_ccw_ops.c
_TYPE_APIS = {'vfio_ap': 'vfio-ap', 'vfio_ccw': 'vfio-ccw'}


def build(van: objects.VAN, config: Any) -> str | None:
    """The <hostdev> of a VAN.

    :param config: the values of [os_acc_libvirt]
    :returns: XML text; None where the guest needs nothing
    :raises UnsupportedHandle: not a handle for libvirt
    :raises InvalidRequest: a hint or an option is wrong
    """
    handle = van.handle
    if isinstance(handle, objects.PCIHandle):
        own_name = handle.address
        hostdev = _pci(handle, own_name, config)
    elif isinstance(handle, objects.MdevHandle):
        own_name = handle.uuid
        hostdev = _mdev(handle, van, config)
    elif isinstance(handle, objects.TestHandle):
        return None
    else:
        raise exception.UnsupportedHandle(
            taker="plugin 'libvirt'",
            handle=handle.obj_name() if handle is not None else None,
            takes='PCIHandle, MdevHandle, TestHandle',
        )
    hostdev[1].set('name', f'{ALIAS}{van.uuid}')
    guest_address = van.driver_data.get('guest_address')
    if guest_address is None and config.guest_addresses:
        guest_address = _guest_addresses(config).get(own_name)
    # An AP or CCW mdev is no PCI device for the guest.
    if guest_address is not None and hostdev.get('model') in (
        None,
        'vfio-pci',
    ):
        hostdev = copy.deepcopy(hostdev)
        _guest_address(hostdev, guest_address, van)
    text: str = etree.tostring(hostdev, encoding='unicode', pretty_print=True)
    return text


def _pci(
    handle: objects.PCIHandle, address: str, config: Any
) -> etree._Element:
    managed = handle.managed
    frame = _pci_frame(
        threading.get_ident(),
        config.managed if managed is None else managed,
        config.vfio_driver,
        config.iommufd,
        config.rom_bar,
    )
    _set_pci_address(frame[0][0], address)
    return frame


@functools.lru_cache(maxsize=64)
def _pci_frame(
    _thread: int,
    managed: bool,
    vfio_driver: str,
    iommufd: bool | None,
    rom_bar: bool | None,
) -> etree._Element:
    """What is the same for all PCI functions of a host: made once a thread,
    and filled in for each of them.
    """
    hostdev = _frame('pci', _yes_no(managed))
    driver = {}
    if vfio_driver:
        driver = {'name': 'vfio', 'model': vfio_driver}
    if iommufd is not None:
        driver['iommufd'] = _yes_no(iommufd)
    if driver:
        etree.SubElement(hostdev, 'driver', driver)
    if rom_bar is not None:
        etree.SubElement(hostdev, 'rom', bar=_on_off(rom_bar))
    return hostdev


def _frame(kind: str, managed: str) -> etree._Element:
    """A <hostdev> with a <source>, its <address>, and an <alias>."""
    hostdev = etree.Element(
        'hostdev', mode='subsystem', type=kind, managed=managed
    )
    etree.SubElement(etree.SubElement(hostdev, 'source'), 'address')
    etree.SubElement(hostdev, 'alias')
    return hostdev


def _mdev(
    handle: objects.MdevHandle, van: objects.VAN, config: Any
) -> etree._Element:
    model = _model(handle, van)
    hostdev = _frame('mdev', 'no')
    hostdev.set('model', model)
    # libvirt takes display for vfio-pci only, and ramfb with display only.
    if config.display and model == 'vfio-pci':
        hostdev.set('display', 'on')
        if config.ramfb:
            hostdev.set('ramfb', 'on')
    hostdev[0][0].set('uuid', handle.uuid)
    return hostdev


def _model(handle: objects.MdevHandle, van: objects.VAN) -> str:
    """What the driver said, else the kernel, else the type's name."""
    model = van.driver_data.get('device_api')
    if model is None and os.path.exists(path := _MDEV_API.format(handle.uuid)):
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


def _guest_addresses(config: Any) -> dict[str, str]:
    """The option guest_addresses, by the canonical name of the handle."""
    result = {}
    for pair in config.guest_addresses:
        name, _, address = pair.partition('=')
        parts = fields.parse_pci_address(name)
        if parts is not None:
            name = '%04x:%02x:%02x.%x' % parts
        result[name.lower()] = address
    return result


def _guest_address(
    hostdev: etree._Element, text: str, van: objects.VAN
) -> None:
    parts = fields.parse_pci_address(text)
    # All zero is the host bridge's; libvirt takes it for no address.
    if parts is None or not any(parts):
        raise exception.InvalidRequest(
            subject=f'VAN {van.uuid}',
            field='guest_address',
            value=text,
            expected='a PCI address (dddd:bb:ss.f), not all zero',
        )
    address = etree.SubElement(hostdev, 'address', type='pci')
    _set_pci_address(address, '%04x:%02x:%02x.%x' % parts)


def _set_pci_address(element: etree._Element, address: str) -> None:
    """:param address: in its canonical form, as a handle has it"""
    domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    element.set('domain', f'0x{domain}')
    element.set('bus', f'0x{bus}')
    element.set('slot', f'0x{slot}')
    element.set('function', f'0x{function}')


def _yes_no(value: bool) -> str:
    return 'yes' if value else 'no'


def _on_off(value: bool) -> str:
    return 'on' if value else 'off'
