# SPDX-License-Identifier: Apache-2.0

"""Moves what earlier versions offered on the compute node's own provider.

They wrote a provider.yaml, whose inventories Nova added to the provider of
the compute node. Now each device has a provider of its own. Placement changes
all inventories and allocations in one step: see "reshape" in
nova/virt/driver.py.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Mapping
import logging
from typing import Any

from nova import exception as nova_exception

from os_acc import exception
from os_acc.placement import inventory
from os_acc.placement import provider_config
from os_acc_nova import accelerators
from os_acc_nova import providers

LOG = logging.getLogger(__name__)

#: Allocations of all consumers, as Nova gives them to its driver.
Allocations = Mapping[str, dict[str, Any]]


def check_files(directory: str) -> None:
    """Check that no provider.yaml offers what this driver reports.

    :param directory: Nova's option [compute] provider_config_location
    :raises InvalidRequest: if one does, or cannot be read
    """
    path = provider_config.own(directory)
    if path is not None:
        raise exception.InvalidRequest(
            subject='provider configuration',
            field=path,
            value='a file of an earlier version of os-acc',
            expected='no such file: nova-compute itself reports the devices '
            'now. Name their resource classes in [os_acc_nova] '
            'resource_classes, and remove the file',
        )
    found = provider_config.classes(directory)
    if not any(map(accelerators.is_reported, found)):
        return
    ours = {
        name
        for each in providers.look().found.values()
        for name in each.inventories
    }
    for name in sorted(ours & found.keys()):
        raise exception.InvalidRequest(
            subject='provider configuration',
            field=found[name],
            value=name,
            expected="no resource class of os-acc's devices: nova-compute "
            'itself reports them. Remove it from the file, or from '
            '[os_acc_nova] resource_classes',
        )


def update(
    tree: Any,
    node: str,
    before: Collection[str],
    allocations: Allocations | None,
    directory: str,
    started: bool,
) -> None:
    """Report the devices, and move what is on the compute node's provider.

    :param tree: Nova's ProviderTree, which Nova's own driver has updated
    :param before: the resource classes that the compute node had before
    :param allocations: those of all consumers; None: this is not a reshape
    :param directory: see check_files()
    :param started: whether this nova-compute has reported before. Nova
        accepts a reshape only at the first time
    :raises ReshapeNeeded: if something must move
    :raises ReshapeFailed: if it cannot be moved
    """
    moving = set()
    if not started or allocations is not None:
        moving = _classes_to_move(
            tree.data(node), before, allocations, directory
        )
    if moving and allocations is None:
        LOG.info(
            '%s must move from the provider of %s to those of the devices',
            ', '.join(sorted(moving)),
            node,
        )
        raise nova_exception.ReshapeNeeded()
    offer = providers.look()
    if moving:
        _move(tree, node, moving, allocations or {}, offer)
    else:
        providers.update(tree, node, offer)


def _classes_to_move(
    root: Any,
    before: Collection[str],
    allocations: Allocations | None,
    directory: str,
) -> set[str]:
    """The resource classes that must leave the provider of the compute node.

    :param root: that provider, as Nova's own driver reports it
    :param before: the resource classes that it had before
    :param allocations: None: they are not known yet
    :param directory: Nova's option [compute] provider_config_location
    """
    had = set(before)
    for each in (allocations or {}).values():
        had.update(_on_root(each, root.uuid))
    found = {
        name
        for name in had - root.inventory.keys()
        if accelerators.is_reported(name)
    }
    if not found:
        return found
    try:
        return found - provider_config.classes(directory).keys()
    except exception.InvalidRequest as err:
        # Nova has read the files before, so somebody writes them just now.
        raise nova_exception.ReshapeFailed(error=str(err)) from err


def _move(
    tree: Any,
    node: str,
    moving: Collection[str],
    allocations: Allocations,
    offer: providers.Offer,
) -> None:
    """Report the devices, and move the allocations to their providers.

    An instance whose VAN is plugged keeps its device, even if the device is
    gone. Other allocations go to any device with room.

    :param tree: Nova's ProviderTree
    :param moving: see _classes_to_move()
    :param allocations: they are changed
    :param offer: it gets the devices that are gone
    :raises ReshapeFailed: if there is no device for an allocation
    """
    root = tree.data(node)
    homes = _Homes(offer)
    moved = [
        (each, name, homes.of(consumer, name))
        for consumer, each in allocations.items()
        for name, amount in sorted(_on_root(each, root.uuid).items())
        if name in moving
        for _ in range(amount)
    ]
    providers.update(tree, node, offer)
    for each, name, place in moved:
        uuid = tree.data(providers.name_of(node, place)).uuid
        new = each['allocations'].setdefault(uuid, {'resources': {}})
        new['resources'][name] = new['resources'].get(name, 0) + 1
    for each in allocations.values():
        left = _on_root(each, root.uuid)
        for name in moving & left.keys():
            del left[name]
        if not left:
            each['allocations'].pop(root.uuid, None)
    # With the inventories, earlier versions set the traits of all devices.
    traits = {
        trait
        for found in offer.found.values()
        for trait in found.traits
        if inventory.CUSTOM.fullmatch(trait)
    }
    tree.remove_traits(node, *(traits & root.traits))
    LOG.info(
        '%d accelerators of instances are allocated from the providers of '
        'their devices now, no longer from that of %s',
        len(moved),
        node,
    )


def _on_root(data: Mapping[str, Any], root: str) -> dict[str, int]:
    found = data['allocations'].get(root, {})
    resources: dict[str, int] = found.get('resources', {})
    return resources


class _Homes:
    """The places to which the allocations of consumers go.

    :param offer: it gets the devices that are gone
    """

    def __init__(self, offer: providers.Offer) -> None:
        self._offer = offer
        # The places of the VANs, by instance and resource class. None: the
        # device of the VAN is gone, or its driver lists no handles.
        self._held: dict[tuple[str, str | None], list[str]] = (
            collections.defaultdict(list)
        )
        self._room: collections.Counter[tuple[str, str]] = (
            collections.Counter()
        )
        known = self._read()
        for van in offer.vans:
            if van.uuid not in known and van.device is not None:
                place = van.device
                self._held[van.instance_uuid, None].append(place)

    def _read(self) -> set[str]:
        """Read the devices; return the VANs that have their handles."""
        instances = {van.uuid: van.instance_uuid for van in self._offer.vans}
        known = set()
        for place, provider in self._offer.found.items():
            for name, each in provider.inventories.items():
                self._room[place, name] = each.total - each.reserved
            for part in provider.parts:
                name = part.device.resource_class
                for handle in part.handles:
                    if handle.holder in instances:
                        known.add(handle.holder)
                        instance = instances[handle.holder]
                        self._held[instance, name].append(place)
                        self._room[place, name] -= 1
        return known

    def of(self, consumer: str, name: str) -> str:
        """Return the place of one more accelerator of a consumer.

        :param name: its resource class
        :raises ReshapeFailed: if there is none
        """
        for key in (consumer, name), (consumer, None):
            if self._held[key]:
                place = self._held[key].pop(0)
                if key[1] is None:
                    self._add(place, name)
                return place
        for (place, other), room in sorted(self._room.items()):
            if other == name and room > 0:
                self._room[place, name] -= 1
                return place
        raise nova_exception.ReshapeFailed(
            error=f'{name} is allocated to consumer {consumer} from the '
            'provider of the compute node, but no device of this host has it '
            f'left{self._why()}. Offer the device again, or delete the '
            'instance or its allocation, and start nova-compute again'
        )

    def _add(self, place: str, name: str) -> None:
        """Let a device have an accelerator that is not counted yet."""
        if self._room[place, name] > 0:
            self._room[place, name] -= 1
            return
        provider = self._offer.found.setdefault(place, inventory.Provider())
        there = provider.inventories.setdefault(name, inventory.Inventory())
        there.total += 1

    def _why(self) -> str:
        failure = self._offer.failure
        return f' ({failure})' if failure is not None else ''
