# SPDX-License-Identifier: Apache-2.0

"""The definition with which a guest moves live to the target."""

from __future__ import annotations

from typing import Any

from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc.moving import plans


def redefine(
    host: host_module.Host,
    instance_info: objects.InstanceInfo,
    vans: Any,
    definition: Any,
) -> str:
    """See os_acc.migration.redefine."""
    entries = plans.source(host, instance_info)
    if not isinstance(definition, str):
        raise _invalid('definition', definition, 'a string')
    uuids = {entry.van.uuid for entry in entries}
    if not isinstance(vans, objects.VANList):
        raise _invalid('vans', vans, 'an os_acc.objects.VANList')
    given = {van.uuid: van for van in vans}
    if given.keys() != uuids or len(given) != len(vans.objects):
        raise _invalid(
            'vans',
            [van.uuid for van in vans],
            f"one with each UUID of the instance's: {', '.join(uuids)}",
        )
    made: str = definition
    for name in sorted({entry.van.plugin for entry in entries}):
        plugin = host.extensions.plugin(name)
        own = [each.van for each in entries if each.van.plugin == name]
        found = plugin.migration_map(own, [given[van.uuid] for van in own])
        if found is None:
            raise exception.MigrationConflict(
                instance=instance_info.uuid,
                reason=f'plugin {name!r} cannot move a guest live',
            )
        made = plugin.redefine(made, found)
    return made


def _invalid(
    field: str, value: Any, expected: str
) -> exception.InvalidRequest:
    return exception.InvalidRequest(
        subject='os_acc.migration.redefine',
        field=field,
        value=value,
        expected=expected,
    )
