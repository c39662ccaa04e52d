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
from os_acc import loader
from os_acc.cli import base
from os_acc.journal import events
from os_acc.objects import van as states

#: The result of an event that is not in the journal: the step has begun.
BEGUN = 'begun'

# How often to look for new events, in seconds.
_PAUSE = 1.0

# The operation and the step of a VAN in each state.
_STEPS = {
    states.PREPARING: (events.PLUG, 'prepareVAN'),
    states.PLUGGING: (events.PLUG, 'plug'),
    states.UNPLUGGING: (events.UNPLUG, 'unplug'),
    states.UNPREPARING: (events.UNPLUG, 'unprepareVAN'),
}


def journal() -> journal_module.Journal:
    """Open the journal to read events. No driver is needed for this."""
    return base.look(loader.Extensions({}, {}, {})).journal


def follow(
    wanted: events.Wanted, first: list[events.Event]
) -> Iterator[list[events.Event]]:
    """Read what happens from now on, until the caller ends it.

    :param wanted: which events to read
    :param first: the events that the caller has read
    :returns: each time what is new: steps that have begun, then events
    """
    last = first[-1].seq if first else 0
    known: set[tuple[str, str]] = set()
    opened = journal()
    try:
        while True:
            begun = {
                (each.van.uuid, each.van.state): _begun(each)
                for each in opened.entries()
                if each.van.state in _STEPS and _is_wanted(each, wanted)
            }
            new = [begun[key] for key in begun if key not in known]
            known = set(begun)
            found = opened.events(wanted._replace(after=last))
            if found:
                last = found[-1].seq
            yield new + found
            time.sleep(_PAUSE)
    finally:
        opened.close()


def _is_wanted(entry: journal_module.Entry, wanted: events.Wanted) -> bool:
    """Whether a VAN is one of those whose events are wanted."""
    van = entry.van
    by_name = wanted.instance_name
    devices = [van.device]
    if van.handle is not None:
        identity = van.handle.identity
        devices += [identity, identity.partition('/')[2]]
    return (
        (wanted.van is None or van.uuid.startswith(wanted.van))
        and (
            by_name is None
            or by_name == entry.instance_info.name
            or van.instance_uuid.startswith(tuple(wanted.instances))
        )
        and (
            wanted.device is None
            or wanted.device.lower() in [d.lower() for d in devices if d]
        )
    )


def _begun(entry: journal_module.Entry) -> events.Event:
    """Make an event that says in which step a VAN is."""
    van = entry.van
    operation, step = _STEPS[van.state]
    assert van.updated_at is not None  # a row has it
    began = van.updated_at.astimezone(datetime.UTC)
    return events.Event(
        at=events.written(began),
        operation=operation,
        step=step,
        result=BEGUN,
        van_uuid=van.uuid,
        instance_uuid=van.instance_uuid,
        instance_name=entry.instance_info.name,
        device=van.device,
        handle=van.handle.identity if van.handle is not None else None,
    )
