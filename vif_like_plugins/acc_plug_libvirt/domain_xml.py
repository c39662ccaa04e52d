# SPDX-License-Identifier: Apache-2.0

"""Finds, compares and rewrites the hostdevs and disks in a domain's XML."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import copy
import dataclasses
from typing import Any
from typing import NoReturn

from lxml import etree

from acc_plug_libvirt import disk
from acc_plug_libvirt import hostdev
from os_acc import exception
from os_acc import objects
from os_acc.kernel import libvirt_domains
from os_acc.kernel import pci

# libvirt keeps aliases with this prefix. It generates all other aliases.
_USER_ALIAS = 'ua-'


@dataclasses.dataclass(frozen=True)
class Hostdev:
    """A <hostdev> or <disk> of a domain.

    :ivar identity: as AttachHandle.identity, 'pci/0000:3b:00.1'; None if it
        is nothing that os-acc attaches
    :ivar alias: the user alias (ua-...); None if there is none
    """

    element: etree._Element
    identity: str | None
    alias: str | None

    @property
    def xml(self) -> str:
        return etree.tostring(self.element, encoding='unicode')


def parse(xml: str) -> etree._Element:
    """Parse a domain's XML.

    :raises InvalidRequest: if it is not the XML of a domain
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    try:
        root = etree.fromstring(xml.encode(), parser)
    except (
        etree.XMLSyntaxError,
        UnicodeEncodeError,
        AttributeError,
    ) as err:
        raise exception.InvalidRequest(
            subject='domain',
            field='xml',
            value=str(xml)[:80],
            expected=f'a <domain> ({err})',
        ) from err
    if root.tag != 'domain':
        raise exception.InvalidRequest(
            subject='domain', field='xml', value=root.tag, expected='domain'
        )
    return root


def of(domain: Any, options: int = 0) -> etree._Element:
    """Get the XML of a domain from libvirt.

    :param domain: a virDomain
    :param options: VIR_DOMAIN_XML_INACTIVE for the guest's definition
    """
    return parse(domain.XMLDesc(options))


def is_active(root: etree._Element) -> bool:
    """Whether a domain runs. Only running domains have an id.

    https://libvirt.org/formatdomain.html, general metadata
    """
    return root.get('id') is not None


def hostdevs(root: etree._Element) -> Iterator[Hostdev]:
    """Yield the <hostdev> elements of a domain, and the <disk> of VANs.

    Other disks, such as those that are files, are left out.
    """
    for element in (
        *root.iterfind('devices/hostdev'),
        *root.iterfind("devices/disk[@type='block']"),
    ):
        alias = element.find('alias')
        name = alias.get('name') if alias is not None else None
        identity = identity_of(element)
        if element.tag == 'disk' and identity is None:
            continue
        yield Hostdev(
            element,
            identity,
            name if name and name.startswith(_USER_ALIAS) else None,
        )


def identities(root: etree._Element) -> set[str | None]:
    """Return the identities of all host devices of a domain.

    They are in hostdevs, interfaces, disks and <qemu:commandline>.
    """
    found = {each.identity for each in hostdevs(root)}
    for path in (
        "devices/interface[@type='hostdev']",
        "devices/disk[@type='nvme']",
    ):
        for element in root.iterfind(path):
            found.add(_pci_identity(element.find('source/address')))
    return found | set(of_command_line(root))


def of_command_line(root: etree._Element) -> list[str]:
    """Return the identities of the devices in <qemu:commandline>."""
    return [
        f'{"pci" if ":" in device else "mdev"}/{device}'
        for device in libvirt_domains.devices(root)
    ]


def may_have(xml: str, identity: str) -> bool:
    """Whether the XML of a domain, which cannot be parsed, names a device.

    :param identity: as AttachHandle.identity
    """
    parser = etree.XMLParser(
        recover=True, resolve_entities=False, no_network=True
    )
    root = etree.fromstring(xml.encode(), parser)
    name = identity.partition('/')[2].lower()
    return (root is not None and identity in identities(root)) or (
        name.removeprefix('0000:') in xml.lower()
    )


def identity_of(element: etree._Element) -> str | None:
    """Return the identity of a <hostdev> or <disk>, in canonical form."""
    if element.tag == 'disk':
        return disk.identity(element)
    address = element.find('source/address')
    if element.get('mode') != 'subsystem' or address is None:
        return None
    if element.get('type') == 'mdev':
        return f'mdev/{address.get("uuid", "").lower()}'
    return _pci_identity(address) if element.get('type') == 'pci' else None


def _pci_identity(address: etree._Element | None) -> str | None:
    if address is None:
        return None
    try:
        parts = tuple(
            int(address.get(name, '0'), 0)
            for name in ('domain', 'bus', 'slot', 'function')
        )
    except ValueError:
        return None
    return f'pci/{pci.join(*parts)}'


def alias_of(van: objects.VAN) -> str:
    """The alias of a VAN's hostdev."""
    return f'{hostdev.ALIAS}{van.uuid}'


def find(root: etree._Element, van: objects.VAN) -> Hostdev | None:
    """Find a VAN's hostdev in a domain by its alias, or else by its source.

    A hostdev with another user alias does not belong to the VAN.
    """
    alias = alias_of(van)
    wanted = van.handle.identity if van.handle is not None else None
    found = None
    for each in hostdevs(root):
        if each.alias == alias:
            return each
        if each.identity == wanted is not None and each.alias is None:
            found = each
    return found


