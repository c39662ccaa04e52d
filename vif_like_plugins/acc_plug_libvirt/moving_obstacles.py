# SPDX-License-Identifier: Apache-2.0

"""Why a domain cannot move to another libvirt, as far as a look can tell."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from lxml import etree

from acc_plug_libvirt import connection
from acc_plug_libvirt import domain_xml
from acc_plug_libvirt import hostdev
from os_acc import objects
from os_acc.texts import ways

# What else a host gives to a guest, and no other host has.
_OTHER_DEVICES = (
    "devices/interface[@type='hostdev']",
    "devices/interface[@type='vdpa']",
    "devices/disk[@type='nvme']",
    "devices/disk[@type='vhostvdpa']",
)
_TPM = "devices/tpm/backend[@type='emulator']"


def of_domain(domain: Any, way: str, vans: Sequence[objects.VAN]) -> list[str]:
    """What is in the way on this host.

    :param way: live, replug or cold
    :param vans: those of the domain
    """
    libvirt = connection.module()
    found = []
    state = domain.state()[0]
    if state not in (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_SHUTOFF):
        found.append('its guest neither runs nor is shut off: see virsh list')
    elif domain.isActive() and (
        domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE
    ):
        found.append('libvirt has a job on its domain: see virsh domjobinfo')
    if way == ways.COLD and not domain.isPersistent():
        found.append('its domain has no definition: it is transient')
    elif way == ways.COLD:
        root = domain_xml.of(domain, libvirt.VIR_DOMAIN_XML_INACTIVE)
        found += _of_definition(domain, root)
        found += _of_devices(root, vans, all_there=True)
        return found
    active = list(_of_devices(domain_xml.of(domain), vans, way == ways.LIVE))
    found += active
    if domain.isPersistent():
        # libvirt defines the domain on the target with what is kept here.
        kept = domain_xml.of(domain, libvirt.VIR_DOMAIN_XML_INACTIVE)
        found += [
            f'{each} (in its definition: see virsh dumpxml --inactive)'
            for each in _of_devices(kept, vans, way == ways.LIVE)
            if each not in active
        ]
    return found


def of_target(opened: Any, domain: Any) -> list[str]:
    """What is in the way on the target.

    :param opened: its virConnect
    :param domain: the domain on this host
    """
    uuid, name = domain.UUIDString(), domain.name()
    found = []
    for there in opened.listAllDomains(0):
        if there.UUIDString() == uuid:
            if there.isActive():
                found.append('its domain runs on the target')
        elif there.name() == name:
            found.append(f'the target has another domain {name}')
    return found


def shared_files(root: etree._Element, way: str) -> list[str]:
    """The files of a domain that both hosts must share.

    The disks that os-acc has attached are left out, and so is what the guest
    cannot write.
    """
    found: list[str] = []
    for disk in root.iterfind('devices/disk'):
        alias, source = disk.find('alias'), disk.find('source')
        name = alias.get('name', '') if alias is not None else ''
        if (
            source is None
            or name.startswith(hostdev.ALIAS)
            or disk.find('readonly') is not None
        ):
            continue
        found += filter(None, (source.get('file'), source.get('dev')))
    if way == ways.COLD and (nvram := root.find('os/nvram')) is not None:
        source = nvram.find('source')
        path = nvram.text if source is None else source.get('file')
        found += filter(None, [path and path.strip()])
    return found


def _of_definition(domain: Any, root: etree._Element) -> Iterator[str]:
    """What libvirt keeps beside a definition, and another one would lack."""
    if domain.hasManagedSaveImage():
        yield 'its guest is saved: start it first'
    if domain.snapshotNum():
        yield 'its domain has snapshots: see virsh snapshot-list'
    if domain.listAllCheckpoints():
        yield 'its domain has checkpoints: see virsh checkpoint-list'
    if root.find(_TPM) is not None:
        yield 'the state of its emulated TPM would stay on this host'


def _of_devices(
    root: etree._Element, vans: Sequence[objects.VAN], all_there: bool
) -> Iterator[str]:
    """Which host devices do not move, and which VANs it does not have.

    :param all_there: whether the domain must have the VANs' devices
    """
    for van in vans:
        if (
            all_there
            and van.guest_config is not None
            and domain_xml.find(root, van) is None
        ):
            yield f'its domain lacks the device of VAN {van.uuid}'
    yield from others(root, vans)


def others(root: etree._Element, vans: Sequence[objects.VAN]) -> Iterator[str]:
    """Find the devices of this host that a domain has, but no VAN.

    On another host, the same name means another device or none.

    :returns: a clause for each
    """
    found = [domain_xml.find(root, van) for van in vans]
    mine = {id(each.element) for each in found if each is not None}
    for each in domain_xml.hostdevs(root):
        if id(each.element) in mine:
            continue
        if (each.alias or '').startswith(hostdev.ALIAS):
            yield (
                f'host device {each.identity} ({each.alias}) is of no VAN '
                'that moves'
            )
        elif each.element.tag == 'hostdev':
            yield f'host device {each.identity} is not of os-acc'
    for path in _OTHER_DEVICES:
        for _ in root.iterfind(path):
            yield f'it has a host device that is not of os-acc: {path[8:]}'
    for identity in domain_xml.of_command_line(root):
        yield (
            f'host device {identity} is not of os-acc: it is in '
            '<qemu:commandline>'
        )
