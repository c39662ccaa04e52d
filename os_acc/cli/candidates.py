# SPDX-License-Identifier: Apache-2.0
"""What exists on this host: the candidates for arguments of the command."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from importlib import metadata

import os_acc
from os_acc import journal as journal_module
from os_acc import loader
from os_acc import objects
from os_acc.cli import base

#: Candidates, each with a text that describes it.
Found = dict[str, str]

# Seconds to wait for the journal: somebody waits at a terminal.
_PATIENCE = 1.0


def of(kind: str | None) -> Found:
    """List the candidates for an argument.

    :param kind: the dest of the argument, such as 'van'
    :returns: empty if there are no candidates for such an argument, or they
        cannot be read
    """
    make = _KINDS.get(kind or '')
    if make is not None:
        # The shell shows no error, and the operator can still type.
        with contextlib.suppress(Exception):
            return make()
    return {}


def _entries() -> tuple[
    list[journal_module.Entry], list[journal_module.UnreadableRow]
]:
    conf = os_acc.CONF.os_acc
    with contextlib.closing(
        journal_module.Journal(conf.state_path, _PATIENCE, True)
    ) as journal:
        return journal.entries(), journal.unreadable()


def _vans() -> Found:
    entries, unreadable = _entries()
    found = {row.van_uuid: base.UNREADABLE for row in unreadable}
    for entry in entries:
        van, name = entry.van, entry.instance_info.name
        found[van.uuid] = f'{van.state}, {van.device}, {name or "no name"}'
    return found


def _instances() -> Found:
    found: Found = {}
    for entry in _entries()[0]:
        name = entry.instance_info.name
        found[entry.van.instance_uuid] = name or ''
        if name:
            found[name] = entry.van.instance_uuid
    return found


def _list() -> list[objects.Device]:
    with contextlib.closing(base.look()) as host:
        return base.devices(host)


def _addresses() -> Found:
    return {
        device.address: f'{device.resource_class}, {device.handles_free} of '
        f'{device.handles_total} free'
        for device in _list()
    }


def _classes() -> Found:
    return {device.resource_class: device.driver for device in _list()}


def _traits() -> Found:
    return {trait: d.address for d in _list() for trait in d.traits}


def _names(group: str) -> Callable[[], Found]:
    return lambda: {
        point.name: point.dist.name if point.dist is not None else ''
        for point in metadata.entry_points(group=group)
    }


_KINDS: dict[str, Callable[[], Found]] = {
    'address': _addresses,
    'driver': _names(loader.DRIVERS),
    'instance': _instances,
    'plugin': _names(loader.PLUGINS),
    'resource_class': _classes,
    'trait': _traits,
    'van': _vans,
}
