# SPDX-License-Identifier: Apache-2.0

"""Checks of a plugin: plug and unplug, restore, what only looks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import os_acc
from os_acc import objects
from os_acc.testing import contract_base
from os_acc.testing import crashes
from os_acc.testing import plugin_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service


class PluginBasics(crashes.Crashes, plugin_hooks.PluginHooks):
    """What a plugin does for a guest that does not run."""

    serve = rules.CONFIG
    undo = rules.DETACH
    undo_half = rules.DETACH_HALF
    save_first = rules.DETACH_HALF

    def test_it_describes_what_it_takes(self, service: Service) -> None:
        before = self.look()
        described: object = contract_base.answered(
            service.plugin.describe, rules.DESCRIBE
        )
        if not isinstance(described, objects.HostPluginInfo):
            rules.DESCRIBE.broken(
                f'it returned a {type(described).__name__}, and not an '
                'objects.HostPluginInfo'
            )
        for request in self.requests():
            kind = type(request.handle).__name__
            if not described.has_handle(kind):
                rules.DESCRIBE.broken(f'it does not name {kind}')
        self.same(before, rules.PLUGIN_LOOKS, 'after describe()')

    def test_what_only_looks(self, service: Service) -> None:
        instance = service_module.instance()
        vans = self.plug(instance, self.requests(), rules.CONFIG)
        before = self.look()
        for van in vans:
            service.plugin.is_intact(van)
        service.plugin.has_guest(instance)
        list(service.plugin.diagnose())
        list(service.plugin.leftovers([van.uuid for van in vans]))
        self.same(before, rules.PLUGIN_LOOKS, 'after they were called')
        self.unplug(instance, rules.DETACH)

    def test_each_request_is_plugged_and_unplugged(
        self, service: Service
    ) -> None:
        before = self.look()
        for request in self.requests():
            instance = service_module.instance()
            texts = []
            for _ in range(2):
                (van,) = self.plug(instance, [request], rules.CONFIG)
                texts.append(van.guest_config)
                if not contract_base.is_intact(service.plugin, van):
                    rules.RESTORE.broken('right after plug(), it is False')
                self.unplug(instance, rules.DETACH)
                self.same(before, rules.DETACH, 'after unplug()')
            if texts[0] != texts[1]:
                rules.CONFIG.broken(f'it was {texts[0]!r}, then {texts[1]!r}')

    def test_all_requests_are_plugged_together(self, service: Service) -> None:
        before = self.look()
        instance = service_module.instance()
        self.plug(instance, self.requests(), rules.CONFIG)
        self.unplug(instance, rules.DETACH)
        self.same(before, rules.DETACH, 'after unplug() of all')

    def test_another_handle_makes_a_difference(self, service: Service) -> None:
        """Two handles of one VAN, so that its UUID makes no difference."""
        requests = self.two_handles()
        if len(requests) < 2:
            pytest.skip('two_handles() returns one only')
        instance, uuid = service_module.instance(), requests[0].uuid
        made: list[tuple[str | None, Any]] = []
        for request in requests:
            same_van = service_module.again(request, uuid=uuid)
            (van,) = self.plug(instance, [same_van], rules.CONFIG)
            made.append((van.guest_config, self.look()))
            self.unplug(instance, rules.DETACH)
        for one, other in itertools.combinations(made, 2):
            if one == other and one[0] is not None:
                rules.CONFIG_DIFFERS.broken(f'it was {one[0]!r} for both')

    def test_unplug_of_what_was_never_plugged(self, service: Service) -> None:
        before = self.look()
        for request in self.requests():
            instance = service_module.instance()
            van = objects.VAN(
                uuid=request.uuid,
                instance_uuid=instance.uuid,
                driver=service.driver.name,
                plugin=service.plugin.name,
                state='error',
                handle=request.handle,
                boot_id='this',
            )
            self.unplug_late(service, van, rules.DETACH_NOTHING)
            self.same(before, rules.DETACH_NOTHING, 'after unplug()')

    def test_unplug_twice(self, service: Service) -> None:
        before = self.look()
        for request in self.requests():
            instance, van = self.plugged(request, rules.CONFIG)
            self.unplug(instance, rules.DETACH)
            self.unplug_late(service, van, rules.DETACH_TWICE)
            self.same(before, rules.DETACH_TWICE, 'after unplug() twice')

    def check_reboot(
        self,
        service: Service,
        requests: list[objects.AcceleratorRequest],
        lost_each: bool,
    ) -> bool:
        before = self.look()
        instance = service_module.instance()
        vans = self.plug(instance, requests, rules.CONFIG)
        plugged = self.look()
        self.reboot()
        rebooted = self.look()
        lost: bool = rebooted != plugged
        service.stop()
        intact = [contract_base.is_intact(service.plugin, v) for v in vans]
        if lost and (all(intact) or (lost_each and any(intact))):
            rules.RESTORE.broken('is_intact() is True after what was lost')
        service.reboot()
        service.restart()
        for van in os_acc.get_vans(instance):
            if van.error is not None:
                rules.RESTORE.broken(f'it failed: {van.error}')
            if not contract_base.is_intact(service.plugin, van):
                rules.RESTORE.broken('after restore(), is_intact() is False')
        # The numbers of the device may be others than before.
        if lost and self.look() == rebooted:
            rules.RESTORE.broken('nothing is there again after restore()')
        self.unplug(instance, rules.DETACH)
        self.same(before, rules.DETACH, 'after unplug()')
        return lost

    @staticmethod
    def unplug_late(
        service: Service, van: objects.VAN, rule: rules.Rule
    ) -> None:
        """Call unplug() for a VAN that has no row in the journal."""
        instance = service_module.instance(van.instance_uuid)
        van.connect(lambda saved: None)
        try:
            contract_base.answered(
                lambda: service.plugin.unplug(van, instance, False), rule
            )
        finally:
            van.connect(None)
