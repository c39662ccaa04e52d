# SPDX-License-Identifier: Apache-2.0

"""The base of the commands that print a list, or one object.

The keys of the columns are in snake_case, and the same in all formats for
programs: json, yaml, csv and value. Tables for people have titles, and only
the columns that fit 80 characters, unless --long is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import re
from typing import Any
from typing import ClassVar
from typing import NamedTuple

from cliff import lister
from cliff import show
from cliff.formatters import base as formatters

from os_acc import exception
from os_acc.cli import tables

_TABLE = 'table'
_TEXTS = ('csv', 'value')

_TITLES = {
    'uuid': 'UUID',
    'van_uuid': 'VAN',
    'arq_uuid': 'ARQ',
    'instance_uuid': 'Instance',
    'numa_node': 'NUMA node',
    'device_profile_name': 'Device profile',
    'device_profile_group_id': 'Group',
    'device_rp_uuid': 'Resource provider',
    'mdev_types': 'mdev types',
}


#: What take_action() of a list returns: the keys of the columns, and the rows.
Table = tuple[Sequence[str], Iterable[Any]]


class Column(NamedTuple):
    """A column of a list.

    :ivar key: its name for programs, in snake_case
    :ivar title: its name in tables; empty: derived from the key
    :ivar long: True: a table has it only with --long
    :ivar rare: True: a table has it only with --long, or if a row has a value
        for it
    :ivar brief: True: without --long, a text that is too long is cut
    """

    key: str
    title: str = ''
    long: bool = False
    rare: bool = False
    brief: bool = False

    def label(self) -> str:
        """Return its name in tables."""
        return self.title or title(self.key)


def title(key: str) -> str:
    """Derive the title of a column or field from its key."""
    text = key.replace('_', ' ')
    text = text[:1].upper() + re.sub(r'\bid$', 'ID', text[1:])
    return _TITLES.get(key, text)


class Listing(lister.Lister):
    """Prints a list.

    :cvar columns: of the list; take_action() returns their keys
    :cvar shorten: the keys of the columns whose UUIDs are cut if the table is
        too wide, the one to begin with first
    """

    columns: ClassVar[tuple[Column, ...]] = ()
    shorten: ClassVar[tuple[str, ...]] = ('uuid', 'van_uuid', 'instance_uuid')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        if any(column.long or column.rare for column in self.columns):
            parser.add_argument(
                '--long', action='store_true', help='show all columns'
            )
        return parser

    def keys(self) -> list[str]:
        """Return the keys of the columns."""
        return [column.key for column in self.columns]

    def run(self, parsed_args: argparse.Namespace) -> int:
        # Before the command changes something.
        parsed_args.columns = _keys(
            self.columns, parsed_args.columns, 'column'
        )
        parsed_args.sort_columns = _keys(
            self.columns, parsed_args.sort_columns, 'sort-column'
        )
        return super().run(parsed_args)

    def _shown(self, rows: Sequence[Sequence[Any]]) -> list[str]:
        """The keys of the columns that a table has without --long."""
        return [
            column.key
            for at, column in enumerate(self.columns)
            if not column.long
            and not (
                column.rare and all(row[at] in (None, []) for row in rows)
            )
        ]

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
    ) -> int:
        if parsed_args.formatter == _TABLE:
            self.formatter = _Table(
                self.columns,
                self.shorten,
                not getattr(parsed_args, 'long', False),
            )
            data = list(data)
            if not (parsed_args.columns or getattr(parsed_args, 'long', True)):
                parsed_args.columns = self._shown(data)
        elif parsed_args.formatter in _TEXTS:
            data = [[tables.plain(value) for value in row] for row in data]
        return super().produce_output(parsed_args, column_names, data)


class Showing(show.ShowOne):
    """Prints one object; take_action() returns the keys of its fields."""

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Sequence[Any],
    ) -> int:
        fields = [Column(key) for key in column_names]
        parsed_args.columns = _keys(fields, parsed_args.columns, 'column')
        if parsed_args.formatter == _TABLE:
            self.formatter = _Table(fields)
        elif parsed_args.formatter in _TEXTS:
            data = [tables.plain(value) for value in data]
        return super().produce_output(parsed_args, column_names, data)


def _keys(
    columns: Sequence[Column], called: Iterable[str], option: str
) -> list[str]:
    """Return the keys of columns that are called by their keys or titles."""
    keys = {_normalized(column.label()): column.key for column in columns}
    keys |= {column.key: column.key for column in columns}
    for each in called:
        if _normalized(each) not in keys:
            raise exception.InvalidRequest(
                subject='output',
                field=f'--{option}',
                value=each,
                expected='one of '
                + ', '.join(column.key for column in columns),
            )
    return [keys[_normalized(each)] for each in called]


def _normalized(name: str) -> str:
    return name.strip().lower().replace(' ', '_').replace('-', '_')


class _Table(formatters.ListFormatter, formatters.SingleFormatter):
    """A formatter of cliff that prints a table which fits the terminal."""

    def __init__(
        self,
        columns: Sequence[Column],
        shorten: Sequence[str] = (),
        brief: bool = False,
    ) -> None:
        labels = {column.key: column.label() for column in columns}
        self._labels = labels
        self._shorten = [labels[key] for key in shorten if key in labels]
        self._brief = [c.label() for c in columns if c.brief and brief]

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: cliff's own table has the options."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: Any,
        parsed_args: argparse.Namespace,
    ) -> None:
        rows = list(data)
        if not rows and not parsed_args.print_empty:
            stdout.write('(none)\n')
            return
        stdout.write(
            tables.draw(
                [self._labels[key] for key in column_names],
                rows,
                width(stdout, parsed_args),
                self._shorten,
                self._brief,
                tables.has_colours(stdout),
            )
        )

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: Any,
        parsed_args: argparse.Namespace,
    ) -> None:
        stdout.write(
            tables.draw(
                ('Field', 'Value'),
                [
                    (self._labels[key], value)
                    for key, value in zip(column_names, data, strict=True)
                ],
                width(stdout, parsed_args),
                colours=tables.has_colours(stdout),
            )
        )


def width(stdout: Any, parsed_args: argparse.Namespace) -> int | None:
    """Return the width that the output may have, as tables.width() does."""
    return tables.width(stdout, parsed_args.max_width, parsed_args.fit_width)
