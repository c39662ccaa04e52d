# SPDX-License-Identifier: Apache-2.0

"""The mediated device of a VAN: whether it is free, and its release."""

from __future__ import annotations

import collections
from collections.abc import Iterable
import logging
import os
import uuid

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import journal as journal_module
from os_acc import log
from os_acc import objects
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.kernel import mdev
from os_acc.kernel import mdev_types
from os_acc.kernel import pci
from os_acc.privileged import root_folder

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Key of VAN.driver_data: os-acc makes, or has made, the device for this VAN.
MADE = 'made'

_NAMESPACE = uuid.UUID('2c1f5a60-7c1e-4d0b-9a53-6f2f0c7e9d41')


def mdev_of(handle: objects.MdevHandle) -> mdev.Mdev:
    return mdev.Mdev(handle.uuid, handle.parent, handle.type)


def kept(
    journal: journal_module.Journal, also_let_go: bool = True
) -> dict[str, mdev.Mdev]:
    """The mediated devices that os-acc apply makes ahead of time, by UUID.

    :param also_let_go: also those that it is about to remove
    """
    names = journal.devices_of('mdevs', also_let_go)
    return {each.uuid: each for each in map(of_name, names)}


def free(driver: driver_base.DriverBase, van: objects.VAN) -> list[mdev.Mdev]:
    """The devices of kept() that exist, and that no VAN has."""
    holders = allocation.holders(driver, van)
    return [
        each
        for each in kept(driver.journal, also_let_go=False).values()
        if mdev.find(each.uuid) == each and not holders.of_mdev(each.uuid)
    ]


def of_name(name: str) -> mdev.Mdev:
    """The mediated device for a name that os-acc apply uses.

    Its UUID is always the same, so that it is found again after a reboot.

    :param name: parent, type and number: see journal.desired
    """
    parent, kind, _ = name.split(' ')
    return mdev.Mdev(str(uuid.uuid5(_NAMESPACE, name)), parent, kind)


def is_there(handle: objects.AttachHandle | None) -> bool:
    """Whether the mediated device of a VAN exists on its parent."""
    if not isinstance(handle, objects.MdevHandle):
        return True
    wanted = mdev_of(handle)
    return mdev.find(wanted.uuid) == wanted


def wait_for_parent(handle: objects.MdevHandle) -> None:
    """Wait for the parent of a device that a VAN has had.

    After a reboot it may appear only once a service of its vendor has started.
    """
    path = mdev.parent_directory(handle.parent)
    waiting.until(
        lambda: os.path.isdir(path),
        CONF.os_acc.device_timeout,
        f'mdev parent {handle.parent} to come back',
        'mdev',
    )


def check_free(van: objects.VAN, there: mdev.Mdev, wanted: mdev.Mdev) -> None:
    """Check that a VAN can take a mediated device that exists already."""
    mdev.check_same(there, wanted)
    from os_acc.privileged import device_users

    allocation.check_open(
        f'mdev {wanted.uuid}',
        device_users.of_mdev(wanted.uuid, van.instance_uuid),
    )


def hold(there: mdev.Mdev) -> None:
    """Tell the privileged half that a VAN has an mdev that exists already."""
    from os_acc.privileged.mdev import devices as privileged

    privileged.hold(there.uuid)


def create(van: objects.VAN, wanted: mdev.Mdev, kept: bool) -> None:
    """Make the mediated device of a VAN, which is saved with it.

    :param kept: whether it stays when the VAN has gone
    """
    from os_acc.privileged.mdev import devices as privileged

    try:
        privileged.create(
            wanted.uuid,
            wanted.parent,
            wanted.type,
            CONF.os_acc.device_timeout,
            kept,
        )
    except exception.DeviceBusy:
        if mdev.find(wanted.uuid) is not None:
            # Somebody else has just made it: os-acc must not remove it.
            van.handle, van.device, van.driver_data = None, None, {}
            van.save()
        raise
    log.about(LOG, van.instance_uuid, van.uuid).info(
        'mdev %s of type %s created on %s',
        wanted.uuid,
        wanted.type,
        wanted.parent,
    )


def undo(van: objects.VAN) -> None:
    """Release the mediated device of a VAN; remove it if os-acc made it.

    Does nothing if the VAN has none.
    """
    if not isinstance(van.handle, objects.MdevHandle):
        return
    wanted = mdev_of(van.handle)
    if mdev.find(wanted.uuid) not in (None, wanted):
        # Another device has the UUID by now.
        return
    from os_acc.privileged.mdev import devices as privileged

    conf = CONF.os_acc
    if MADE not in van.driver_data:
        # After a migration that failed, no other state can be loaded into it.
        anew = van.migration_uuid is not None
        privileged.released(wanted.uuid, conf.release_timeout, anew)
        return
    # Called even if it does not exist: its creation may still be under way.
    if not privileged.remove(
        wanted.uuid,
        wanted.parent,
        wanted.type,
        conf.release_timeout,
        conf.device_timeout,
    ):
        raise exception.DeviceError(
            device=f'mdev {wanted.uuid}',
            reason='the privileged daemon has no record of making it: it was '
            'made by an earlier version of os-acc, or the record below '
            f'{root_folder.PATH} was lost. Remove it as root, and run os-acc '
            f'recover: echo 1 > {mdev.directory(wanted.uuid)}/remove',
        )
    log.about(LOG, van.instance_uuid, van.uuid).info(
        'mdev %s removed', wanted.uuid
    )


# How many mediated devices fit into a card.


class Room:
    """How many more mediated devices of each type fit into each card.

    The VFs of a card may be parents that share its capacity. Each of them
    shows that one more can be made, until the card is full. So the report
    counts no more of them than fit, from the first VF on.
    """

    def __init__(self, made: Iterable[mdev.Mdev]) -> None:
        self._taken = collections.Counter(
            (_card_of(each.parent), each.type) for each in made
        )

    def left(self, kind: mdev_types.Type, limit: int | None) -> int | None:
        """How many more of a type fit into a card; None if that is unknown.

        :param limit: max_instances of device_spec; None: as the driver says
        """
        function = function_of(kind.parent)
        is_vf = function is not None and function.is_vf
        most = limit or (kind.maximum if is_vf else None)
        if most is None:
            return None
        return max(0, most - self._taken[_card_of(kind.parent), kind.name])

    def take(self, kind: mdev_types.Type, limit: int | None) -> int:
        """How many more of a type to report for a parent. See left()."""
        left = self.left(kind, limit)
        if left is None:
            return kind.available
        number = min(kind.available, left)
        self._taken[_card_of(kind.parent), kind.name] += number
        return number


def check_room(wanted: mdev.Mdev, limit: int | None) -> None:
    """Check that a card may have one more mediated device of a type.

    :param limit: max_instances of its entry of device_spec
    """
    kind = mdev_types.type_of(wanted.parent, wanted.type)
    left = Room(mdev.devices()).left(kind, limit)
    if not kind.available or (left is not None and left < 1):
        raise mdev.exhausted(wanted)


def function_of(parent: str) -> pci.Function | None:
    """The PCI function that a parent is; None if it is none."""
    return pci.find(parent) if pci.is_address(parent) else None


def _card_of(parent: str) -> str:
    function = function_of(parent)
    return function.parent if function is not None else parent
