# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The calls that the driver makes to os-acc, in Nova's terms.

Nothing here imports Nova. A VAN has the UUID of its ARQ, so the two are
matched by it.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import logging
import os
from typing import Any

import os_acc
from os_acc import exception
from os_acc import log
from os_acc import nova
from os_acc import objects

LOG = logging.getLogger(__name__)

_GROUP = 'os_acc'
_PLUGGED = 'plugged'
#: An ARQ, as Nova passes it on from Cyborg's REST API.
ARQ = Mapping[str, Any]


def initialize(state_path: str, node: str) -> None:
    """Initialize os-acc in this process.

    The values given are defaults: what nova.conf says in the group [os_acc]
    goes first.

    :param state_path: Nova's own state_path. The default of os-acc's,
        /var/lib/os-acc, is not writable by the user that runs nova-compute
    :param node: the name of this hypervisor. The conductor binds ARQs to it,
        not to [DEFAULT] host (_create_and_bind_arqs in
        nova/conductor/manager.py)
    :raises InvalidRequest, JournalError: see os_acc.initialize
    """
    conf = os_acc.CONF
    conf.set_default(
        'state_path', os.path.join(state_path, 'os-acc'), group=_GROUP
    )
    conf.set_default('host', node, group=_GROUP)
    os_acc.initialize()


def plugged(instance_uuid: str) -> list[objects.VAN]:
    """Read the VANs that an instance has, from the journal.

    VANs that are half done or that could not be released are left out: a
    guest must not start with their devices.
    """
    return [
        van for van in os_acc.get_vans(instance_uuid) if van.state == _PLUGGED
    ]


def plug(
    instance: Any,
    arqs: Sequence[ARQ],
    port_arq_uuids: Collection[str],
    profile_groups: Mapping[str, Sequence[Mapping[str, str]]],
) -> None:
    """Plug the ARQs.

    :param instance: Nova's Instance
    :param port_arq_uuids: the ARQs that belong to network ports
    :param profile_groups: the groups of each device profile, by its name
    :raises ExceptionBase: see os_acc.plug
    """
    requests = nova.requests(arqs, port_arq_uuids, profile_groups)
    if requests:
        os_acc.plug(nova.instance_info(instance), requests)


def replug(instance: Any) -> None:
    """Plug again what the journal has of an instance, if anything.

    :raises ExceptionBase: see os_acc.replug
    """
    if os_acc.get_vans(instance.uuid):
        os_acc.replug(nova.instance_info(instance))


def unplug(instance: Any) -> None:
    """Release all VANs of an instance. An instance without any is fine.

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
    the instance was deleted.

    :param known_instance_uuids: the instances that Nova's database or the
        hypervisor knows
    """
    try:
        # At this time nova-compute works on no instance yet, so the age of a
        # VAN does not matter.
        released = os_acc.release_orphans(known_instance_uuids, 0)
    except exception.ExceptionBase as err:
        LOG.error('The VANs of lost instances were not released: %s', err)
        return
    for van in released:
        log.about(LOG, van.instance_uuid, van.uuid).warning(
            'Neither Nova nor the hypervisor knows the instance, so its '
            'accelerator was released'
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


def devices(vans: Sequence[objects.VAN]) -> list[str]:
    """Return the elements of <devices> for a guest with these VANs."""
    return [van.guest_config for van in vans if van.guest_config is not None]
