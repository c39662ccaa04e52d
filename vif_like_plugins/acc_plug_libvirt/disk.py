# SPDX-License-Identifier: Apache-2.0

"""The <disk> element of a VAN whose device comes over a network.

Its format:
https://libvirt.org/formatdomain.html#hard-drives-floppy-disks-cdroms
"""

from __future__ import annotations

from collections.abc import Container
import hashlib
import string

from lxml import etree

from acc_plug_libvirt import hostdev
from os_acc import objects

# How udev names a namespace by its world wide name.
_LINK = '/dev/disk/by-id/nvme-'
# The letters of a target behind vd. Nova counts vda, vdb, ... from the
# start; five letters leave these free.
_LETTERS = 5


def build(van: objects.VAN, handle: objects.BlockHandle) -> str:
    """Build the <disk> of a VAN.

    The guest sees a virtio disk, whose serial is the UUID of the namespace;
    virtio shows its first 20 characters. QEMU opens the device without the
    host's page cache, as Nova does for volumes: otherwise two hosts could see
    different content.

    :returns: XML text
    """
    disk = etree.Element('disk', {'type': 'block', 'device': 'disk'})
    etree.SubElement(
        disk,
        'driver',
        {'name': 'qemu', 'type': 'raw', 'cache': 'none', 'io': 'native'},
    )
    etree.SubElement(disk, 'source').set('dev', handle.path)
    target = etree.SubElement(disk, 'target')
    target.set('dev', target_of(van))
    target.set('bus', 'virtio')
    serial = handle.wwn.partition('.')[2] or handle.wwn
    etree.SubElement(disk, 'serial').text = serial
    alias = etree.SubElement(disk, 'alias')
    alias.set('name', f'{hostdev.ALIAS}{van.uuid}')
    return etree.tostring(disk, encoding='unicode', pretty_print=True)


def target_of(van: objects.VAN) -> str:
    """The name of a VAN's disk in the domain, such as vdkqxaf.

    It stays the same as long as the VAN is plugged. It is made from the UUID
    of the VAN; if another VAN of the instance has that name, the next one is
    taken. To the guest it means nothing.
    """
    if (mine := target_in(van.guest_config)) is not None:
        return mine
    return free_target(
        van,
        {
            name
            for other in van.others()
            if (name := target_in(other.guest_config)) is not None
        },
    )


def free_target(van: objects.VAN, taken: Container[str]) -> str:
    """The first name for a VAN's disk that is not taken.

    :param taken: the names of the domain's other disks
    """
    number = int(hashlib.sha256(str(van.uuid).encode()).hexdigest(), 16)
    while (name := _name(number)) in taken:
        number += 1
    return name


def _name(number: int) -> str:
    letters = ''
    for _ in range(_LETTERS):
        number, place = divmod(number, len(string.ascii_lowercase))
        letters += string.ascii_lowercase[place]
    return f'vd{letters}'


def target_in(xml: str | None) -> str | None:
    """The name of the disk in a guest_config; None if it is not a <disk>."""
    element = None if xml is None else etree.fromstring(xml)
    if element is None or element.tag != 'disk':
        return None
    target = element.find('target')
    return None if target is None else target.get('dev')


def identity(element: etree._Element) -> str | None:
    """The identity of a domain's <disk>, as AttachHandle.identity has it.

    :returns: None if it is not a block device that such a link names
    """
    source = element.find('source')
    path = source.get('dev', '') if source is not None else ''
    if element.get('type') != 'block' or not path.startswith(_LINK):
        return None
    return f'block/{path.removeprefix(_LINK)}'
