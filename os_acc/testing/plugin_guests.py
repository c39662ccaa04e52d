# SPDX-License-Identifier: Apache-2.0

"""Checks of a plugin: guests that come and end, and an API that fails."""

from __future__ import annotations

import functools

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.testing import contract_base
from os_acc.testing import plugin_live
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service


class Guests(plugin_live.Live):
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
