# SPDX-License-Identifier: Apache-2.0

"""Asks the plugins of an instance's VANs about its guest."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from os_acc import host as host_module
from os_acc import journal
from os_acc import objects
from os_acc import plugin as plugin_base


def exists(
    host: host_module.Host, entries: Sequence[journal.Entry]
) -> bool | None:
    """Whether a plugin says that the guest exists; None: one cannot tell.

    :raises Exception: if a hypervisor does not answer
    """
    return _ask(host, entries, lambda plugin, info: plugin.has_guest(info))


def runs(
    host: host_module.Host, entries: Sequence[journal.Entry]
) -> bool | None:
    """Whether a plugin says that the guest runs now. See exists()."""
    return _ask(host, entries, lambda plugin, info: plugin.runs_guest(info))


def stays(
    host: host_module.Host, entries: Sequence[journal.Entry]
) -> bool | None:
    """Whether the guest of VANs that are being moved is on this host.

    During a live migration the guest exists on both hosts. Which one goes on
    is not known before the hypervisor has ended it.

    :returns: True: it runs here; None: it is paused here, or is being moved;
        False: neither, as far as the plugins can tell
    :raises Exception: if a hypervisor does not answer
    """

    def look(
        plugin: plugin_base.PluginBase, info: objects.InstanceInfo
    ) -> bool | None:
        runs = plugin.runs_guest(info)
        if runs is None and not plugin.has_guest(info):
            return False
        return runs

    return _ask(host, entries, look)


def _ask(
    host: host_module.Host,
    entries: Sequence[journal.Entry],
    question: Callable[
        [plugin_base.PluginBase, objects.InstanceInfo], bool | None
    ],
) -> bool | None:
    plugins = {entry.van.plugin: entry.instance_info for entry in entries}
    answers = {
        question(host.extensions.plugin(name), info)
        for name, info in plugins.items()
    }
    if True in answers:
        return True
    return None if None in answers else False
