# SPDX-License-Identifier: Apache-2.0

"""Makes the ResourceSlices of a node, within the limits of Kubernetes."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc_dra import attributes
from os_acc_dra import binding
from os_acc_dra import counters as counters_module
from os_acc_dra import offers as offers_module

_DEVICES = 128
# With taints or counters.
_SPECIAL = 64
_SETS = 8

Spec = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Features:
    """Which optional fields are published, if the API server keeps them.

    :ivar conditions: binding conditions
    """

    counters: bool = True
    taints: bool = True
    conditions: bool = False


@dataclasses.dataclass(frozen=True)
class Inventory:
    """What a node has.

    :ivar offers: by their names
    :ivar exclusions: for each name those that it excludes
    :ivar own: the names of those that claims of this driver have
    """

    offers: Mapping[str, offers_module.Offer]
    exclusions: counters_module.Exclusions
    own: Collection[str]

    @classmethod
    def of(
        cls,
        offered: Mapping[str, offers_module.Offer],
        exclusions: Mapping[str, frozenset[str]],
        held: Collection[str],
    ) -> Inventory:
        """Make an inventory.

        :param exclusions: as os_acc.get_exclusions gives them
        :param held: the identities of the handles that claims have
        """
        names = {each.handle.identity: name for name, each in offered.items()}
        return cls(
            offered,
            {
                name: frozenset(
                    names[identity]
                    for identity in exclusions[each.handle.identity]
                    if identity in names
                )
                for name, each in offered.items()
            },
            attributes.own(list(offered.values()), held),
        )


def specs(
    inventory: Inventory, driver: str, node: str, features: Features
) -> list[Spec]:
    """Make the specs of all slices, without the generation of the pool.

    A device that cannot be given at the same time as another one is left out
    if the server has no counters; one with a taint, if it has no taints.
    """
    taints = {
        name: attributes.taints(
            offer,
            driver,
            name in inventory.own
            or bool(inventory.exclusions[name] & set(inventory.own)),
        )
        for name, offer in inventory.offers.items()
    }
    names = set(inventory.offers)
    if not features.taints:
        names -= {name for name in names if taints[name]}
    sets, names = _sets(inventory, names, features)
    devices = []
    for name in sorted(names):
        device: dict[str, Any] = {
            'name': name,
            'attributes': attributes.of(inventory.offers[name]),
        }
        if features.conditions and _is_programmed(inventory.offers[name]):
            device |= binding.published(driver)
        if taints[name]:
            device['taints'] = taints[name]
        consumed = [
            _consumed(each.name, each.consumed[name])
            for each in sets
            if each.consumed.get(name)
        ]
        if consumed:
            device['consumesCounters'] = consumed
        devices.append(device)
    return _pool(devices, sets, driver, node)


def _is_programmed(offer: offers_module.Offer) -> bool:
    """Whether os-acc programs the device for those who ask for a function."""
    return offer.device.programming not in (None, 'none')


def _sets(
    inventory: Inventory, names: set[str], features: Features
) -> tuple[list[counters_module.CounterSet], set[str]]:
    """The counter sets of devices, and the devices that can be offered."""
    between = {
        name: inventory.exclusions[name] & names for name in sorted(names)
    }
    sets, without = (
        counters_module.of(between)
        if features.counters
        else ([], set(between))
    )
    if without:
        chosen = counters_module.apart(
            {name: between[name] for name in without}, inventory.own
        )
        names = names - (without - chosen)
    return sets, names


def _consumed(name: str, values: Mapping[str, int]) -> dict[str, Any]:
    return {'counterSet': name, 'counters': _values(values)}


def _values(values: Mapping[str, int]) -> dict[str, dict[str, str]]:
    return {name: {'value': str(value)} for name, value in values.items()}


def _pool(
    devices: Sequence[dict[str, Any]],
    sets: Sequence[counters_module.CounterSet],
    driver: str,
    node: str,
) -> list[Spec]:
    """Put devices and counters into slices, at least one."""
    special = any(
        'taints' in each or 'consumesCounters' in each for each in devices
    )
    size = _SPECIAL if special else _DEVICES
    parts: list[dict[str, Any]] = [
        {
            'sharedCounters': [
                {'name': each.name, 'counters': _values(each.counters)}
                for each in sets[start : start + _SETS]
            ]
        }
        for start in range(0, len(sets), _SETS)
    ]
    parts += [
        {'devices': list(devices[start : start + size])}
        for start in range(0, len(devices), size)
    ]
    # No device: the driver runs, and has none.
    parts = parts or [{'devices': []}]
    return [
        {
            'driver': driver,
            'nodeName': node,
            'pool': {'name': node, 'resourceSliceCount': len(parts)},
            **part,
        }
        for part in parts
    ]
