# SPDX-License-Identifier: Apache-2.0

"""Checks of a plugin: guests that run and end, and an API that fails."""

from __future__ import annotations

import functools

import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.testing import contract_base
from os_acc.testing import crashes
from os_acc.testing import plugin_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service


class Live(crashes.Crashes, plugin_hooks.PluginHooks):
    """plug() and unplug() with live=True, and without it beside a guest."""

    def test_live(self, service: Service) -> None:
        self.check_is_live(service)
        for request in self.requests():
            instance = service_module.instance()
            self.run_guest(instance)
            before = self.look()
            (van,) = self.plug(instance, [request], rules.ATTACH, live=True)
            if self.attached(van) is False:
                rules.ATTACH.broken('the guest does not have it after plug()')
            attached = self.look()
            self._attach_again(service, van, instance)
            self.same(attached, rules.ATTACH_TWICE, 'after the second plug()')
            self.unplug(instance, rules.DETACH, live=True)
            if self.attached(van):
                rules.ATTACH.broken('the guest still has it after unplug()')
            self.same(before, rules.DETACH, 'after a live unplug()')

    def test_not_live_while_a_guest_runs(self, service: Service) -> None:
        instance = service_module.instance()
        self.run_guest(instance)
        before = self.look()
        (van,) = self.plug(instance, self.requests()[:1], rules.CONFIG)
        if self.attached(van):
            rules.LIVE_ONLY.broken('the guest has it after plug()')
        self.unplug(instance, rules.DETACH)
        self.same(before, rules.LIVE_ONLY, 'after unplug()')

    def test_a_guest_that_keeps_the_device(self, service: Service) -> None:
        instance, van = self.plug_live(service)
        let_go = self.hold(van)
        attached = self.look()
        try:
            os_acc.unplug(instance, live=True)
        except exception.UnplugException:
            self.check_deadlines()
        else:
            rules.RELEASE.broken('unplug() succeeds, and the VAN is released')
        finally:
            let_go()
        self.unplug(instance, rules.RELEASE, live=True)
        if self.look() == attached:
            rules.RELEASE.broken('the next unplug() changes nothing')

    def test_a_kill_in_a_live_plug(self, service: Service) -> None:
        self.check_is_live(service)
        instance = service_module.instance()
        self.run_guest(instance)
        before = self.look()
        plug = functools.partial(
            os_acc.plug, instance, self.requests()[:1], live=True
        )
        for _, text in self.deaths(service, plug, rules.ATTACH):
            service.restart()
            self.settled(rules.DETACH_HALF, text)
            self.same(before, rules.DETACH_HALF, f'{text}, then recovered')
        self.unplug(instance, rules.DETACH, live=True)
        self.same(before, rules.DETACH, 'after a live unplug()')

    def test_a_kill_in_a_live_unplug(self, service: Service) -> None:
        self.check_is_live(service)
        instance = service_module.instance()
        self.run_guest(instance)
        before = self.look()
        self._plug_first(instance)
        unplug = functools.partial(
            self.unplug, instance, rules.DETACH, live=True
        )
        for _, text in self.deaths(service, unplug, rules.DETACH):
            service.restart()
            self.settled(rules.DETACH_HALF, text)
            if os_acc.get_vans(instance):
                # It had died before anything was undone.
                self.unplug(instance, rules.DETACH_HALF, live=True)
            self.same(before, rules.DETACH_HALF, f'{text}, then recovered')
            self._plug_first(instance)
        self.same(before, rules.DETACH, 'after a live unplug()')

    def check_is_live(self, service: Service) -> None:
        """Skip a test of a plugin that is not live."""
        if not service.plugin.supports_live:
            pytest.skip('the plugin does not support it')

    def plug_live(
        self, service: Service
    ) -> tuple[objects.InstanceInfo, objects.VAN]:
        """Plug the first request into a guest that runs."""
        self.check_is_live(service)
        instance = service_module.instance()
        self.run_guest(instance)
        (van,) = self.plug(
            instance, self.requests()[:1], rules.ATTACH, live=True
        )
        return instance, van

    def _plug_first(self, instance: objects.InstanceInfo) -> None:
        self.plug(instance, self.requests()[:1], rules.ATTACH, live=True)

    @staticmethod
    def _attach_again(
        service: Service, van: objects.VAN, instance: objects.InstanceInfo
    ) -> None:
        van.connect(lambda saved: None)
        try:
            contract_base.answered(
                lambda: service.plugin.plug(van, instance, True),
                rules.ATTACH_TWICE,
            )
        finally:
            van.connect(None)


