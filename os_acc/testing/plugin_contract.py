# SPDX-License-Identifier: Apache-2.0

"""PluginContract: the contract of plugins as tests of pytest."""

from __future__ import annotations

from os_acc.testing import plugin_basics
from os_acc.testing import plugin_guests
from os_acc.testing import plugin_moving


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
