# SPDX-License-Identifier: Apache-2.0

"""Attaches a device to a domain that runs, is paused or is shut off."""

from __future__ import annotations

import logging
import threading
from typing import Any

from lxml import etree

from acc_plug_libvirt import connection
from acc_plug_libvirt import disk
from acc_plug_libvirt import domain_xml
from acc_plug_libvirt import report
from os_acc import exception
from os_acc import log
from os_acc import objects

LOG = logging.getLogger(__name__)

# virDomain.ID() of a domain that does not run.
_NOT_RUNNING = -1
# A part of libvirt's and QEMU's messages that a guest has no free PCI slot.
# libvirt has no error code for it.
_NO_SLOT = 'No more available PCI'
_NO_SLOT_ADVICE = (
    'the guest has no free PCI slot for the device. A q35 guest needs one '
    'free root port for each device: add <controller type="pci" '
    'model="pcie-root-port"/> to its definition, once for each device (in '
    'Nova: [libvirt] num_pcie_ports), and restart the guest'
)


def attach(
    conn: connection.Connection, van: objects.VAN, seconds: float
) -> None:
    """Attach a VAN's device to its instance's domain.

    The device is attached to the running guest if there is one, and to the
    guest's definition if there is one. Where the device is attached already,
    nothing is done.

    :param van: its guest_config is the <hostdev> or <disk>
    :param seconds: how long libvirt may take
    :raises DeviceNotFound: if the domain does not exist
    :raises DeviceBusy: if the domain has the device under another alias, or
        another domain has the device
    :raises HypervisorError: if libvirt refuses
    :raises Timeout: if libvirt does not answer in time
    """
    conn.turns.run(
        f'domain {van.instance_uuid}',
        lambda abandoned: conn.run(
            _what(van), lambda opened: _attach_missing(opened, van, abandoned)
        ),
        seconds,
        f'libvirt to attach VAN {van.uuid} to domain {van.instance_uuid}',
        logger=log.about(LOG, van.instance_uuid, van.uuid),
    )


def _check_iommufd(opened: Any, van: objects.VAN) -> None:
    """Check that libvirt knows iommufd if the <hostdev> asks for it.

    An older libvirt ignores the attribute, and QEMU then finds no file of the
    device's IOMMU group.

    :raises HypervisorError: if libvirt is too old
    """
    driver = etree.fromstring(van.guest_config or '').find('driver')
    if driver is None or driver.get('iommufd') != 'yes':
        return
    if opened.getLibVersion() < report.IOMMUFD_SINCE:
        raise exception.HypervisorError(
            what=_what(van),
            reason='the device needs iommufd, because this kernel has no VFIO '
            f'groups or [os_acc_libvirt] iommufd is set; {report.NO_IOMMUFD}',
        )


def _what(van: objects.VAN) -> str:
    return f'attach to domain {van.instance_uuid}'


def _attach_missing(
    opened: Any, van: objects.VAN, abandoned: threading.Event
) -> None:
    """Attach the device to the guest and to its definition.

    The domain is examined only if libvirt refuses. This is safe, because
    libvirt refuses a source or an alias that the domain already has, and
    changes the definition last (qemuDomainAttachDeviceLiveAndConfig in
    src/qemu/qemu_driver.c).

    :param abandoned: set when the caller has given up. It will undo the
        attach, so no further attempt may begin
    """
    libvirt = connection.module()
    logger = log.about(LOG, van.instance_uuid, van.uuid)
    _check_iommufd(opened, van)
    domain = _domain(opened, van)
    _take_free_target(domain, van)
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG
    if domain.ID() != _NOT_RUNNING:
        flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
    while not abandoned.is_set():
        try:
            domain.attachDeviceFlags(van.guest_config, flags)
        except libvirt.libvirtError as err:
            if connection.is_broken(err):
                raise
            missing = _missing(domain, van)
            if missing == flags:
                _check_slots(van, err)
                raise
            flags = missing
            if not flags:
                logger.debug('the domain already has the device')
                return
        else:
            flags = _verify(domain, van, flags)
            if not flags:
                logger.info('attached the device to the domain')
                return


def _take_free_target(domain: Any, van: objects.VAN) -> None:
    """Give a VAN's <disk> another name if a disk of the domain has its own.

    A program other than os-acc may have named that disk.
    """
    mine = disk.target_in(van.guest_config)
    if mine is None:
        return
    taken = domain_xml.targets_of_others(domain.XMLDesc(0), van)
    if mine in taken:
        element = etree.fromstring(van.guest_config or '')
        target = element.find('target')
        assert target is not None
        target.set('dev', disk.free_target(van, taken))
        van.guest_config = etree.tostring(
            element, encoding='unicode', pretty_print=True
        )
        van.save()


