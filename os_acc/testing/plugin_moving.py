# SPDX-License-Identifier: Apache-2.0

"""Checks of a plugin: what changes in the definition of a guest that moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from os_acc import exception
from os_acc import objects
from os_acc.testing import contract_base
from os_acc.testing import plugin_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service

_Pair = tuple[objects.VAN, objects.VAN]


class Moving(plugin_hooks.PluginHooks):
    """The VANs of the target are plugged here too, after those of the source.

    Each VAN of the target has the UUID of one of the source, and another
    handle.
    """

    def test_a_migration_map(self, service: Service) -> None:
        for source, target in self.moves(service):
            before = self.look()
            found = self._map(service, source, target)
            for each in found.changes:
                if each.uuid != source.uuid or each.source == each.target:
                    rules.MOVES_LIVE.broken(f'it has the change {each!r}')
            described = service.plugin.describe()
            if found.format != described.guest_config_format:
                rules.MOVES_LIVE.broken(
                    f'its format is {found.format!r}, and that of '
                    f'guest_config is {described.guest_config_format!r}'
                )
            sent = found.obj_to_primitive()
            if objects.MigrationMap.obj_from_primitive(sent) != found:
                rules.MOVES_LIVE.broken('it is another one after the network')
            if self._map(service, source, target) != found:
                rules.MOVES_LIVE.broken('it is another one the second time')
            self.same(before, rules.PLUGIN_LOOKS, 'after migration_map()')

    def test_a_migration_map_of_others(self, service: Service) -> None:
        for source, target in self.moves(service):
            other = target.obj_clone()
            other.uuid = service_module.instance().uuid
            for vans in ([], [other], [target, other], [target, target]):
                try:
                    service.plugin.migration_map([source], vans)
                except exception.ExceptionBase:
                    continue
                rules.MOVES_OWN.broken(
                    f'it took {[van.uuid for van in vans]} for {source.uuid}'
                )

    def test_a_definition_for_the_target(self, service: Service) -> None:
        for source, target in self.moves(service):
            old, new = self.definition(source), self.definition(target)
            before = self.look()
            there = self._map(service, source, target)
            made = service.plugin.redefine(old, there)
            if made != new:
                rules.REDEFINE.broken(f'it was {made!r}, and not {new!r}')
            if service.plugin.redefine(made, there) != made:
                rules.REDEFINE.broken('applying it twice gives another text')
            back = self._map(service, target, source)
            if service.plugin.redefine(made, back) != old:
                rules.REDEFINE.broken('the way back gives another text')
            self.same(before, rules.PLUGIN_LOOKS, 'after redefine()')

    def moves(self, service: Service) -> Iterator[_Pair]:
        """Pairs of a VAN on the source, and on the target.

        There is none if the plugin says that its guests do not move live.
        """
        instance = service_module.instance()
        by_class: dict[str, objects.VAN] = {}
        alone = True
        for request in self.two_handles():
            kind = type(request.handle).__name__
            source = by_class.get(kind)
            asked = request
            if source is not None:
                asked = service_module.again(request, uuid=source.uuid)
            (van,) = self.plug(instance, [asked], rules.CONFIG)
            self.unplug(instance, rules.DETACH)
            if service.plugin.migration_map([van], [van]) is None:
                return
            if source is not None:
                yield source, van
            alone = alone and source is None
            by_class[kind] = van
        if alone:
            pytest.skip('two_handles() returns no two of one class')

    @staticmethod
    def _map(
        service: Service, source: objects.VAN, target: objects.VAN
    ) -> objects.MigrationMap:
        found: object = contract_base.answered(
            lambda: service.plugin.migration_map([source], [target]),
            rules.MOVES_LIVE,
        )
        if not isinstance(found, objects.MigrationMap):
            rules.MOVES_LIVE.broken(f'it returned {found!r}')
        return found
