# SPDX-License-Identifier: Apache-2.0

"""os-acc van list, van show: the VANs in the journal."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from os_acc import exception
from os_acc import journal
from os_acc import loader
from os_acc.cli import answers
from os_acc.cli import base
from os_acc.cli import history
from os_acc.cli import listing
from os_acc.cli import names
from os_acc.journal import events
from os_acc.objects import van as states
from os_acc.state import instance_names

_NONE = loader.Extensions({}, {}, {})

_STATES = (*states.STATES, base.UNREADABLE)


class VANList(answers.Command, listing.Listing):
    """List the VANs of this host."""

    columns = (*base.VAN_COLUMNS, listing.Column('project_id', long=True))

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--instance',
            metavar='INSTANCE',
            help='only VANs of this instance: its UUID, its first 8 or more '
            'characters, or the name under which it was plugged',
        )
        parser.add_argument(
            '--state',
            metavar='STATE',
            choices=_STATES,
            help='only VANs in this state: ' + ', '.join(_STATES),
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        entries, unreadable = _read(_instance(parsed_args))
        rows = [
            *map(_row, entries),
            *(_unreadable_row(row) for row in unreadable),
        ]
        state = self.keys().index('state')
        return self.keys(), [
            row for row in rows if parsed_args.state in (None, row[state])
        ]

    def answer(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        entries, unreadable = _read(_instance(parsed_args))
        vans = [
            {
                **answers.van(entry.van),
                'instance_name': entry.instance_info.name,
                'project_id': entry.instance_info.project_id,
            }
            for entry in entries
        ]
        vans += map(_unreadable_fields, unreadable)
        return {
            'vans': [
                van
                for van in vans
                if parsed_args.state in (None, van['state'])
            ]
        }


def _instance(parsed_args: argparse.Namespace) -> str | None:
    if parsed_args.instance is None:
        return None
    with base.reading() as read:
        called = names.instance(read, parsed_args.instance, 'van list')
    # This refuses a misspelt UUID, instead of listing no VANs for it.
    return instance_names.instance_uuid(called)


class VANShow(base.Command, listing.Showing):
    """Show all fields of one VAN."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'van',
            metavar='VAN',
            help=f'{names.VAN_HELP}, or the name of an instance that has '
            'only one',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        entries, unreadable = _read()
        known = [entry.van.uuid for entry in entries]
        known += [row.van_uuid for row in unreadable]
        wanted = _only_van_of(parsed_args.van, entries) or names.van(
            known,
            parsed_args.van,
            'van show: VAN',
            'the UUID of a VAN in the journal, or the name of an instance '
            'that has only one (see van list)',
            named=True,
        )
        (fields,) = [
            *(_fields(e) for e in entries if e.van.uuid == wanted),
            *(
                _unreadable_fields(r)
                for r in unreadable
                if r.van_uuid == wanted
            ),
        ]
        with base.reading() as read:
            past = read.events(events.Wanted(van=wanted))
        fields['history'] = history.History(past)
        return list(fields), list(fields.values())


def _only_van_of(name: str, entries: list[journal.Entry]) -> str | None:
    """The VAN of the instance that a name means.

    :returns: None if the instance has none
    """
    found: list[str] = []
    with contextlib.suppress(exception.InvalidRequest):
        uuid = instance_names.instance_uuid(name)
        found = [e.van.uuid for e in entries if e.van.instance_uuid == uuid]
    if len(found) > 1:
        raise exception.InvalidRequest(
            subject='van show',
            field='VAN',
            value=name,
            expected='a VAN, or the name of an instance that has only one: '
            f'this one has {len(found)} (see os-acc van list --instance '
            f'{name!r})',
        )
    return str(found[0]) if found else None


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
    with contextlib.closing(base.look(extensions).journal) as read:
        found = read.entries(instance), read.unreadable(instance)
        base.tell_if_empty(read)
        return found


def _row(entry: journal.Entry) -> tuple[Any, ...]:
    """Return the values of VANList.columns."""
    row = base.van_row(entry.van, entry.called)
    return (*row, entry.instance_info.project_id)


def _unreadable_row(row: journal.UnreadableRow) -> tuple[Any, ...]:
    """Return the values of VANList.columns."""
    return (
        row.van_uuid,
        row.instance_uuid,
        base.UNREADABLE,
        None,
        None,
        row.handle,
        row.device,
        None,
        row.reason,
        None,
    )


def _unreadable_fields(row: journal.UnreadableRow) -> dict[str, Any]:
    return {
        'uuid': row.van_uuid,
        'instance_uuid': row.instance_uuid,
        'state': base.UNREADABLE,
        'state_in_journal': row.state,
        'error': row.reason,
        'device': row.device,
        'handle': row.handle,
    }


def _fields(entry: journal.Entry) -> dict[str, Any]:
    van, request = entry.van, entry.request
    handle = van.handle
    return {
        'uuid': van.uuid,
        'instance_uuid': van.instance_uuid,
        'instance_name': entry.instance_info.name,
        'project_id': entry.instance_info.project_id,
        'state': van.state,
        'error': van.error,
        'live': entry.live,
        'driver': van.driver,
        'plugin': van.plugin,
        'owner': van.owner,
        'device': van.device,
        'handle': handle.identity if handle is not None else None,
        'function_id': van.function_id,
        'live_migratable': van.live_migratable,
        'guest_config': van.guest_config,
        'driver_data': dict(van.driver_data),
        'boot_id': van.boot_id,
        'created_at': str(van.created_at),
        'updated_at': str(van.updated_at),
        'device_profile_name': request.device_profile_name,
        'device_profile_group_id': request.device_profile_group_id,
        'device_rp_uuid': request.device_rp_uuid,
    }
