# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc van list, van show: the VANs in the journal."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from cliff import lister
from cliff import show

from os_acc import exception
from os_acc import journal
from os_acc import loader
from os_acc import objects
from os_acc.cli import base
from os_acc.objects import van as states

_NONE = loader.Extensions({}, {}, {})


class VANList(base.Command, lister.Lister):
    """List the VANs of this host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--instance', metavar='UUID', help='only VANs of this instance'
        )
        parser.add_argument(
            '--state',
            choices=(*states.STATES, base.UNREADABLE),
            help='only VANs in this state',
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[tuple[str, ...], Iterable[Any]]:
        instance = parsed_args.instance
        if instance is not None:
            # Refuse a misspelt UUID, instead of listing no VANs for it.
            instance = objects.InstanceInfo(uuid=instance).uuid
        entries, unreadable = _read(instance)
        rows = [
            *(base.van_row(entry.van) for entry in entries),
            *(_unreadable_row(row) for row in unreadable),
        ]
        state = base.VAN_COLUMNS.index('State')
        return base.VAN_COLUMNS, [
            row for row in rows if parsed_args.state in (None, row[state])
        ]


class VANShow(base.Command, show.ShowOne):
    """Show all fields of one VAN."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('van', metavar='VAN', help='UUID of the VAN')
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        wanted = parsed_args.van.lower()
        entries, unreadable = _read()
        for entry in entries:
            if entry.van.uuid == wanted:
                fields = _fields(entry)
                return [n for n, _ in fields], [v for _, v in fields]
        for row in unreadable:
            if row.van_uuid == wanted:
                fields = _unreadable_fields(row)
                return [n for n, _ in fields], [v for _, v in fields]
        raise exception.InvalidRequest(
            subject='van show',
            field='VAN',
            value=parsed_args.van,
            expected='the UUID of a VAN in the journal (see van list)',
        )


def _read(
    instance: str | None = None,
) -> tuple[list[journal.Entry], list[journal.UnreadableRow]]:
    """Return the rows of an instance, or all rows: readable and unreadable.

    Drivers are loaded only if a row cannot be read without them, because the
    package of a driver may define the class of its attach handle.
    """
    read = _read_with(_NONE, instance)
    return _read_with(loader.load_all(), instance) if read[1] else read


def _read_with(
    extensions: loader.Extensions, instance: str | None
) -> tuple[list[journal.Entry], list[journal.UnreadableRow]]:
    read = base.look(extensions).journal
    try:
        found = read.entries(instance), read.unreadable(instance)
        base.tell_if_empty(read)
        return found
    finally:
        read.close()


def _unreadable_row(row: journal.UnreadableRow) -> tuple[Any, ...]:
    """Return the values of base.VAN_COLUMNS."""
    return (
        row.van_uuid,
        row.instance_uuid,
        base.UNREADABLE,
        base.Nullable(None),
        base.Nullable(None),
        base.Nullable(row.handle),
        base.Nullable(row.device),
        base.Nullable(None),
        base.Nullable(row.reason),
    )


def _unreadable_fields(row: journal.UnreadableRow) -> list[tuple[str, Any]]:
    return [
        ('uuid', row.van_uuid),
        ('instance_uuid', row.instance_uuid),
        ('state', base.UNREADABLE),
        ('state_in_journal', row.state),
        ('error', row.reason),
        ('device', row.device),
        ('handle', row.handle),
    ]


def _fields(entry: journal.Entry) -> list[tuple[str, Any]]:
    van = entry.van
    handle = van.handle
    return [
        ('uuid', van.uuid),
        ('instance_uuid', van.instance_uuid),
        ('instance_name', entry.instance_info.name),
        ('state', van.state),
        ('error', van.error),
        ('live', entry.live),
        ('driver', van.driver),
        ('plugin', van.plugin),
        ('owner', van.owner),
        ('device', van.device),
        ('handle', handle.identity if handle is not None else None),
        ('function_id', van.function_id),
        ('live_migratable', van.live_migratable),
        ('guest_config', van.guest_config),
        ('driver_data', dict(van.driver_data)),
        ('boot_id', van.boot_id),
        ('created_at', str(van.created_at)),
        ('updated_at', str(van.updated_at)),
    ]
