# SPDX-License-Identifier: Apache-2.0

"""Accelerators that a flavor requests without Cyborg, and Placement places."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import threading
from typing import Any

from keystoneauth1 import exceptions as keystone
from nova import exception as nova_exception
from nova.scheduler.client import report

import os_acc
from os_acc import nova as calls
from os_acc import objects
from os_acc.placement import flavor
from os_acc.placement import inventory
from os_acc_nova import accelerators
from os_acc_nova import errors
from os_acc_nova import providers

_FAILURES = (
    keystone.ClientException,
    nova_exception.ConsumerAllocationRetrievalFailed,
    nova_exception.ResourceProviderNotFound,
    nova_exception.ResourceProviderRetrievalFailed,
)


class _Chosen:
    """The handles that instances have got, and that are not plugged yet.

    Another instance that is built at the same time must not get them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_instance: dict[str, set[str]] = {}

    def choose(
        self,
        instance: Any,
        allocated: Mapping[str, Mapping[str, int]],
        image_traits: list[str],
    ) -> list[objects.AcceleratorRequest]:
        """Make requests with handles that no other instance gets."""
        # Under the lock: once a VAN has its handle, the devices show it.
        with self._lock:
            taken = {
                identity
                for uuid, each in self._by_instance.items()
                if uuid != instance.uuid
                for identity in each
            }
            made = calls.allocated_requests(
                instance, allocated, image_traits, taken
            )
            self._by_instance[instance.uuid] = {
                each.handle.identity
                for each in made
                if each.handle is not None
            }
        return made

    def forget(self, instance: Any) -> None:
        with self._lock:
            self._by_instance.pop(instance.uuid, None)


_chosen = _Chosen()


@contextlib.contextmanager
def choosing(instance: Any) -> Iterator[None]:
    """Forget at the end of the block which handles an instance has got.

    What the block has plugged is in the journal then.
    """
    try:
        yield
    finally:
        _chosen.forget(instance)


def to_requests(
    context: Any,
    instance: Any,
    image_meta: Any,
    allocations: Mapping[str, Any] | None,
    nodes: Collection[str],
) -> list[objects.AcceleratorRequest]:
    """Make requests for the devices of os-acc that a flavor requests.

    The caller is in a block of choosing() until they are plugged.

    :param image_meta: Nova's ImageMeta
    :param allocations: the allocations of the instance, by the UUID of the
        resource provider, as Nova gives them to its driver. During an
        evacuation, the allocations on the source host are among them
    :param nodes: the names of the compute nodes of this host
    :raises AcceleratorPlugFailure: if Placement does not answer
    :raises InvalidRequest, DeviceNotFound, DiscoveryFailed: see
        os_acc.nova.allocated_requests
    """
    custom = [
        name
        for each in (allocations or {}).values()
        for name in each['resources']
        if inventory.CUSTOM.fullmatch(name)
    ]
    if not custom:
        return []
    asked = flavor.amounts(flavor.groups(instance.flavor.extra_specs))
    allocated = {}
    for uuid, each in (allocations or {}).items():
        wanted = {n: k for n, k in each['resources'].items() if n in asked}
        place = _place(context, uuid, nodes) if wanted else None
        if place is not None:
            allocated[place] = wanted
    if not allocated:
        return []
    return _chosen.choose(instance, allocated, _image_traits(image_meta))


def missing(
    context: Any,
    instance: Any,
    image_meta: Any,
    nodes: Collection[str],
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
    allocations = read(context, instance.uuid)
    _check_allocated(asked, allocations)
    requests = to_requests(context, instance, image_meta, allocations, nodes)
    return [each for each in requests if each.uuid not in known]


def _image_traits(image_meta: Any) -> list[str]:
    traits: list[str] = image_meta.properties.get('traits_required', [])
    return traits


def _place(context: Any, uuid: str, nodes: Collection[str]) -> str | None:
    """Find the device of a resource provider.

    :returns: see inventory.place(); None if the provider is not one of
        os-acc's on this host
    """
    client = report.report_client_singleton()
    try:
        name = client.get_resource_provider_name(context, uuid)
    except _FAILURES as err:
        raise errors.AcceleratorPlugFailure(
            reason=f'the resource provider {uuid} of its allocation cannot be '
            f'read from Placement: {err}'
        ) from err
    for node in nodes:
        place = providers.place_in(node, name)
        if place is not None:
            return place
    return None


def read(context: Any, consumer_uuid: str) -> Mapping[str, Any]:
    """Read allocations from Placement, by the UUID of the provider.

    :param consumer_uuid: the UUID of an instance, or of a migration, which
        has what the instance has on its source
    :raises AcceleratorPlugFailure: if Placement does not answer
    """
    client = report.report_client_singleton()
    try:
        answer = client.get_allocs_for_consumer(context, consumer_uuid)
    except _FAILURES as err:
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

    A resource class that os-acc does not offer on this host does not concern
    it. One that another provider has allocated is a device of that provider.
    """
    allocated = {
        name for each in allocations.values() for name in each['resources']
    }
    lost = sorted(
        name
        for name in asked.keys() - allocated
        if accelerators.is_reported(name)
    )
    if not lost:
        return
    ours = {each.resource_class for each in os_acc.get_devices()}
    for name in lost:
        if name in ours:
            raise errors.AcceleratorPlugFailure(
                reason=f'its flavor requests resources:{name}={asked[name]}, '
                'and Placement has no allocation of it for this instance. '
                'Set its allocation (openstack resource provider allocation '
                'set), and start it again'
            )
