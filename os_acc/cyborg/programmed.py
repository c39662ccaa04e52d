# SPDX-License-Identifier: Apache-2.0
"""The hook that keeps the function traits of Placement up to date.

The Cyborg agent reports the functions of devices once a minute, and the
conductor writes them to Placement. Until then the scheduler chooses hosts
by the old functions. This hook writes them at once.

It is an entry point of os_acc.programmed: see os_acc.programming.hooks.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from oslo_config import cfg

from os_acc.programming import hooks

if TYPE_CHECKING:
    from os_acc.placement import client as placement_client

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# How often to write the traits, if others change the resource provider at the
# same time, and the longest wait in seconds between two attempts.
_ATTEMPTS = 8
_LONGEST_WAIT = 0.5

_RANDOM = random.SystemRandom()


def update_traits(event: hooks.ProgrammedEvent) -> None:
    """Give the resource provider of a device the traits of its functions.

    Function traits of other functions are removed, and other traits are kept.
    Does nothing if [os_acc_placement] update_traits is not set, or if the
    Cyborg agent does not report the device by os-acc's driver.
    """
    if not CONF.os_acc_placement.update_traits:
        return
    # If the hook is off, it must not cost the import of these.
    from os_acc.cyborg import connections
    from os_acc.cyborg import names
    from os_acc.placement import client as placement_client

    options = CONF.os_acc_placement
    name = names.deployable(names.host(CONF), event.device)
    client = placement_client.Client(
        connections.by_group(connections.PLACEMENT, CONF, options.auth_section)
    )
    _update(client, name, event)


def _update(
    client: placement_client.Client, name: str, event: hooks.ProgrammedEvent
) -> None:
    """Do what update_traits() does.

    :param name: the name of the resource provider
    """
    from os_acc import exception
    from os_acc.cyborg import names

    uuid = names.provider_uuid(name)
    for attempt in range(1, _ATTEMPTS + 1):
        # The traits are read before the device. If another call for the same
        # device writes newer ones in between, Placement refuses those of this
        # call, and the device is read again.
        there = client.traits(uuid)
        if there is None:
            LOG.debug(
                'Placement has no resource provider %s (%s) for device %s: '
                "the Cyborg agent does not report it by os-acc's driver",
                uuid,
                name,
                event.device,
            )
            return
        functions = _function_traits(event)
        old = {
            each
            for each in there.names
            if each.startswith(names.FUNCTION_PREFIX)
        }
        if functions == old:
            return
        for each in sorted(functions - old):
            client.create_trait(each)
        wanted = (there.names - old) | functions
        if client.set_traits(uuid, wanted, there.generation):
            LOG.info(
                'Function traits of device %s, resource provider %s (%s), '
                'after programming function %s: added %s, removed %s',
                event.device,
                uuid,
                name,
                event.function_id,
                ', '.join(sorted(functions - old)) or 'none',
                ', '.join(sorted(old - functions)) or 'none',
            )
            return
        LOG.debug('Resource provider %s was changed by others', uuid)
        time.sleep(_RANDOM.uniform(0, _LONGEST_WAIT * attempt / _ATTEMPTS))
    raise exception.RemoteServiceError(
        service='placement',
        reason=f'resource provider {uuid} ({name}) was changed by others '
        f'during each of {_ATTEMPTS} attempts to set its function traits',
    )


def _function_traits(event: hooks.ProgrammedEvent) -> set[str]:
    """Return the function traits of a device as it is now.

    A device may have several functions, one in each region. It may also have
    been programmed again since the hook was called. The event counts if no
    driver reports the device.

    :raises DiscoveryFailed: if the functions of other regions are unknown
    """
    import os_acc
    from os_acc import exception
    from os_acc.cyborg import names

    failure = None
    try:
        devices = os_acc.get_devices()
    except exception.DiscoveryFailed as err:
        devices, failure = err.devices, err
    there = [each for each in devices if each.address == event.device]
    if not there:
        if failure is not None and event.region:
            raise failure
        name = event.function_id
        return {names.function_trait(name)} if name else set()
    found = there[0]
    # device_spec may give a device a function trait too.
    return names.function_traits(found) | {
        each for each in found.traits if each.startswith(names.FUNCTION_PREFIX)
    }
