# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The DRC index of a device of a pseries guest (KVM on Power).

A pseries guest identifies a PCI function by the index of its Dynamic
Reconfiguration Connector: ibm,my-drc-index in the device tree, shown by lsslot
and drmgr. QEMU derives the index from the function's address in the guest,
which is in libvirt's domain XML. The rules here are those of QEMU 7.2 and
libvirt 9.0; tests/functional/test_pseries.py checks them against both.
"""

from __future__ import annotations

from collections.abc import Mapping
import re
from typing import NamedTuple
import uuid

from lxml import etree

from acc_plug_libvirt import hostdev as hostdev_xml
from os_acc import exception

# The type in the upper bits of the index:
# SPAPR_DR_CONNECTOR_TYPE_SHIFT_PCI (include/hw/ppc/spapr_drc.h) shifted by
# DRC_INDEX_TYPE_SHIFT (hw/ppc/spapr_drc.c).
_PCI_TYPE = 4 << 28
# hw/ppc/spapr.c, spapr_phb_placement(): '"index" for PAPR PHB is too large
# (max 30)'; libvirt: 'must be 0-30'
_MAX_PHB = 30

_ARCHES = ('ppc64', 'ppc64le')
# pseries-7.2, pseries-rhel8.6.0; pseries alone is the newest
_MACHINE = re.compile(r'pseries(-.+)?')
# Machine types of QEMU 7.2 that have dynamic-reconfiguration=off: their device
# trees have no ibm,my-drc-index.
_NO_CONNECTORS = ('pseries-2.1', 'pseries-2.2', 'pseries-2.3')

_NUMBERS = {
    8: re.compile(r'0[0-7]*'),
    10: re.compile(r'[0-9]+'),
    16: re.compile(r'0x[0-9a-f]+', re.I),
}


class _Address(NamedTuple):
    """A PCI address in the guest; bus is the index of a <controller>."""

    bus: int
    slot: int
    function: int


def drc_index(
    phb_index: int, slot: int, function: int = 0, chassis: int = 0
) -> str:
    """Compute the DRC index of a PCI function.

    The computation is that of drc_id_from_devfn() and chassis_from_bus() in
    QEMU's hw/ppc/spapr_pci.c. QEMU accepts slot 0 on a PHB and on a bridge,
    but libvirt does not.

    :param phb_index: index of the spapr-pci-host-bridge; the machine's own
        PHB has index 0
    :param chassis: 0 if the function is on the PHB itself, else the
        chassis_nr of its pci-bridge (the innermost one if bridges are nested)
    :returns: 8 upper-case hex digits
    :raises InvalidRequest: if QEMU would not accept a number
    """
    subject = 'PCI function of a pseries guest'
    _within(subject, 'phb_index', phb_index, 0, _MAX_PHB)
    _within(subject, 'slot', slot, 0, 31)
    _within(subject, 'function', function, 0, 7)
    _within(subject, 'chassis', chassis, 0, 255)
    place = phb_index << 16 | chassis << 8 | slot << 3 | function
    return f'{_PCI_TYPE | place:08X}'


def drc_index_of(domain_xml: str, hostdev: str) -> str | None:
    """Find the DRC index that a <hostdev> has in its guest.

    :param domain_xml: the domain's XML from libvirt, which has added the
        address of every device and the target of every controller
    :param hostdev: the alias (ua-acc-...) or the VAN's UUID
    :returns: as drc_index(); None if the domain is not a pseries guest, its
        machine type has no connectors, or the hostdev has no PCI address
    :raises DeviceNotFound: if the domain has no such hostdev
    :raises InvalidRequest: if the XML is not a domain, or libvirt would
        refuse it
    """
    domain = _parse(domain_xml)
    if not _has_connectors(domain):
        return None
    alias = _alias(hostdev)
    address = _address(_hostdev(domain, alias), f'hostdev {alias}')
    if address is None:
        return None
    # libvirt reads this index as decimal (virDomainControllerDefParseXML).
    controllers = {
        _number(controller, 'index', f'hostdev {alias}', base=10): controller
        for controller in domain.iterfind('devices/controller[@type="pci"]')
    }
    phb_index, chassis = _place(controllers, address.bus)
    return drc_index(phb_index, address.slot, address.function, chassis)


def drc_index_before(guest_config: str) -> str | None:
    """Find the DRC index of a <hostdev> before its domain is defined.

    This is possible only on bus 0, which is the machine's own PHB in every
    domain. For other buses see drc_index_of().

    :param guest_config: the guest_config of a VAN of a pseries guest
    :returns: as drc_index(); None if it is not known yet
    """
    hostdev = etree.fromstring(guest_config)
    address = _address(hostdev, 'hostdev')
    if address is None or address.bus != 0:
        return None
    return drc_index(0, address.slot, address.function)


def _parse(text: str) -> etree._Element:
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, encoding='utf-8'
    )
    try:
        root = etree.fromstring(text.encode(), parser)
    except etree.XMLSyntaxError as err:
        raise exception.InvalidRequest(
            subject='domain', field='XML', value=str(err), expected='XML'
        ) from err
    if root.tag != 'domain':
        raise exception.InvalidRequest(
            subject='domain',
            field='root element',
            value=root.tag,
            expected='domain',
        )
    return root


def _has_connectors(domain: etree._Element) -> bool:
    """Whether a domain is a pseries guest whose devices have DRC indexes.

    https://libvirt.org/formatdomain.html#bios-bootloader (os, type)
    """
    kind = domain.find('os/type')
    if kind is None or kind.get('arch') not in _ARCHES:
        return False
    machine = kind.get('machine', '')
    return bool(_MACHINE.fullmatch(machine)) and machine not in _NO_CONNECTORS


def _alias(hostdev: str) -> str:
    try:
        return f'{hostdev_xml.ALIAS}{uuid.UUID(hostdev)}'
    except ValueError:
        return hostdev


def _hostdev(domain: etree._Element, alias: str) -> etree._Element:
    for found in domain.iterfind('devices/hostdev'):
        own = found.find('alias')
        if own is not None and own.get('name') == alias:
            return found
    raise exception.DeviceNotFound(
        wanted=alias, reason='the domain has no hostdev with that alias'
    )


def _address(element: etree._Element, subject: str) -> _Address | None:
    """Return the PCI address of a device in the guest.

    https://libvirt.org/formatdomain.html#device-addresses. A missing
    attribute means 0. 0000:00:00 means no address, whatever the function
    (virPCIDeviceAddressIsEmpty). The domain must be 0 and the slot at least 1
    (virDomainPCIAddressValidate).

    :returns: None if libvirt has yet to choose an address
    """
    found = element.find('address[@type="pci"]')
    if found is None:
        return None
    domain, bus, slot, function = (
        _number(found, name, subject, default=0)
        for name in ('domain', 'bus', 'slot', 'function')
    )
    if domain == bus == slot == 0:
        return None
    _within(subject, 'domain', domain, 0, 0)
    _within(subject, 'bus', bus, 0, 255)
    _within(subject, 'slot', slot, 1, 31)
    _within(subject, 'function', function, 0, 7)
    return _Address(bus, slot, function)


def _place(
    controllers: Mapping[int, etree._Element], bus: int
) -> tuple[int, int]:
    """Find the PHB index and the chassis of a bus.

    https://libvirt.org/formatdomain.html#controllers: in a pseries guest, a
    pci-root is a PHB with the index <target index>. A pci-bridge has a
    <target chassisNr> and an address on another bus. QEMU accepts no other
    bridges ('PCI Bridge lacks a "chassis_nr" property').

    :param controllers: the domain's PCI controllers by index
    """
    chassis = 0
    passed: set[int] = set()
    while True:
        subject = f'PCI controller {bus}'
        controller = controllers.get(bus)
        model = None if controller is None else controller.get('model')
        if bus == 0 and controller is None:
            return 0, chassis  # the machine's own PHB, which libvirt adds
        if controller is None or model not in ('pci-root', 'pci-bridge'):
            raise exception.InvalidRequest(
                subject=subject,
                field='model',
                value=model,
                expected='pci-root or pci-bridge',
            )
        if model == 'pci-root':
            return _target(controller, subject, bus), chassis
        passed.add(bus)
        # If bridges are nested, the innermost one gives the chassis.
        chassis = chassis or _chassis(controller, subject)
        address = _address(controller, subject)
        if address is None or address.bus in passed:
            raise exception.InvalidRequest(
                subject=subject,
                field='bus',
                value=None if address is None else address.bus,
                expected='a PCI bus that leads to a pci-root',
            )
        bus = address.bus


def _target(controller: etree._Element, subject: str, bus: int) -> int:
    """Return the index of a PHB.

    libvirt gives target index 0 to controller 0.
    """
    target = controller.find('target')
    if bus == 0 and (target is None or target.get('index') is None):
        return 0
    result = _number(target, 'index', f'target of {subject}')
    if bus == 0:
        _within(subject, 'target index', result, 0, 0)
    else:
        _within(subject, 'target index', result, 1, _MAX_PHB)
    return result


def _chassis(controller: etree._Element, subject: str) -> int:
    target = controller.find('target')
    result = _number(target, 'chassisNr', f'target of {subject}')
    _within(subject, 'chassisNr', result, 1, 255)
    return result


def _number(
    element: etree._Element | None,
    name: str,
    subject: str,
    default: int | None = None,
    base: int | None = None,
) -> int:
    """Read a number from an attribute.

    libvirt reads most numbers as C does: 0x10, 020 and 16 are the same.

    :param default: the number for a missing attribute; None: a missing
        attribute is an error
    :param base: 8, 10 or 16; None: the prefix decides, as in C
    """
    text = None if element is None else element.get(name)
    if text is None and default is not None:
        return default
    if text is not None:
        if base is None:
            base = (
                10 if text[:1] != '0' else 16 if text[1:2] in ('x', 'X') else 8
            )
        if _NUMBERS[base].fullmatch(text):
            return int(text, base)
    raise exception.InvalidRequest(
        subject=subject, field=name, value=text, expected='a number'
    )


def _within(subject: str, field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise exception.InvalidRequest(
            subject=subject,
            field=field,
            value=value,
            expected=f'{low} to {high}' if low < high else str(low),
        )
