# SPDX-License-Identifier: Apache-2.0

"""DriverContract: the contract of drivers as tests of pytest."""

from __future__ import annotations

from os_acc.testing import driver_basics
from os_acc.testing import driver_cleaning
from os_acc.testing import driver_crashes
from os_acc.testing import driver_failed
from os_acc.testing import driver_late
from os_acc.testing import driver_processes
from os_acc.testing import driver_undo


class DriverContract(
    driver_basics.Basics,
    driver_cleaning.Cleaning,
    driver_failed.Failed,
    driver_undo.Undo,
    driver_late.Late,
    driver_crashes.DriverCrashes,
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
