# SPDX-License-Identifier: Apache-2.0

"""Records the requests of a plug that found no device."""

from __future__ import annotations

from collections.abc import Iterable

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc.attach import prepare
from os_acc.journal import demand
from os_acc.journal import events

#: The errors that say that there is no device, or that none is free.
_NONE_FREE = (
    exception.DeviceNotFound,
    exception.DeviceBusy,
    exception.DeviceInUseByHost,
)


def note(
    host: host_module.Host,
    entries: Iterable[journal.Entry],
    failed: prepare.Failed,
) -> None:
    """Record which requests found no device.

    A request that names its attach handle wants no other device, so it is no
    demand.
    """
    now = events.now()
    found, new_events = [], []
    for entry in entries:
        err = failed.get(entry.van.uuid)
        request = entry.request
        if (
            err is None
            or request.handle is not None
            or not isinstance(err.__cause__, _NONE_FREE)
        ):
            continue
        made = demand.Demand(
            request.resource_class,
            tuple(sorted(request.traits)),
            request.function_id,
            1,
            now,
            now,
        )
        found.append(made)
        new_events.append(
            events.Event(
                at=now,
                operation=events.DEMAND,
                step=None,
                result=events.FAILED,
                van_uuid=entry.van.uuid,
                instance_uuid=entry.van.instance_uuid,
                instance_name=entry.instance_info.name,
                extension=entry.van.driver,
                reason=made.text(),
            )
        )
    if found:
        host.journal.note_demand(found, new_events)
