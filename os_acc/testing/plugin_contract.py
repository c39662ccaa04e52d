# SPDX-License-Identifier: Apache-2.0

"""PluginContract: the contract of plugins as tests of pytest."""

from __future__ import annotations

import pytest

import os_acc
from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc import plugin as plugin_base
from os_acc.testing import any_driver
from os_acc.testing import contract_base
from os_acc.testing import crashes
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service


class PluginContract(crashes.Crashes):
    """Tests that a plugin keeps its contract. An author subclasses it.

    ``make_plugin()`` makes the plugin. ``requests()`` returns requests that
    name an attach handle each. ``look()`` returns what the plugin keeps on
    the host or in the hypervisor, as plain data. Each failure raises
    ``Broken``, which names the rule and the section of the documentation that
    explains it.
    """

    serve = rules.CONFIG
    undo = rules.DETACH
    undo_half = rules.DETACH_HALF
    save_first = rules.DETACH_HALF

    def make_plugin(self) -> plugin_base.PluginBase:
        """Make the plugin, as each new process does.

        The author defines it, mostly as ``return MyPlugin.load('my')``.
        """
        raise NotImplementedError

    def make_driver(self) -> driver_base.DriverBase:
        """Make the driver. The default gives the handle of the request."""
        made = any_driver.AnyDriver.load('any')
        made.hints = self.hints
        return made

    def hints(self, request: objects.AcceleratorRequest) -> dict[str, str]:
        """Return the hints of the driver for the plugin. Default: none."""
        return {}

    def run_guest(self, instance: objects.InstanceInfo) -> None:
        """Let a guest of an instance run. The default skips the live tests."""
        pytest.skip('run_guest() is not defined: no guest can run')

    def make_any_driver(self) -> driver_base.DriverBase:
        return self.make_driver()

    def make_any_plugin(self) -> plugin_base.PluginBase:
        return self.make_plugin()

    def test_it_describes_what_it_takes(self, service: Service) -> None:
        before = self.look()
        described: object = service.plugin.describe()
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
                if not service.plugin.is_intact(van):
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
            self._unplug(service, van, rules.DETACH_NOTHING)
            self.same(before, rules.DETACH_NOTHING, 'after unplug()')

    def test_unplug_twice(self, service: Service) -> None:
        before = self.look()
        for request in self.requests():
            instance, van = self.plugged(request, rules.CONFIG)
            self.unplug(instance, rules.DETACH)
            self._unplug(service, van, rules.DETACH_TWICE)
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
            if not service.plugin.is_intact(van):
                rules.RESTORE.broken('after restore(), is_intact() is False')
        # The numbers of the device may be others than before.
        if lost and self.look() == rebooted:
            rules.RESTORE.broken('nothing is there again after restore()')
        self.unplug(instance, rules.DETACH)
        self.same(before, rules.DETACH, 'after unplug()')
        return lost

    def test_live(self, service: Service) -> None:
        if not service.plugin.supports_live:
            pytest.skip('the plugin does not support it')
        for request in self.requests():
            instance = service_module.instance()
            self.run_guest(instance)
            before = self.look()
            try:
                (van,) = os_acc.plug(instance, [request], live=True)
            except exception.ExceptionBase as err:
                rules.CONFIG.broken(contract_base.said(err))
            attached = self.look()
            van.connect(lambda saved: None)
            try:
                service.plugin.plug(van, instance, True)
            except Exception as err:
                rules.ATTACH_TWICE.broken(exception.describe(err))
            finally:
                van.connect(None)
            self.same(attached, rules.ATTACH_TWICE, 'after the second plug()')
            try:
                os_acc.unplug(instance, live=True)
            except exception.ExceptionBase as err:
                rules.DETACH.broken(contract_base.said(err))
            self.same(before, rules.DETACH, 'after a live unplug()')

    @staticmethod
    def _unplug(service: Service, van: objects.VAN, rule: rules.Rule) -> None:
        """Call unplug() for a VAN that has no row in the journal."""
        instance = service_module.instance(van.instance_uuid)
        van.connect(lambda saved: None)
        try:
            service.plugin.unplug(van, instance, False)
        except Exception as err:
            rule.broken(f'it raised {exception.describe(err)}')
        finally:
            van.connect(None)
