# SPDX-License-Identifier: Apache-2.0

"""How the commands show the events of the journal."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import textwrap
from typing import Any

from cliff import columns

from os_acc.cli import tables
from os_acc.journal import events
from os_acc.state import files as state_files

#: The longest name of what an event is about, in a table.
_LONGEST = 18

#: The width of the lines of events and of --follow.
_WIDTH = 80


class Time(columns.FormattableColumn[str]):
    """When an event ended, in UTC. In a table, it has no fraction."""

    def human_readable(self) -> str:
        return self._value[:19].replace('T', ' ')


class Seconds(columns.FormattableColumn[float | None]):
    """How long something took; none if it has no duration."""

    def human_readable(self) -> str:
        if self._value is None:
            return ''
        digits = 3 if self._value < 100 else 0
        return f'{self._value:.{digits}f}'


class Step(columns.FormattableColumn[Any]):
    """The step; in a table, the call for an event about a whole call."""

    def human_readable(self) -> str:
        event: events.Event = self._value
        if event.step is not None:
            return event.step
        is_call = event.van_uuid is None and event.instance_uuid is not None
        return f'{event.operation} (all)' if is_call else event.operation

    def machine_readable(self) -> str | None:
        event: events.Event = self._value
        return event.step


class Subject(columns.FormattableColumn[Any]):
    """What an event is about; in a table, in its shortest form."""

    def human_readable(self) -> str:
        event: events.Event = self._value
        if event.van_uuid is not None:
            return f'VAN {event.van_uuid[:8]}'
        if event.instance_uuid is not None:
            return f'instance {event.instance_uuid[:8]}'
        address = event.device or ''
        if len(address) > _LONGEST:
            return f'{address[: _LONGEST - 3]}...'
        return address

    def machine_readable(self) -> str:
        event: events.Event = self._value
        if event.van_uuid is not None:
            return f'VAN {event.van_uuid}'
        if event.instance_uuid is not None:
            return f'instance {event.instance_uuid}'
        return f'device {event.device}'


class History(columns.FormattableColumn[Any]):
    """Events. In a table, each is on a line of its own."""

    def human_readable(self) -> str:
        lines = []
        for event in self._value:
            texts = [
                Time(event.at).human_readable(),
                Step(event).human_readable(),
                event.result,
            ]
            if event.seconds is not None:
                texts.append(f'{Seconds(event.seconds).human_readable()} s')
            if event.error is not None:
                texts.append(event.error)
            lines.append(' '.join(texts))
        return '\n'.join(lines)

    def machine_readable(self) -> list[dict[str, Any]]:
        return [described(event) for event in self._value]


def described(event: events.Event) -> dict[str, Any]:
    """Describe an event for scripts, with keys in snake_case."""
    made = event._asdict()
    made['user'] = user(event)
    return made


def user(event: events.Event) -> str | None:
    """The name of the user who caused an event; the id if it has no name."""
    return None if event.uid is None else state_files.user_name(event.uid)


def lines(event: events.Event, details: bool = False) -> Sequence[str]:
    """Show an event as a line; its error is in further lines.

    No line is wider than 80 characters.

    :param details: True: further lines also say who, where and by what
    """
    seconds = Seconds(event.seconds).human_readable()
    line = (
        f'{Time(event.at).human_readable()}  '
        f'{Step(event).human_readable():<12}  {event.result:<8}  '
        f'{seconds:>7}{" s" if seconds else "  "}  '
        f'{Subject(event).human_readable()}'
    )
    made = [tables.text(line.rstrip())]
    texts = []
    if event.error is not None:
        texts.append(f'{event.error}: {event.reason}')
    if details:
        texts += _details(event)
    for text in texts:
        made += textwrap.wrap(
            tables.text(text),
            _WIDTH,
            initial_indent=' ' * 4,
            subsequent_indent=' ' * 4,
            break_on_hyphens=False,
        )
    return made


def _details(event: events.Event) -> Iterator[str]:
    """Say what the line of an event leaves out."""
    yield f'{event.program} as {user(event)}, process {event.pid}'
    for name in ('van_uuid', 'instance_uuid', 'device', 'handle', 'extension'):
        if (value := getattr(event, name)) is not None:
            yield f'{name} {value}'
