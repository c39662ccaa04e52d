# SPDX-License-Identifier: Apache-2.0

"""Mediated devices that Cyborg creates, with checks that Cyborg lacks."""

from __future__ import annotations

from collections.abc import Callable
import errno
import logging

from oslo_config import cfg

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.deadlines import waiting
from os_acc.kernel import mdev
from os_acc.kinds.cyborg.driver import process as cyborg_process
from os_acc.kinds.mdev.driver import handles as mdev_handles
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF


def check(van: objects.VAN, handle: objects.MdevHandle) -> None:
    """Check that a VAN can get a mediated device.

    If it does not exist yet, the VAN's driver_data notes that os-acc has to
    remove it later. The caller saves the VAN.
    """
    wanted, limit = mdev_handles.mdev_of(handle), None
    if van.device is None:
        spec = device_spec.load(CONF).check_mdev(wanted.parent, wanted.type)
        limit = spec.max_instances
    # Otherwise the VAN already has it, and keeps it.
    there = mdev.find(wanted.uuid)
    if there is None:
        mdev_handles.check_room(wanted, limit)
        van.driver_data = {**van.driver_data, mdev_handles.MADE: '1'}
        return
    mdev_handles.check_free(van, there, wanted)


def make(
    van: objects.VAN,
    handle: objects.MdevHandle,
    create: Callable[[objects.MdevHandle], None],
) -> None:
    """Have a mediated device created, unless it exists.

    :param create: asks Cyborg to create it; raises CallFailed
    """
    wanted = mdev_handles.mdev_of(handle)
    if mdev.find(wanted.uuid) is not None:
        mdev_handles.hold(wanted)
        return
    from os_acc.privileged.mdev import devices as privileged

    privileged.announce(
        wanted.uuid, wanted.parent, wanted.type, CONF.os_acc.device_timeout
    )
    try:
        create(handle)
    except cyborg_process.CallFailed as err:
        if err.errno in mdev.EXHAUSTED:
            raise mdev.exhausted(wanted) from err
        there = mdev.find(wanted.uuid) if err.errno == errno.EEXIST else None
        if there is None:
            raise exception.DeviceError(
                device=f'mdev type {wanted.type} on {wanted.parent}',
                reason=str(err),
            ) from err
    there = waiting.until(
        lambda: mdev.find(wanted.uuid),
        CONF.os_acc.device_timeout,
        f'mdev {wanted.uuid}, which Cyborg created',
        'mdev',
    )
    mdev.check_same(there, wanted)
    log.about(LOG, van.instance_uuid, van.uuid).info(
        'Cyborg created mdev %s of type %s on %s',
        wanted.uuid,
        wanted.type,
        wanted.parent,
    )
