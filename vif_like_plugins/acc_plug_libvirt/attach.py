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
from typing import Any

from acc_plug_libvirt import connection
from acc_plug_libvirt import domain_xml
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.linux import waiting

LOG = logging.getLogger(__name__)

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
    waiting.at_most(
        lambda: _attach(to, van),
        seconds,
        f'libvirt to attach VAN {van.uuid} to domain {van.instance_uuid}',
    )


def _attach(to: connection.Connection, van: objects.VAN) -> None:
    what = f'attach to domain {van.instance_uuid}'
    _check_others(to, van)
    to.run(what, lambda _: _attach_missing(to, van))


def _domain(to: connection.Connection, van: objects.VAN) -> Any:
    domain = to.domain(van.instance_uuid)
    if domain is None:
        raise exception.DeviceNotFound(
            wanted=f'VAN {van.uuid}',
            reason=f'libvirt has no domain {van.instance_uuid} to attach to',
        )
    return domain


def _missing(domain: Any, van: objects.VAN, looked_for: int) -> int:
    """The flags of what does not have it, of those that are looked for."""
    libvirt = connection.module()
    flags = 0
    for flag, options in (
        (libvirt.VIR_DOMAIN_AFFECT_LIVE, 0),
        (libvirt.VIR_DOMAIN_AFFECT_CONFIG, libvirt.VIR_DOMAIN_XML_INACTIVE),
    ):
        if looked_for & flag and (
            domain_xml.find(domain.XMLDesc(options), van) is None
        ):
            flags |= flag
    return flags


def _attach_missing(to: connection.Connection, van: objects.VAN) -> None:
    libvirt = connection.module()
    logger = log.about(LOG, van.instance_uuid, van.uuid)
    what = f'attach to domain {van.instance_uuid}'
    domain = _domain(to, van)
    flags = 0
    if domain.isActive():
        flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
    if domain.isPersistent():
        flags |= libvirt.VIR_DOMAIN_AFFECT_CONFIG
    flags = _missing(domain, van, flags)
    if not flags:
        logger.debug('the domain has it already')
        return
    try:
        domain.attachDeviceFlags(van.guest_config, flags)
    except libvirt.libvirtError as err:
        if _NO_SLOT.lower() in str(err).lower():
            raise exception.HypervisorError(
                what=what, reason=f'{err}: {_NO_SLOT_ADVICE}'
            ) from err
        raise
    if _missing(domain, van, flags):
        raise exception.HypervisorError(
            what=what,
            reason='libvirt took it, but the domain does not have it',
        )
    logger.info('attached to the domain')


def _check_others(to: connection.Connection, van: objects.VAN) -> None:
    """libvirt lets two definitions have one device, until both run."""
    wanted = van.handle.identity if van.handle is not None else None

    def look(opened: Any) -> None:
        for domain in opened.listAllDomains(0):
            if domain.UUIDString() == van.instance_uuid:
                continue
            for each in domain_xml.hostdevs(_xml(domain)):
                if each.identity == wanted:
                    raise exception.DeviceBusy(
                        device=wanted, holder=f'domain {domain.name()}'
                    )

    to.run('the other domains of this host', look)


def _xml(domain: Any) -> Any:
    libvirt = connection.module()
    try:
        return domain_xml.parse(domain.XMLDesc(0))
    except libvirt.libvirtError as err:
        if err.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return domain_xml.parse('<domain/>')
        raise
