# SPDX-License-Identifier: Apache-2.0

"""Accelerators that a flavor requests without Cyborg, and Placement places."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from keystoneauth1 import exceptions as keystone
from nova import exception as nova_exception
import nova.conf
from nova.scheduler.client import report

import os_acc
from os_acc import nova as calls
from os_acc import objects
from os_acc.placement import flavor
from os_acc.placement import provider_config
from os_acc_nova import errors

CONF = nova.conf.CONF


def to_requests(
    instance: Any,
    image_meta: Any,
    allocations: Mapping[str, Any] | None,
    nodes: Callable[[], Collection[str]],
) -> list[objects.AcceleratorRequest]:
    """Make requests for what a flavor requests of os-acc's devices.

    :param image_meta: Nova's ImageMeta
    :param allocations: the allocations of the instance, by the UUID of the
        resource provider, as Nova gives them to its driver. During an
        evacuation, the allocations on the source host are among them
    :param nodes: returns the UUIDs of the compute nodes of this host. The
        devices of os-acc are inventory of these nodes. Nova and Cyborg report
        their own devices as other resource providers
    :raises InvalidRequest, DeviceNotFound, DiscoveryFailed: see
        os_acc.nova.allocated_requests
    """
    custom = {
        provider: allocation['resources']
        for provider, allocation in (allocations or {}).items()
        if any(name.startswith('CUSTOM_') for name in allocation['resources'])
    }
    if not custom:
        return []
    allocated: collections.Counter[str] = collections.Counter()
    for provider in custom.keys() & set(nodes()):
        allocated.update(custom[provider])
    if not allocated:
        return []
    return calls.allocated_requests(
        instance,
        allocated,
        _image_traits(image_meta),
        CONF.compute.provider_config_location,
    )


def missing(
    context: Any,
    instance: Any,
    image_meta: Any,
    nodes: Callable[[], Collection[str]],
    known: Collection[str],
) -> list[objects.AcceleratorRequest]:
    """Make requests for what a flavor requests and its instance lacks.

    For a guest that is started again. Its VANs can be gone: a rebuild has
    failed, somebody has unplugged them, or the instance was on another host.
    Nova does not give the allocations to its driver then, so they are read
    from Placement, unless the journal has as many VANs as the flavor
    requests.

    :param image_meta: see to_requests()
    :param nodes: see to_requests()
    :param known: the UUIDs of the VANs that the instance has
    :raises AcceleratorPlugFailure: if Placement does not answer, or has no
        allocation of what the flavor requests and os-acc offers here
    :raises InvalidRequest, DeviceNotFound, DiscoveryFailed: see
        os_acc.nova.allocated_requests
    """
    asked = flavor.amounts(
        flavor.groups(instance.flavor.extra_specs, _image_traits(image_meta))
    )
    expected = flavor.request_uuids(instance.uuid, asked.total())
    if set(expected) <= set(known):
        return []
    allocations = _read(context, instance)
    _check_allocated(asked, allocations)
    requests = to_requests(instance, image_meta, allocations, nodes)
    return [each for each in requests if each.uuid not in known]


def _image_traits(image_meta: Any) -> list[str]:
    traits: list[str] = image_meta.properties.get('traits_required', [])
    return traits


def _read(context: Any, instance: Any) -> Mapping[str, Any]:
    """Read the allocations of an instance from Placement, by provider."""
    client = report.report_client_singleton()
    try:
        answer = client.get_allocs_for_consumer(context, instance.uuid)
    except (
        keystone.ClientException,
        nova_exception.ConsumerAllocationRetrievalFailed,
    ) as err:
        raise errors.AcceleratorPlugFailure(
            reason='its flavor requests accelerators, and its allocations '
            f'cannot be read from Placement: {err}'
        ) from err
    found: Mapping[str, Any] = answer['allocations']
    return found


def _check_allocated(
    asked: Mapping[str, int], allocations: Mapping[str, Any]
) -> None:
    """Refuse to start a guest whose allocation is gone.

    A resource class that os-acc does not offer on this host is no concern of
    it. One that another provider has allocated is a device of that provider.
    """
    allocated = {
        name for each in allocations.values() for name in each['resources']
    }
    lost = sorted(asked.keys() - allocated)
    if not lost:
        return
    directory = CONF.compute.provider_config_location
    ours = provider_config.published(directory).classes | {
        each.resource_class for each in os_acc.get_devices()
    }
    for name in lost:
        if name in ours:
            raise errors.AcceleratorPlugFailure(
                reason=f'its flavor requests resources:{name}={asked[name]}, '
                'and Placement has no allocation of it for this instance. '
                'Run nova-manage placement heal_allocations, and start it '
                'again'
            )
