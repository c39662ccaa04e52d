# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Attaching a hostdev to a domain: running, paused or shut off."""

from __future__ import annotations

import logging
import threading
from typing import Any

from acc_plug_libvirt import connection
from acc_plug_libvirt import domain_xml
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.devices import waiting

LOG = logging.getLogger(__name__)

# The number that libvirt gives a domain that does not run, when it lists it.
_NOT_RUNNING = -1
# What QEMU's and libvirt's messages have in common; there is no code for it.
_NO_SLOT = 'No more available PCI'
_NO_SLOT_ADVICE = (
    'the guest has no free PCI slot that takes it. A q35 guest needs a free '
    'root port for each device: add <controller type="pci" '
    'model="pcie-root-port"/> to its definition, once for each (in Nova: '
    '[libvirt] num_pcie_ports), and start it again'
)


def attach(
    to: connection.Connection, van: objects.VAN, seconds: float
) -> None:
    """Give a VAN's device to its instance's domain.

    To the running guest and to its definition, whichever there is. Where it
    is already, nothing is done.

    :param van: its guest_config is the <hostdev>
    :param seconds: how long libvirt may take
    :raises DeviceNotFound: there is no such domain
    :raises DeviceBusy: its source is in it under another alias, or another
        domain has it
    :raises HypervisorError: libvirt refused
    :raises Timeout: no answer in time
    """
    left = threading.Event()
    try:
        waiting.at_most(
            lambda: _attach(to, van, left),
            seconds,
            f'libvirt to attach VAN {van.uuid} to domain {van.instance_uuid}',
        )
    except BaseException:
        # Its undo comes next: nothing may be begun after that.
        left.set()
        raise


def _attach(
    to: connection.Connection, van: objects.VAN, left: threading.Event
) -> None:
    # An undo waits for it, also if the caller does not.
    with to.turn(van.instance_uuid):
        to.run(_what(van), lambda opened: _attach_missing(opened, van, left))


def _what(van: objects.VAN) -> str:
    return f'attach to domain {van.instance_uuid}'


def _attach_missing(
    opened: Any, van: objects.VAN, left: threading.Event
) -> None:
    """Attach it everywhere; look what is there only where libvirt refuses.

    It takes no hostdev's source and no alias twice, and changes the definition
    last (qemuDomainAttachDeviceLiveAndConfig in src/qemu/qemu_driver.c).
    """
    libvirt = connection.module()
    logger = log.about(LOG, van.instance_uuid, van.uuid)
    domain = _domain(opened, van)
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG
    if domain.ID() != _NOT_RUNNING:
        flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
    while not left.is_set():
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
                logger.debug('the domain has it already')
                return
        else:
            flags = _verify(domain, van, flags)
            if not flags:
                logger.info('attached to the domain')
                return


def _check_slots(van: objects.VAN, err: Exception) -> None:
    """:raises HypervisorError: no slot is left, and what to do"""
    if _NO_SLOT.lower() in str(err).lower():
        raise exception.HypervisorError(
            what=_what(van), reason=f'{err}: {_NO_SLOT_ADVICE}'
        ) from err


def _missing(domain: Any, van: objects.VAN) -> int:
    """Where a VAN's device is not: in the guest, in the definition.

    :returns: VIR_DOMAIN_AFFECT_ flags
    :raises DeviceBusy: the device, or the alias, is there otherwise
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
    """The instance's domain, once no other domain has the VAN's device.

    libvirt lets two definitions have one device, until both run.
    """
    wanted = van.handle.identity if van.handle is not None else None
    found = None
    for domain in opened.listAllDomains(0):
        if domain.UUIDString() == van.instance_uuid:
            found = domain
        elif wanted in _identities(domain):
            raise exception.DeviceBusy(
                device=wanted, holder=f'domain {domain.name()}'
            )
    if found is None:
        raise exception.DeviceNotFound(
            wanted=f'VAN {van.uuid}',
            reason=f'libvirt has no domain {van.instance_uuid} to attach to',
        )
    return found


def _identities(domain: Any) -> set[str | None]:
    """What another domain has, running and by its definition."""
    libvirt = connection.module()
    found = set()
    try:
        for root in (
            domain_xml.of(domain),
            domain_xml.of(domain, libvirt.VIR_DOMAIN_XML_INACTIVE),
        ):
            found |= domain_xml.identities(root)
    except libvirt.libvirtError as err:
        if err.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
    return found


def _is_missing(root: Any, van: objects.VAN) -> bool:
    """:raises DeviceBusy: the device, or the alias, is there otherwise"""
    domain_xml.check(root, van)
    return domain_xml.find(root, van) is None


def _verify(domain: Any, van: objects.VAN, flags: int) -> int:
    """See that a domain has what libvirt said that it took.

    The guest where there is one: what is in its definition is of the same
    call, and a file.

    :param flags: where libvirt took it
    :returns: where it is still to go: to a guest that was shut off when it
        was listed, and runs by now
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
        reason='libvirt took it, but the domain does not have it',
    )
