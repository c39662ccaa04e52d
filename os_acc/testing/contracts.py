# SPDX-License-Identifier: Apache-2.0

"""The contracts of drivers and of plugins as tests of pytest."""

from __future__ import annotations

from os_acc.testing import driver_basics
from os_acc.testing import driver_failures
from os_acc.testing import driver_processes
from os_acc.testing import driver_undo
from os_acc.testing import plugin_basics
from os_acc.testing import plugin_guests
from os_acc.testing import plugin_moving


class DriverContract(
    driver_basics.Basics,
    driver_failures.Cleaning,
    driver_failures.Failed,
    driver_undo.Undo,
    driver_undo.Late,
    driver_processes.DriverCrashes,
    driver_processes.Processes,
):
    """Tests that a driver keeps its contract. An author subclasses it.

    .. code-block:: python

       class TestAcme(testing.DriverContract):
           @pytest.fixture(autouse=True)
           def devices(self, tmp_path):
               self.path = tmp_path / 'devices'
               ...

           def make_driver(self):
               return AcmeDriver.load('acme')

           def requests(self):
               return [objects.AcceleratorRequest(...)]

           def look(self):
               return {...}

    Each failure raises ``Broken``, which names the rule and the section of the
    documentation that explains it.
    """


class PluginContract(
    plugin_basics.PluginBasics,
    plugin_guests.Guests,
    plugin_moving.Moving,
):
    """Tests that a plugin keeps its contract. An author subclasses it.

    ``make_plugin()`` makes the plugin. ``requests()`` returns requests that
    name an attach handle each. ``look()`` returns what the plugin keeps on
    the host or in the hypervisor, as plain data. Each failure raises
    ``Broken``, which names the rule and the section of the documentation that
    explains it.
    """
