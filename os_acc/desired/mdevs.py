# SPDX-License-Identifier: Apache-2.0

"""The mediated devices that are there before an instance requests one.

A request by class gets one of them before a new one is made. It stays when its
instance has left. Root's record says so. It does not survive a reboot, nor do
the devices: the document is applied again then.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import functools
import logging
import os

from os_acc import exception
from os_acc import host as host_module
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.desired import ahead
from os_acc.desired import documents
from os_acc.desired import offered
from os_acc.desired import steps
from os_acc.journal import desired as rows
from os_acc.kernel import mdev
from os_acc.kernel import mdev_types
from os_acc.kernel import pci
from os_acc.kinds.mdev.driver import handles
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

PART = 'mdevs'
_THERE, _MISSING = 'there', 'not there'


def find(
    host: host_module.Host,
    document: documents.Document,
    before: rows.Desired | None,
) -> Iterator[steps.Step]:
    """A step for each device that this or the earlier document names."""
    wanted, earlier, done = ahead.compare(PART, document, before)
    # First what goes: it may take the room of what comes.
    gone = [name for name in earlier if name not in wanted]
    those = dict.fromkeys([*gone, *wanted])
    if not those:
        return
    specs = offered.specs_after(host.conf, document)
    missing: collections.Counter[tuple[str, str]] = collections.Counter()
    freed = {handles.of_name(name).parent for name in gone}
    for name in those:
        device = handles.of_name(name)
        there = mdev.find(device.uuid) == device
        now = _THERE if there else _MISSING
        if name not in wanted:
            users = functools.partial(_users, host, device)
            # Also if it is gone: root may have a record of it.
            act = functools.partial(_let_go, host, device)
            changes = functools.partial(_lets_go, host, device)
            yield steps.Step(
                PART, name, now, _MISSING, act, users, changes=changes
            )
        elif there and name in done:
            yield steps.Step(PART, name, now, now)
        else:
            error = None
            if not there:
                missing[device.parent, device.type] += 1
                number = missing[device.parent, device.type]
                if device.parent in freed:
                    number = 0
                error = _obstacle(host, specs, device, number)
            keep = functools.partial(_keep, host, device)
            yield steps.tried(PART, name, now, _THERE, keep, error)


def _obstacle(
    host: host_module.Host,
    specs: device_spec.Specs,
    device: mdev.Mdev,
    number: int = 1,
) -> exception.ExceptionBase | None:
    """Why a device cannot be made now, as far as that is seen.

    :param number: of its type, for so many devices room is needed; 0: it is
        unknown how much there will be
    """
    try:
        spec = specs.check_mdev(device.parent, device.type)
        holders = ahead.holders(host)
        about = f'mdev parent {device.parent}'
        for each in availability.part_obstacles(device.parent, about, holders):
            return each.error()
        if pci.is_address(device.parent):
            function = pci.get(device.parent)
            for each in availability.unhealthy_obstacles(function, holders):
                return each.error()
        if number:
            handles.check_room(device, spec.max_instances)
            kind = mdev_types.type_of(device.parent, device.type)
            if kind.available < number:
                return mdev.exhausted(device)
    except exception.ExceptionBase as err:
        return err
    return None


def _keep(host: host_module.Host, device: mdev.Mdev) -> bool:
    """Make a device that stays.

    :returns: False: it was there before
    """
    from os_acc.privileged.mdev import devices as privileged

    with host.locks.device(device.parent):
        if mdev.find(device.uuid) is None:
            specs = device_spec.load(host.conf)
            if (error := _obstacle(host, specs, device)) is not None:
                raise error
        with host.acting_for():
            return privileged.keep(
                device.uuid,
                device.parent,
                device.type,
                host.conf.os_acc.device_timeout,
            )


def _let_go(host: host_module.Host, device: mdev.Mdev) -> bool:
    """Remove a device that the document has no more, if nobody has it.

    :returns: False: it was gone before, or others have made it, and it stays
    """
    from os_acc.privileged.mdev import devices as privileged

    if not os.path.isdir(mdev.parent_directory(device.parent)):
        return False
    with host.locks.device(device.parent):
        there = mdev.find(device.uuid) is not None
        ahead.refuse(f'mdev {device.uuid}', _users(host, device))
        with host.acting_for():
            done = privileged.let_go(
                device.uuid,
                device.parent,
                device.type,
                host.conf.os_acc.device_timeout,
            )
    if not done:
        LOG.warning('mdev %s stays: others have made it', device.uuid)
    return there and done


def _lets_go(host: host_module.Host, device: mdev.Mdev) -> bool:
    """Whether _let_go() would remove a device, if nobody has it."""
    from os_acc.privileged.mdev import devices as privileged

    if mdev.find(device.uuid) is None:
        return False
    with host.acting_for():
        return privileged.lets_go(device.uuid, device.parent, device.type)


def _users(host: host_module.Host, device: mdev.Mdev) -> list[str]:
    """Say which VAN has a device."""
    found = allocated.Holders(host.journal.handles()).of_mdev(device.uuid)
    return ahead.clauses([found] if found is not None else [])
