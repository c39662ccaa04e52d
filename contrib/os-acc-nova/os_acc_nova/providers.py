# SPDX-License-Identifier: Apache-2.0

"""The resource providers of os-acc's devices, below the compute node's.

See update_provider_tree() of nova/virt/driver.py. The providers are known by
their names: the name of the node, a mark, and the place of the device.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
import logging
from typing import Any

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception as nova_exception
from nova.scheduler.client import report
import os_traits

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc import reserved
from os_acc.placement import flavor
from os_acc.placement import inventory
from os_acc_nova import accelerators
from os_acc_nova import set_traits

LOG = logging.getLogger(__name__)

_MARK = '_os-acc_'


def name_of(node: str, place: str) -> str:
    """Name the provider of a device. The name is the same after a reboot.

    :param node: the name of the compute node
    :param place: see inventory.place()
    """
    return f'{node}{_MARK}{place}'


def place_in(node: str, name: str) -> str | None:
    """Return the place in the name of a provider: see name_of().

    :returns: None if it is not a provider of os-acc on this node
    """
    start = f'{node}{_MARK}'
    return name.removeprefix(start) if name.startswith(start) else None


@dataclasses.dataclass
class Offer:
    """What this host offers now.

    :ivar found: by place
    :ivar vans: the VANs whose devices are allocated from these providers
    :ivar failure: why devices may be missing; None: none is
    :ivar unread: the addresses of devices that are there, but cannot be read
    """

    found: dict[str, inventory.Provider]
    vans: list[objects.VAN]
    failure: str | None = None
    unread: frozenset[str] = frozenset()

    def is_unknown(self, place: str) -> bool:
        """Whether a device that is not found may be there all the same."""
        return self.failure is not None or any(
            place == address or place.startswith(f'{address}_')
            for address in self.unread
        )


def look() -> Offer:
    """Look for the devices. Never raises an error of os-acc.

    If nova-compute is to report none, it does not look.
    """
    if not os_acc.CONF.os_acc_nova.resource_classes:
        return Offer({}, [])
    try:
        vans = [
            van
            for van in os_acc.get_vans()
            if van.owner == accelerators.OWNER
            and flavor.is_of_flavor(van.uuid)
        ]
        kept = reserved.read(os_acc.this_host().journal)
    except exception.ExceptionBase as err:
        return Offer({}, [], str(err))
    failure = None
    try:
        devices = os_acc.get_devices()
    except exception.DiscoveryFailed as err:
        devices, failure = err.devices, str(err)
    except exception.ExceptionBase as err:
        devices, failure = [], str(err)
    reported = [
        each
        for each in devices
        if accelerators.is_reported(each.resource_class)
    ]
    return Offer(
        inventory.providers(reported, {van.uuid for van in vans}, kept),
        vans,
        failure,
        frozenset(d.address for d in devices if not d.resource_class),
    )


def update(tree: Any, node: str, offer: Offer) -> None:
    """Update the providers of a tree to those of an offer.

    A provider whose device is gone is removed, unless an instance has an
    allocation from it: then nothing more can be allocated from it.

    :param tree: Nova's ProviderTree
    :param node: the name of the compute node
    """
    if offer.failure is not None:
        LOG.error(
            'The devices that are not found stay in Placement as they are: %s',
            offer.failure,
        )
    notes = set_traits.SetTraits()
    there = _there(tree, node)
    for place in sorted(there.keys() | offer.found.keys()):
        found = offer.found.get(place)
        name = name_of(node, place)
        if found is None and offer.is_unknown(place):
            notes.keep(name)
            continue
        inventories = _inventories(found)
        if place in there:
            kept = _in_use(there[place], inventories)
            if kept is None:
                notes.keep(name)
                continue
            inventories |= kept
            if found is None and not kept:
                LOG.info('The device of provider %s is gone', name)
                tree.remove(name)
                continue
        else:
            tree.new_child(name, node)
        tree.update_inventory(name, inventories)
        if found is not None:
            traits = notes.merged(
                name, tree.data(name).traits, _accepted(found.traits)
            )
            tree.update_traits(name, traits)
        else:
            notes.keep(name)
    notes.save()


def _there(tree: Any, node: str) -> dict[str, Any]:
    """The providers of os-acc that the tree has, by place."""
    found = {}
    for uuid in tree.get_provider_uuids(node):
        data = tree.data(uuid)
        place = place_in(node, data.name)
        if place is not None:
            found[place] = data
    return found


def _inventories(
    found: inventory.Provider | None,
) -> dict[str, dict[str, Any]]:
    made = found.inventories if found is not None else {}
    return {
        name: _fields(each.total, each.reserved) for name, each in made.items()
    }


def _fields(total: int, reserved: int = 0) -> dict[str, Any]:
    return {
        'total': total,
        'reserved': reserved,
        'min_unit': 1,
        'max_unit': total,
        'step_size': 1,
        'allocation_ratio': 1.0,
    }


def _in_use(
    data: Any, new: Mapping[str, Any]
) -> dict[str, dict[str, Any]] | None:
    """The inventories that must stay, because instances have some of them.

    Placement refuses to delete such an inventory, and with it the whole
    update. Just what is allocated stays, so that nothing is left.

    :param data: the provider, as it is
    :param new: the inventories that it is to have
    :returns: None if it cannot be known
    """
    lost = data.inventory.keys() - new.keys()
    if not lost:
        return {}
    client = report.report_client_singleton()
    try:
        found = client.get_allocations_for_resource_provider(
            nova_context.get_admin_context(), data.uuid
        )
    except (
        keystone.ClientException,
        nova_exception.ResourceProviderAllocationRetrievalFailed,
    ) as err:
        LOG.error('Provider %s stays as it is: %s', data.name, err)
        return None
    used = dict.fromkeys(lost, 0)
    for each in found.allocations.values():
        for name in lost & each['resources'].keys():
            used[name] += each['resources'][name]
    for name in sorted(lost):
        if used[name]:
            LOG.warning(
                'Provider %s has %d of %s allocated, but this host has no '
                'such device now',
                data.name,
                used[name],
                name,
            )
    return {name: _fields(each) for name, each in used.items() if each}


def _accepted(traits: Collection[str]) -> set[str]:
    """Leave out traits unknown to Placement: one would spoil the update."""
    known = set(os_traits.get_traits())
    return {t for t in traits if inventory.CUSTOM.fullmatch(t) or t in known}