def _check_slots(van: objects.VAN, err: Exception) -> None:
    """Add advice to libvirt's error that the guest has no free PCI slot.

    :raises HypervisorError: if err is that error
    """
    if _NO_SLOT.lower() in str(err).lower():
        raise exception.HypervisorError(
            what=_what(van), reason=f'{err}: {_NO_SLOT_ADVICE}'
        ) from err


def _missing(domain: Any, van: objects.VAN) -> int:
    """Find where a VAN's device is missing: in the guest, its definition.

    :returns: VIR_DOMAIN_AFFECT_ flags
    :raises DeviceBusy: see domain_xml.check
    """
    libvirt = connection.module()
    flags = 0
    root = domain_xml.of(domain)
    if domain_xml.is_active(root) and _is_missing(root, van):
        flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
    if domain.isPersistent() and _is_missing(
        domain_xml.of(domain, libvirt.VIR_DOMAIN_XML_INACTIVE), van
    ):
        flags |= libvirt.VIR_DOMAIN_AFFECT_CONFIG
    return flags


def _domain(opened: Any, van: objects.VAN) -> Any:
    """Find the instance's domain, and check that no other has the device.

    This check is necessary because libvirt lets two definitions have the same
    device, and fails only when the second guest starts.
    """
    wanted = van.handle.identity if van.handle is not None else None
    found = None
    for domain in opened.listAllDomains(0):
        if domain.UUIDString() == van.instance_uuid:
            found = domain
        elif wanted is not None and _has(domain, wanted):
            raise exception.DeviceBusy(
                device=wanted, holder=f'domain {domain.name()}'
            )
    if found is None:
        raise exception.DeviceNotFound(
            wanted=f'VAN {van.uuid}',
            reason=f'libvirt has no domain {van.instance_uuid} to attach to',
        )
    return found


def _has(domain: Any, wanted: str) -> bool:
    """Whether a domain's running guest or its definition has a device.

    A domain that is gone has none. One whose XML cannot be read does not stop
    the others: while its guest runs, the driver has seen that QEMU has the
    device open. If the XML is there, and names the device, it counts.

    :param wanted: the identity of the device
    """
    libvirt = connection.module()
    for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE):
        xml = None
        try:
            xml = domain.XMLDesc(flags)
            found = wanted in domain_xml.identities(domain_xml.parse(xml))
        except libvirt.libvirtError as err:
            if connection.is_broken(err):
                raise
            if err.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return False
            found = _may_have(domain, wanted, xml, err)
        except exception.InvalidRequest as err:
            found = _may_have(domain, wanted, xml, err)
        if found:
            return True
    return False


def _may_have(
    domain: Any, wanted: str, xml: str | None, err: Exception
) -> bool:
    """Whether a domain whose XML cannot be read may have a device."""
    LOG.warning(
        'The XML of domain %s (%s) cannot be read, so os-acc does not know '
        'its devices. See virsh dumpxml %s: %s',
        domain.name(),
        domain.UUIDString(),
        domain.UUIDString(),
        exception.describe(err),
    )
    return bool(xml) and domain_xml.may_have(str(xml), wanted)


def _is_missing(root: Any, van: objects.VAN) -> bool:
    """Whether a domain lacks a VAN's device.

    :raises DeviceBusy: see domain_xml.check
    """
    domain_xml.check(root, van)
    return domain_xml.find(root, van) is None


def _verify(domain: Any, van: objects.VAN, flags: int) -> int:
    """Check that a domain has the device that libvirt accepted.

    If there is a running guest, only the guest is checked, because the same
    call has written the definition.

    :param flags: where libvirt accepted the device
    :returns: where the device must still be attached; 0 if nowhere. A guest
        that has started since it was listed does not have the device yet
    """
    libvirt = connection.module()
    root = domain_xml.of(domain)
    if not _is_missing(root, van):
        return 0
    live: int = libvirt.VIR_DOMAIN_AFFECT_LIVE
    if domain_xml.is_active(root) and not flags & live:
        return live
    raise exception.HypervisorError(
        what=_what(van),
        reason='libvirt accepted the device, but the domain does not have it',
    )
