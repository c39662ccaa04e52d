# SPDX-License-Identifier: Apache-2.0

"""Mediated devices that Nova's own libvirt driver has made.

For the ARQ of an mdev, Nova's driver creates a node device of libvirt, and
defines it persistently with autostart (_create_mdev in
nova/virt/libvirt/driver.py of Nova 34). It never deletes it, so libvirt
creates the mdev again at each boot of the host, even if the instance was
deleted. os-acc makes its mdevs itself, and removes only those that it made.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
from typing import Any

from nova.virt.libvirt import driver
from nova.virt.libvirt import utils

from os_acc import log
from os_acc_nova import arqs as arqs_module

LOG = logging.getLogger(__name__)


def remove(
    host: Any, instance_uuid: str, arqs: Sequence[arqs_module.ARQ]
) -> None:
    """Remove the mdevs of ARQs from libvirt, so that os-acc makes them again.

    An mdev without a persistent definition was not made by Nova, and is left
    alone. An error is only logged: os-acc can attach the mdev nevertheless.

    :param host: the nova.virt.libvirt.host.Host of the driver
    :param arqs: ARQs without a VAN, whose guest does not run; those that are
        not of an mdev are ignored
    """
    logger = log.about(LOG, instance_uuid)
    for arq in arqs:
        if arq['attach_handle_type'] != 'MDEV':
            continue
        name = _name(arq)
        try:
            device = host.device_lookup_by_name(name)
            if not device.isPersistent():
                continue
            # The definition goes last: an interrupted removal is repeated.
            if device.isActive():
                device.destroy()
            device.undefine()
        except driver.libvirt.libvirtError as err:
            if err.get_error_code() == driver.libvirt.VIR_ERR_NO_NODE_DEVICE:
                continue
            logger.warning(
                'libvirt did not remove node device %s, which Nova has '
                'defined: %s. libvirt will create it again at each boot of '
                'the host. To prevent this, run: virsh nodedev-undefine %s',
                name,
                err,
                name,
            )
            continue
        logger.info(
            'removed node device %s, which Nova had defined, from libvirt: '
            'os-acc makes the mdev from now on',
            name,
        )


def _name(arq: arqs_module.ARQ) -> str:
    """The name of the node device, as _allocate_cyborg_mdevs() makes it."""
    info = arq['attach_handle_info']
    parts = [info[key] for key in ('domain', 'bus', 'device', 'function')]
    return '_'.join([utils.mdev_uuid2name(arq['attach_handle_uuid']), *parts])
