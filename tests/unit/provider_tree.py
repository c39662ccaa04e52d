# SPDX-License-Identifier: Apache-2.0

"""A stand-in for Nova's ProviderTree: one node and its children."""

from __future__ import annotations

import types
from typing import Any
import uuid

import nova_double


class Tree:
    """See nova/compute/provider_tree.py. Providers are found by both names."""

    def __init__(self) -> None:
        self._providers: dict[str, types.SimpleNamespace] = {}
        self._add('node-1', nova_double.NODE)

    def _add(self, name: str, provider: str) -> str:
        assert not self.exists(name)
        self._providers[name] = types.SimpleNamespace(
            name=name, uuid=provider, inventory={}, traits=set()
        )
        return provider

    def _find(self, name: str) -> types.SimpleNamespace:
        for each in self._providers.values():
            if name in (each.name, each.uuid):
                return each
        raise ValueError(name)

    def exists(self, name: str) -> bool:
        return any(name in (p.name, p.uuid) for p in self._providers.values())

    def new_child(self, name: str, parent: str) -> str:
        self._find(parent)
        return self._add(name, str(uuid.uuid4()))

    def remove(self, name: str) -> None:
        del self._providers[self._find(name).name]

    def get_provider_uuids(self, name: str) -> list[str]:
        self._find(name)
        return [each.uuid for each in self._providers.values()]

    def data(self, name: str) -> Any:
        found = self._find(name)
        return types.SimpleNamespace(
            name=found.name,
            uuid=found.uuid,
            inventory=dict(found.inventory),
            traits=set(found.traits),
        )

    def update_inventory(self, name: str, inventory: dict[str, Any]) -> None:
        self._find(name).inventory = dict(inventory)

    def update_traits(self, name: str, traits: set[str]) -> None:
        self._find(name).traits = set(traits)

    def remove_traits(self, name: str, *traits: str) -> None:
        self._find(name).traits -= set(traits)

    def totals(self) -> dict[str, dict[str, tuple[int, int]]]:
        """The (total, reserved) of the children, by name and class."""
        return {
            each.name.removeprefix('node-1_os-acc_'): {
                name: (fields['total'], fields['reserved'])
                for name, fields in each.inventory.items()
            }
            for each in self._providers.values()
            if each.name != 'node-1'
        }
