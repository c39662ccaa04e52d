# SPDX-License-Identifier: Apache-2.0

"""The calls that the driver makes to os-acc, in Nova's terms.

Nothing here imports Nova.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
import logging
import os
from typing import Any

import os_acc
from os_acc import exception
from os_acc import log
from os_acc import nova
from os_acc import objects
from os_acc.objects import van as states
from os_acc.placement import inventory
from os_acc_nova import options as _options  # noqa: F401 (registers them)

LOG = logging.getLogger(__name__)

_GROUP = 'os_acc'
#: The owner of the VANs that this driver plugs. VANs of other owners, such as
#: the command os-acc, are never released as orphans.
OWNER = 'nova'


def initialize(state_path: str, node: str) -> None:
    """Initialize os-acc in this process.

    The values given are defaults: what nova.conf says in the group [os_acc]
    takes precedence.

    :param state_path: Nova's own state_path. The default of os-acc's,
        /var/lib/os-acc, is not writable by the user that runs nova-compute
    :param node: the name of this hypervisor. Nova's conductor binds ARQs to
        it, not to [DEFAULT] host
        (_create_and_bind_arq_for_instance in nova/conductor/manager.py)
    :raises InvalidRequest, JournalError: see os_acc.initialize
    """
    conf = os_acc.CONF
    conf.set_default(
        'state_path', os.path.join(state_path, 'os-acc'), group=_GROUP
    )
    conf.set_default('host', node, group=_GROUP)
    os_acc.initialize(owner=OWNER)


def programs() -> bool:
    """Say whether os-acc programs what device profiles name."""
    chosen: bool = os_acc.CONF.os_acc_nova.program
    return chosen


def is_reported(resource_class: str) -> bool:
    """Say whether nova-compute reports the devices of a resource class."""
    if not inventory.CUSTOM.fullmatch(resource_class):
        return False
    chosen = os_acc.CONF.os_acc_nova.resource_classes
    return '*' in chosen or resource_class in chosen


def plugged(instance_uuid: str) -> list[objects.VAN]:
    """Read the VANs that an instance has, from the journal.

    VANs that are half done or that could not be released are left out: a
    guest must not start with their devices.
    """
    return [
        van
        for van in os_acc.get_vans(instance_uuid)
        if van.state == states.PLUGGED
    ]


def unplug(instance: Any) -> None:
    """Release all VANs of an instance. An instance without any is fine.

    :param instance: Nova's Instance
    :raises UnplugException: if some could not be released
    """
    os_acc.unplug(nova.instance_info(instance))


def unplug_or_log(instance: Any) -> None:
    """Release all VANs of an instance. An error is only logged.

    What could not be released stays in the journal, and is tried again when
    nova-compute starts, or when the instance is deleted.
    """
    try:
        unplug(instance)
    except exception.ExceptionBase as err:
        log.about(LOG, instance.uuid).error(
            'The accelerators were not released: %s', err
        )


def release_orphans(known_instance_uuids: Collection[str]) -> None:
    """Release the VANs of instances that are gone. An error is only logged.

    Nova calls no driver for an instance whose domain was already gone when
    the instance was deleted. This is called while nova-compute starts and
    works on no instance yet, so the age of a VAN does not matter.

    :param known_instance_uuids: the instances that Nova's database or the
        hypervisor knows
    """
    try:
        orphans = os_acc.release_orphans(known_instance_uuids, 0)
    except exception.ExceptionBase as err:
        LOG.error('The VANs of lost instances were not released: %s', err)
        return
    for van in orphans:
        logger = log.about(LOG, van.instance_uuid, van.uuid)
        if van.error is None:
            logger.warning('The accelerator of a lost instance was released')
        else:
            logger.error(
                'The accelerator of a lost instance was not released: %s',
                van.error,
            )


def mdevs(vans: Iterable[objects.VAN]) -> dict[str, str]:
    """Return the mediated devices of VANs.

    :returns: the UUID of the instance, by the UUID of the mediated device
    """
    return {
        van.handle.uuid: van.instance_uuid
        for van in vans
        if isinstance(van.handle, objects.MdevHandle)
    }


def all_mdevs() -> dict[str, str]:
    """Return the mediated devices of all VANs in the journal, as mdevs().

    VANs that are half done count: their mediated devices may exist already.
    """
    return mdevs(os_acc.get_vans())