def check(root: etree._Element, van: objects.VAN) -> None:
    """Check that a VAN's device and alias are free or belong to the VAN.

    :raises DeviceBusy: if the domain has the device under another user
        alias, or the VAN's alias with another device
    """
    alias = alias_of(van)
    wanted = van.handle.identity if van.handle is not None else None
    for each in hostdevs(root):
        if each.alias == alias and each.identity != wanted:
            raise exception.DeviceBusy(
                device=f'alias {each.alias} of the domain',
                reason=f'it belongs to {each.identity}, not to {wanted}',
            )
        if each.identity == wanted is not None and each.alias not in (
            None,
            alias,
        ):
            raise exception.DeviceBusy(
                device=wanted, holder=f'alias {each.alias} of the same domain'
            )


def targets_of_others(xml: str, van: objects.VAN) -> set[str]:
    """The names of a domain's disks, without that of a VAN."""
    names = set()
    for element in parse(xml).iterfind('devices/disk'):
        alias, target = element.find('alias'), element.find('target')
        if target is not None and (
            alias is None or alias.get('name') != alias_of(van)
        ):
            names.add(target.get('dev', ''))
    return names


def update_domain_xml(
    xml: str,
    old_vans: Sequence[objects.VAN],
    new_vans: Sequence[objects.VAN],
) -> str:
    """Rewrite a domain's XML for another host.

    Use it for cold migration and evacuation; for live migration see
    os_acc.migration.redefine. What the guest sees stays the same: the PCI
    address of each device in the guest, and the boot order, the target and
    the serial of a disk. What depends on the host is taken from the new VAN:
    source, alias, driver, managed, model, display and ramfb. Other devices
    stay unchanged.

    :param xml: the domain's XML on the old host
    :param old_vans: the VANs on the old host
    :param new_vans: the VANs on the new host, in the same order
    :returns: the domain's XML for the new host
    :raises InvalidRequest: if xml is not a domain, the lists do not match, an
        old VAN is not in the domain, or a new device is already in it
    """
    if len(old_vans) != len(new_vans):
        _refuse('new_vans', len(new_vans), f'{len(old_vans)} VANs')
    root = parse(xml)
    there = list(hostdevs(root))
    moves: list[tuple[Hostdev, etree._Element]] = []
    for old, new in zip(old_vans, new_vans, strict=True):
        if old.guest_config is None and new.guest_config is None:
            continue
        moves.append((_old(there, old), _new(new)))
    moved = [each.element for each, _ in moves]
    if len({id(each) for each in moved}) != len(moves):
        _refuse('old_vans', len(old_vans), 'VANs of different devices')
    coming = [identity_of(element) for _, element in moves]
    if (twice := doubled(there, moved, coming)) is not None:
        _refuse('new_vans', twice, 'a device that the domain has only once')
    for each, element in moves:
        _replace(each.element, element)
    return etree.tostring(root, encoding='unicode')


def of_van(
    there: Sequence[Hostdev], van_uuid: str, identity: str | None
) -> list[Hostdev]:
    """The devices of a domain that have a VAN's alias, or else its source."""
    alias = f'{hostdev.ALIAS}{van_uuid}'
    return [each for each in there if each.alias == alias] or [
        each for each in there if each.identity == identity is not None
    ]


def doubled(
    there: Sequence[Hostdev],
    leaving: Sequence[etree._Element],
    coming: Sequence[str | None],
) -> str | None:
    """A device that a domain would have twice; None if there is none.

    :param there: its devices before
    :param leaving: the elements of those that others take the place of
    :param coming: the identities of those others
    """
    gone = {id(each) for each in leaving}
    left = {each.identity for each in there if id(each.element) not in gone}
    for identity in coming:
        if identity in left or coming.count(identity) > 1:
            return identity
    return None


def _old(there: Sequence[Hostdev], van: objects.VAN) -> Hostdev:
    """Find an old VAN's hostdev among those of the domain."""
    identity = van.handle.identity if van.handle is not None else None
    found = of_van(there, van.uuid, identity)
    if len(found) != 1:
        _refuse(
            'old_vans',
            f'{van.uuid} ({identity})',
            f'exactly one such hostdev in the domain, which has {len(found)}',
        )
    return found[0]


def _new(van: objects.VAN) -> etree._Element:
    """Parse the element of a new VAN."""
    if not van.guest_config:
        _refuse('new_vans', van.uuid, 'a VAN with guest_config')
    element = etree.fromstring(van.guest_config)
    if element.tag not in ('hostdev', 'disk'):
        _refuse('new_vans', van.uuid, 'a <hostdev> or <disk> in guest_config')
    return element


def _replace(old: etree._Element, new: etree._Element) -> None:
    """Copy what depends on the host from a new element to an old one."""
    if (old.tag, old.get('type')) != (new.tag, new.get('type')):
        _refuse('new_vans', new.get('type'), f'a {old.get("type")} device')
    for name in ('managed', 'model', 'display', 'ramfb'):
        old.attrib.pop(name, None)
        if (value := new.get(name)) is not None:
            old.set(name, value)
    for tag in ('driver', 'source', 'alias'):
        for element in old.findall(tag):
            old.remove(element)
    # The schema's order is driver, source, ..., alias, address.
    for place, tag in enumerate(('driver', 'source', 'alias')):
        for element in new.findall(tag):
            old.insert(place, copy.deepcopy(element))


def _refuse(field: str, value: object, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject='update_domain_xml',
        field=field,
        value=value,
        expected=expected,
    )
