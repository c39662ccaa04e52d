# SPDX-License-Identifier: Apache-2.0

"""What os-acc events --follow shows: events, and steps that have begun.

An event is written when a step has ended, or later. So a step that takes long
is seen by the state of its VAN, which os-acc writes before the step.
"""

from __future__ import annotations

from collections.abc import Iterator
import datetime
import time

from os_acc import journal as journal_module
from os_acc.cli import base
from os_acc.journal import events
from os_acc.objects import van as states

# How often to look for new events, in seconds.
_PAUSE = 1.0

# The operation and the step of a VAN in each state.
_STEPS = {
    states.PREPARING: (events.PLUG, 'prepareVAN'),
    states.PLUGGING: (events.PLUG, 'plug'),
    states.UNPLUGGING: (events.UNPLUG, 'unplug'),
    states.UNPREPARING: (events.UNPLUG, 'unprepareVAN'),
}


def follow(
    wanted: events.Wanted, last: int | None
) -> Iterator[list[events.Event]]:
    """Read what happens from now on, until the caller ends it.

    :param wanted: which events to read
    :param last: the number of the last event that the caller has read
    :returns: each time what is new: steps that have begun, then events
    """
    known: set[tuple[str | None, str | None]] = set()
    identity = None
    with base.reading() as journal:
        while True:
            if journal.exists():
                before, identity = identity, journal.identity()
                if before not in (None, identity):
                    last = None  # a new journal starts again at 1
            begun = {
                (event.van_uuid, event.step): event
                for event in map(_begun, journal.entries())
                if event is not None and _is_wanted(event, wanted)
            }
            found = journal.events(wanted._replace(after=last))
            yield [begun[key] for key in begun if key not in known] + found
            known = set(begun)
            last = found[-1].seq if found else last
            time.sleep(_PAUSE)


def _begun(entry: journal_module.Entry) -> events.Event | None:
    """Make an event that says in which step a VAN is; None: in no step.

    It is not in the journal, and has no number.
    """
    van = entry.van
    if van.state not in _STEPS:
        return None
    operation, step = _STEPS[van.state]
    assert van.updated_at is not None  # a row has it
    return events.Event(
        at=events.written(van.updated_at.astimezone(datetime.UTC)),
        operation=operation,
        step=step,
        result='begun',
        van_uuid=van.uuid,
        instance_uuid=van.instance_uuid,
        instance_name=entry.instance_info.name,
        device=van.device,
        handle=van.handle.identity if van.handle is not None else None,
    )


def _is_wanted(event: events.Event, wanted: events.Wanted) -> bool:
    """As the WHERE of events.read(), for an event of a VAN."""
    handle = event.handle or ''
    places = (event.device or '', handle, handle.partition('/')[2])
    name, device = wanted.instance_name, wanted.device
    return (
        str(event.van_uuid).startswith(wanted.van or '')
        and (
            name in (None, event.instance_name)
            or str(event.instance_uuid).startswith(tuple(wanted.instances))
        )
        and (device is None or device.lower() in map(str.lower, places))
    )
