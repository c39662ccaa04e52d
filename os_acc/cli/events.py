# SPDX-License-Identifier: Apache-2.0

"""os-acc events: what happened to VANs, instances and devices.

An event is written when a step has ended, or later. So --follow sees a step
that takes long by the state of its VAN, which os-acc writes before the step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import datetime
import json
import re
import time
from typing import Any

from os_acc import exception
from os_acc import journal as journal_module
from os_acc.cli import answers
from os_acc.cli import base
from os_acc.cli import history
from os_acc.cli import listing
from os_acc.cli import names
from os_acc.journal import events
from os_acc.kernel import pci
from os_acc.objects import van as states
from os_acc.state import instance_names

_COLUMNS = (
    listing.Column('at', 'Time'),
    listing.Column('user', 'User', long=True),
    listing.Column('program', 'Program', long=True),
    listing.Column('pid', 'PID', long=True),
    listing.Column('operation', 'Operation', long=True),
    listing.Column('step', 'Step'),
    listing.Column('result', 'Result'),
    listing.Column('seconds', 'Seconds'),
    listing.Column('subject', 'Subject'),
    listing.Column('van_uuid', 'VAN', long=True),
    listing.Column('instance_uuid', 'Instance', long=True),
    listing.Column('instance_name', 'Name', long=True),
    listing.Column('device', 'Device', long=True),
    listing.Column('handle', 'Handle', long=True),
    listing.Column('extension', 'Extension', long=True),
    listing.Column('error', 'Error', long=True),
    listing.Column('reason', 'Reason', long=True),
    listing.Column('seq', 'Number', long=True),
)

#: How many of the earlier events --follow shows first.
_EARLIER = 10

_UNITS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 604800}
_AGE = re.compile(r'([0-9]{1,9})([smhdw])')

# How often to look for new events, in seconds.
_PAUSE = 1.0

# The operation and the step of a VAN in each state.
_STEPS = {
    states.PREPARING: (events.PLUG, 'prepareVAN'),
    states.PLUGGING: (events.PLUG, 'plug'),
    states.UNPLUGGING: (events.UNPLUG, 'unplug'),
    states.UNPREPARING: (events.UNPLUG, 'unprepareVAN'),
}


class Events(answers.Command, listing.Listing):
    """Show what happened to VANs, instances and devices.

    An event is a step of a VAN, such as prepareVAN of its driver, or a call as
    a whole, such as a plug of an instance. Times are in UTC. The journal keeps
    the newest 10000 events. The command changes nothing.
    """

    columns = _COLUMNS
    shorten = ()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--van',
            metavar='VAN',
            help=f'only events of this VAN: {names.VAN_HELP}',
        )
        parser.add_argument(
            '--instance',
            metavar='INSTANCE',
            help='only events of this instance: its UUID, its first 8 or more '
            'characters, or its name',
        )
        parser.add_argument(
            '--device',
            metavar='ADDRESS',
            help='only events of this device: its address, or that of a '
            'handle, such as a VF',
        )
        parser.add_argument(
            '--since',
            metavar='TIME',
            help='only events since this time in UTC, such as '
            '2026-05-31T22:00, or of the last 90s, 30m, 12h, 7d or 2w',
        )
        parser.add_argument(
            '--follow',
            action='store_true',
            help='show further events as they happen, one per line (with '
            '--json, one JSON object per line), until Ctrl-C; without '
            f'--since begin with the last {_EARLIER} events',
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        if parsed_args.follow:
            # There is no single answer, and an error is a line.
            return base.Command.run(self, parsed_args)
        return super().run(parsed_args)

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        if parsed_args.follow:
            # The command does not end by itself, so no "still works" is shown.
            self.notice.stop()
            self._follow(parsed_args)
        found = _read(parsed_args)
        failed = sum(event.error is not None for event in found)
        table = parsed_args.formatter == 'table'
        if failed and table and not parsed_args.long:
            self.say(f'{failed} events have an error: --long shows it')
        return self.keys(), [_row(event, self.keys()) for event in found]

    def answer(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {'events': [history.described(e) for e in _read(parsed_args)]}

    def _follow(self, parsed_args: argparse.Namespace) -> None:
        """Print events as they happen, until Ctrl-C."""
        if parsed_args.formatter != 'table' and not parsed_args.json:
            raise _refused(
                '--format',
                parsed_args.formatter,
                'none with --follow, which prints lines, or JSON with --json',
            )
        found = _read(parsed_args)
        last = found[-1].seq if found else None
        self._print_lines(
            found if parsed_args.since is not None else found[-_EARLIER:],
            parsed_args,
        )
        for found in _follow(_wanted(parsed_args), last):
            self._print_lines(found, parsed_args)

    def _print_lines(
        self, found: Iterable[events.Event], parsed_args: argparse.Namespace
    ) -> None:
        for event in found:
            lines = (
                [json.dumps(history.described(event))]
                if parsed_args.json
                else history.lines(event, parsed_args.long)
            )
            self.app.stdout.write('\n'.join(lines) + '\n')
        self.app.stdout.flush()


def _row(event: events.Event, keys: Sequence[str]) -> list[Any]:
    shown: dict[str, Any] = {
        **history.described(event),
        'at': history.Time(event.at),
        'step': history.Step(event),
        'seconds': history.Seconds(event.seconds),
        'subject': history.Subject(event),
    }
    return [shown[key] for key in keys]


def _read(parsed_args: argparse.Namespace) -> list[events.Event]:
    wanted = _wanted(parsed_args)
    with base.reading() as journal:
        found = journal.events(wanted)
        base.tell_if_empty(journal)
    vans = {e.van_uuid for e in found if e.van_uuid}
    if parsed_args.van is not None and vans:
        names.only(vans, parsed_args.van, 'events: --van')
    named = any(e.instance_name == parsed_args.instance for e in found)
    uuids = {e.instance_uuid for e in found if e.instance_uuid}
    if parsed_args.instance is not None and uuids and not named:
        names.only(uuids, parsed_args.instance, 'events: --instance')
    return found


def _wanted(parsed_args: argparse.Namespace) -> events.Wanted:
    van = instance = None
    beginnings: list[str] = []
    if parsed_args.van is not None:
        van = names.beginning(parsed_args.van)
        if van is None:
            raise _refused('--van', parsed_args.van, names.EXPECTED)
    if parsed_args.instance is not None:
        instance = parsed_args.instance
        beginnings.append(
            names.beginning(instance) or instance_names.instance_uuid(instance)
        )
    since, device = parsed_args.since, parsed_args.device
    return events.Wanted(
        van=van,
        instances=beginnings,
        instance_name=instance,
        device=device and (pci.canonical(device) or device),
        since=None if since is None else _since(since),
    )


def _since(text: str) -> str:
    """Read a time, or an age, as Event.at has it."""
    with contextlib.suppress(ValueError, OverflowError):
        if (age := _AGE.fullmatch(text)) is not None:
            seconds = int(age[1]) * _UNITS[age[2]]
            now = datetime.datetime.now(datetime.UTC)
            return events.written(now - datetime.timedelta(seconds=seconds))
        read = datetime.datetime.fromisoformat(text)
        if read.tzinfo is None:
            read = read.replace(tzinfo=datetime.UTC)
        return events.written(read.astimezone(datetime.UTC))
    raise _refused(
        '--since',
        text,
        'a time such as 2026-05-31T22:00, or an age such as 90s, 30m, 12h, '
        '7d or 2w',
    )


def _refused(
    field: str, value: str, expected: str
) -> exception.InvalidRequest:
    return exception.InvalidRequest(
        subject='events', field=field, value=value, expected=expected
    )


def _follow(
    wanted: events.Wanted, last: int | None
) -> Iterator[list[events.Event]]:
    """Read what happens from now on, until the caller ends it.

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