class Guests(Live):
    """What a plugin says about a guest, and does when there is none."""

    def test_has_guest_before_and_after(self, service: Service) -> None:
        instance = service_module.instance()
        ask = functools.partial(service.plugin.has_guest, instance)
        before = contract_base.answered(ask, rules.HAS_GUEST)
        if before not in (None, False):
            rules.HAS_GUEST.broken(f'it is {before!r}, and there is none')
        self.run_guest(instance)
        running = self.look()
        after = contract_base.answered(ask, rules.HAS_GUEST)
        if after not in (None, True):
            rules.HAS_GUEST.broken(f'it is {after!r} while a guest runs')
        self.same(running, rules.PLUGIN_LOOKS, 'after has_guest()')

    def test_runs_guest_before_and_after(self, service: Service) -> None:
        instance = service_module.instance()
        ask = functools.partial(service.plugin.runs_guest, instance)

        def check(refused: bool, text: str) -> None:
            answer = contract_base.answered(ask, rules.RUNS_GUEST)
            if answer not in (None, not refused):
                rules.RUNS_GUEST.broken(f'it is {answer!r} {text}')

        check(True, 'and there is no guest')
        self.run_guest(instance)
        running = self.look()
        check(False, 'while the guest runs')
        self.same(running, rules.PLUGIN_LOOKS, 'after runs_guest()')
        self.end_guest(instance)
        check(True, 'after the guest has ended')

    def test_a_guest_that_has_ended(self, service: Service) -> None:
        instance, van = self.plug_live(service)
        self.end_guest(instance)
        self.unplug(instance, rules.GUEST_ENDED, live=True)
        if self.attached(van):
            rules.GUEST_ENDED.broken('the guest has the device after it')

    def test_an_api_that_fails(self, service: Service) -> None:
        instance, van = self.plug_live(service)
        attached = self.look()
        repair = self.break_api()
        try:
            self._check_no_answer(service, instance)
        finally:
            repair()
        if self.attached(van) is False:
            rules.NO_ANSWER.broken('the guest has lost the device')
        self.unplug(instance, rules.NO_ANSWER, live=True)
        if self.look() == attached:
            rules.NO_ANSWER.broken('the next unplug() changes nothing')

    def test_an_api_that_fails_at_plug(self, service: Service) -> None:
        self.check_is_live(service)
        instance = service_module.instance()
        self.run_guest(instance)
        before = self.look()
        repair = self.break_api()
        try:
            os_acc.plug(instance, self.requests()[:1], live=True)
        except exception.PlugException:
            self.check_deadlines()
        else:
            rules.ATTACH.broken('plug() succeeds while the API fails')
        finally:
            repair()
        self.unplug(instance, rules.DETACH_HALF, live=True)
        self.same(before, rules.DETACH_HALF, 'after the API is repaired')

    def _check_no_answer(
        self, service: Service, instance: objects.InstanceInfo
    ) -> None:
        """Check how a plugin handles an API that fails."""
        try:
            answer = service.plugin.has_guest(instance)
        except rules.Broken:
            raise
        except Exception:
            answer = None
        if answer not in (None, True):
            rules.NO_ANSWER.broken(f'has_guest() says {answer!r}')
        try:
            answer = service.plugin.runs_guest(instance)
        except rules.Broken:
            raise
        except Exception:
            answer = None
        if answer is not None:
            rules.NO_ANSWER.broken(f'runs_guest() says {answer!r}')
        try:
            os_acc.unplug(instance, live=True)
        except exception.UnplugException:
            self.check_deadlines()
        else:
            rules.NO_ANSWER.broken(
                'unplug() succeeds, and the VAN is released'
            )
