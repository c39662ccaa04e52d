# SPDX-License-Identifier: Apache-2.0

"""What changes in the XML of a domain that is migrated with its devices.

The guest keeps running, so all that it sees must stay the same: libvirt
compares the addresses of the devices, and QEMU finds the state of a device by
its address. Only what names the host's device is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
import copy
from typing import NoReturn

from lxml import etree

from acc_plug_libvirt import domain_xml
from acc_plug_libvirt import options
from os_acc import exception
from os_acc import objects

# What depends on the host in a <hostdev> or <disk>, and what says its kind.
_ATTRIBUTES = ('mode', 'type', 'device', 'managed')
_CHILDREN = ('driver', 'source')


def migration_map(
    vans_source: Sequence[objects.VAN], vans_target: Sequence[objects.VAN]
) -> objects.MigrationMap:
    """Say what changes. See PluginBase.migration_map().

    Each text is the <hostdev> or <disk> of a VAN, without what the guest sees
    of it.

    :raises InvalidRequest: if the VANs do not fit
    """
    targets = {van.uuid: van for van in vans_target}
    uuids = [van.uuid for van in vans_source]
    if sorted(targets) != sorted(uuids) or len(targets) != len(vans_target):
        _refuse(
            'vans_target',
            [van.uuid for van in vans_target],
            f'one VAN with each UUID of vans_source: {", ".join(uuids)}',
        )
    changes = []
    for source in vans_source:
        target = targets[source.uuid]
        if isinstance(source.handle, objects.TestHandle) and isinstance(
            target.handle, objects.TestHandle
        ):
            continue  # no domain has one
        old, new = _part(source, 'vans_source'), _part(target, 'vans_target')
        _check_kind(old, new, 'vans_target')
        changes.append(
            objects.MigrationChange(
                uuid=source.uuid, source=_text(old), target=_text(new)
            )
        )
    return objects.MigrationMap(format=options.FORMAT, changes=changes)


def redefine(xml: str, migration_map: objects.MigrationMap) -> str:
    """Make a domain's XML for the target. See PluginBase.redefine().

    :param xml: as libvirt gives it for the running guest with
        VIR_DOMAIN_XML_MIGRATABLE, or its definition
    :raises InvalidRequest: if xml is not a domain, the map is not one of
        libvirt, a VAN is not in the domain, or a new device is already in it
    """
    root = domain_xml.parse(xml)
    if migration_map.format != options.FORMAT:
        _refuse('format', migration_map.format, options.FORMAT)
    there = list(domain_xml.hostdevs(root))
    changed, coming = [], []
    for each in migration_map.changes:
        old, new = _parse(each.source, 'source'), _parse(each.target, 'target')
        _check_kind(old, new, 'target')
        before, after = _identity(old, 'source'), _identity(new, 'target')
        found = domain_xml.of_van(there, each.uuid, before)
        if len(found) != 1 or found[0].identity not in (before, after):
            _refuse(
                'source',
                f'VAN {each.uuid} ({before})',
                'exactly one such device in the domain',
            )
        _replace(found[0].element, old, new)
        changed.append(found[0].element)
        coming.append(after)
    if (twice := domain_xml.doubled(there, changed, coming)) is not None:
        _refuse('target', twice, 'a device that the domain has only once')
    return etree.tostring(root, encoding='unicode')


def _part(van: objects.VAN, field: str) -> etree._Element:
    """What depends on the host in a VAN's element.

    :raises InvalidRequest: if its guest_config is not that of its handle
    """
    element = _parse(van.guest_config or '', field)
    handle = van.handle.identity if van.handle is not None else None
    if domain_xml.identity_of(element) != handle or handle is None:
        _refuse(
            field,
            van.guest_config,
            f'the element of {handle}, VAN {van.uuid}',
        )
    for name in set(element.attrib) - set(_ATTRIBUTES):
        del element.attrib[name]
    for child in list(element):
        if child.tag not in _CHILDREN:
            element.remove(child)
    for each in element.iter():
        each.text = each.tail = None
    return element


def _replace(
    element: etree._Element, old: etree._Element, new: etree._Element
) -> None:
    """Change in a domain's element what differs between the hosts."""
    if (managed := new.get('managed')) not in (None, old.get('managed')):
        element.set('managed', managed)
    if _driver(old) != _driver(new):
        for each in element.findall('driver'):
            element.remove(each)
        element[:0] = map(copy.deepcopy, new.findall('driver'))
    if element.tag == 'disk':
        source, named = element.find('source'), new.find('source')
    else:
        source = element.find('source/address')
        named = new.find('source/address')
    assert source is not None and named is not None  # both have an identity
    source.attrib.update(named.attrib)


def _driver(part: etree._Element) -> list[dict[str, str]]:
    return [dict(each.attrib) for each in part.findall('driver')]


def _identity(part: etree._Element, field: str) -> str:
    """The identity of the device that a change names."""
    if (identity := domain_xml.identity_of(part)) is None:
        _refuse(field, _text(part), 'an element that names a device')
    return identity


def _check_kind(old: etree._Element, new: etree._Element, field: str) -> None:
    before, after = (f'{e.tag!s} of type {e.get("type")}' for e in (old, new))
    if before != after:
        _refuse(field, after, f'a {before}, as on the source')


def _parse(text: str, field: str) -> etree._Element:
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    try:
        element = etree.fromstring(text.encode(), parser)
    except (etree.XMLSyntaxError, UnicodeEncodeError) as err:
        _refuse(field, text, f'a <hostdev> or <disk> ({err})')
    if element.tag not in ('hostdev', 'disk'):
        _refuse(field, text, 'a <hostdev> or <disk>')
    if element.getroottree().docinfo.doctype:
        _refuse(field, text, 'no DOCTYPE: the entities of others are not used')
    return element


def _text(element: etree._Element) -> str:
    return etree.tostring(element, encoding='unicode')


def _refuse(field: str, value: object, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject='migration_map', field=field, value=value, expected=expected
    )
