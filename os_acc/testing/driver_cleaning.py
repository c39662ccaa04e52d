# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The contract of drivers: cleaning a device between two tenants."""

from __future__ import annotations

import pathlib
import tempfile

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.testing import contract_base
from os_acc.testing import driver_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

_OPTION = 'cleaning_command'


class Cleaning(driver_hooks.DriverHooks):
    """What a driver does while [os_acc] cleaning_command is set."""

    def test_cleaning_command_runs_at_the_release(
        self, service: contract_base.Service
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self._try_cleaning(service, pathlib.Path(folder) / 'said')

    def _try_cleaning(
        self, service: contract_base.Service, said: pathlib.Path
    ) -> None:
        run = f"sh -c 'echo $0 >> {said}' {{address}}"
        try:
            for request in self.requests():
                os_acc.CONF.set_override(_OPTION, 'false', 'os_acc')
                if service.driver.cleans:
                    self._check_cleaned(request, run)
                    if not said.exists():
                        rules.CLEAN.broken('unplug() succeeds without it')
                    said.unlink()
                else:
                    self._check_refused_by_option(request)
        finally:
            os_acc.CONF.clear_override(_OPTION, 'os_acc')

    def _check_cleaned(
        self, request: objects.AcceleratorRequest, run: str
    ) -> None:
        """Let the command fail first, and then let it succeed."""
        before = self.look()
        instance, van = self.plugged(request, rules.CLEAN)
        try:
            os_acc.unplug(instance)
        except exception.UnplugException:
            pass
        else:
            rules.CLEAN.broken('unplug() succeeds although it fails')
        states = {each.uuid: each.state for each in os_acc.get_vans()}
        if states.get(van.uuid) != 'error':
            rules.CLEAN.broken(
                f'the VAN is in state {states.get(van.uuid)} after it failed'
            )
        os_acc.CONF.set_override(_OPTION, run, 'os_acc')
        self.unplug(instance, rules.CLEAN)
        self.same(before, rules.UNDO, 'after it has succeeded')

    def _check_refused_by_option(
        self, request: objects.AcceleratorRequest
    ) -> None:
        before = self.look()
        try:
            os_acc.plug(service_module.instance(), [request])
        except exception.ExceptionBase as err:
            if _OPTION not in contract_base.said(err):
                rules.CLEAN.broken(f'the error does not name it: {err}')
        else:
            rules.CLEAN.broken('cleans is False, and plug() succeeds')
        self.same(before, rules.CLEAN, 'after the refusal')
