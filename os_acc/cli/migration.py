# SPDX-License-Identifier: Apache-2.0

"""os-acc migration list, check, finish, abort: instances that are moved."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from os_acc import exception
from os_acc import journal
from os_acc import migration
from os_acc import objects
from os_acc.attach import guests
from os_acc.cli import base
from os_acc.cli import errors
from os_acc.cli import listing
from os_acc.cli import names
from os_acc.moving import calls
from os_acc.moving import moves
from os_acc.moving import plans
from os_acc.objects import base as objects_base
from os_acc.objects import van as states
from os_acc.state import instance_names

_RELEASED = 'released'
_SIDES = {states.INCOMING: 'target', states.OUTGOING: 'source'}


class MigrationList(base.Command, listing.Listing):
    """List the migrations that are not settled on this host."""

    columns = (
        listing.Column('instance_uuid'),
        listing.Column('instance_name', 'Name'),
        listing.Column('migration_uuid', 'Migration', long=True),
        listing.Column('host', 'This host is'),
        listing.Column('vans', 'VANs'),
        listing.Column('changed'),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        rows: dict[str, list[Any]] = {}
        with base.reading() as read:
            for entry in _moving(read):
                van = entry.van
                row = rows.setdefault(
                    van.instance_uuid,
                    [
                        van.instance_uuid,
                        entry.instance_info.name,
                        van.migration_uuid,
                        _SIDES[van.state],
                        0,
                        '',
                    ],
                )
                row[-2] += 1
                row[-1] = max(row[-1], str(van.updated_at))
            base.tell_if_empty(read)
        return self.keys(), list(rows.values())


class MigrationCheck(base.Command, listing.Listing):
    """Say how the accelerators of an instance move, and which cannot.

    It changes nothing. The exit code is 3 if something cannot move.
    """

    columns = (
        listing.Column('uuid', 'VAN'),
        listing.Column('driver'),
        listing.Column('way'),
        listing.Column('left_behind', rare=True),
        listing.Column('obstacle', rare=True),
        listing.Column('request', long=True),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _with_instance(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        with contextlib.closing(base.look()) as opened:
            called = names.instance(
                opened.journal, parsed_args.instance, 'migration check'
            )
            info = base.instance_info(called)
            names.check_has(
                opened.journal, called, info.uuid, None, 'migration check'
            )
            plan = plans.describe(opened, info)
        self.unfinished = bool(plan.obstacles)
        return self.keys(), [
            [_shown(getattr(each, key)) for key in self.keys()]
            for each in plan.accelerators
        ]


def _shown(value: Any) -> Any:
    """A value, or what is set in an object, without its UUID."""
    if not isinstance(value, objects_base.VersionedObject):
        return value
    found = {name: _shown(getattr(value, name)) for name in value.fields}
    return {
        name: each
        for name, each in found.items()
        if name != 'uuid' and each not in (None, [], {})
    }


class _Settle(base.Command, listing.Listing):
    """Settles a migration on this host."""

    columns = (
        listing.Column('uuid', 'VAN'),
        listing.Column('instance_uuid'),
        listing.Column('result'),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _with_instance(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        base.open_existing().close()
        self.initialize()
        with base.reading() as read:
            called = names.instance(
                read, parsed_args.instance, self.cmd_name or ''
            )
            uuid = instance_names.instance_uuid(called)
            entries = [e for e in _moving(read) if e.van.instance_uuid == uuid]
        if not entries:
            raise errors.NotFound(
                subject=self.cmd_name,
                field='INSTANCE',
                value=parsed_args.instance,
                expected='an instance with a migration that is not settled '
                'on this host. See: os-acc migration list',
            )
        result = self.settle(entries, parsed_args)
        if result == _RELEASED:
            self._tell_definition(entries)
        return self.keys(), [
            (entry.van.uuid, uuid, result) for entry in entries
        ]

    def _tell_definition(self, entries: list[journal.Entry]) -> None:
        """Say that the guest, which is the other host's, is defined here."""
        info = entries[0].instance_info
        with contextlib.closing(base.look()) as opened:
            plugins = opened.extensions.plugin
            try:
                commands = {
                    plugins(each.van.plugin).undefine_command(info)
                    for each in entries
                }
            except Exception as err:
                self.say(
                    'Whether the guest is still defined on this host is not '
                    f'known: {exception.describe(err)}'
                )
                return
        for command in filter(None, commands):
            self.unfinished = True
            self.say(
                'The guest belongs to the other host now, and is still '
                'defined on this one. If it is defined there, remove the '
                f'definition here: {command}'
            )

    def settle(
        self, entries: list[journal.Entry], parsed_args: argparse.Namespace
    ) -> str:
        """Do it.

        :returns: what became of the VANs
        """
        raise NotImplementedError


class MigrationFinish(_Settle):
    """Finish a migration whose caller has died: first on the target.

    On the target, the accelerators are assigned to the instance, and a guest
    that runs without them gets them. On the source, what was left behind is
    released.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--handed-over',
            action='store_true',
            help='on the target: finish it although the guest does not run '
            'there, because os-acc migration list on the source shows that '
            'the source has handed it over',
        )
        return parser

    def settle(
        self, entries: list[journal.Entry], parsed_args: argparse.Namespace
    ) -> str:
        info, uuid = _named(entries)
        if entries[0].van.state == states.OUTGOING:
            migration.finish(info, uuid, self.show_progress)
            return _RELEASED
        runs, attaches = _look(entries)
        if not parsed_args.handed_over and not runs:
            raise exception.MigrationConflict(
                instance=info.uuid,
                reason='its guest does not run on this host, as far as the '
                'plugin can tell. If os-acc migration list on the source '
                'shows that the source has handed it over, give '
                '--handed-over; otherwise abort it',
            )
        migration.switch(info, uuid, attaches, self.show_progress)
        return 'plugged'


class MigrationAbort(_Settle):
    """Abort a migration whose caller has died: first on the target.

    On the target, what was prepared is released. On the source, the
    accelerators are assigned to the instance again. If the target refuses,
    because it has switched, finish it on the source instead.
    """

    def settle(
        self, entries: list[journal.Entry], parsed_args: argparse.Namespace
    ) -> str:
        info, uuid = _named(entries)
        incoming = entries[0].van.state == states.INCOMING
        if not incoming:
            _check_decided(entries)
        migration.abort(info, uuid, self.show_progress)
        return _RELEASED if incoming else 'plugged'


def _with_instance(
    parser: argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    parser.add_argument(
        'instance',
        metavar='INSTANCE',
        help='UUID of the instance, its first 8 or more characters, or the '
        'name that plug was given',
    )
    return parser


def _named(entries: list[journal.Entry]) -> tuple[objects.InstanceInfo, str]:
    """The instance of some VANs, and their migration."""
    return entries[0].instance_info, str(entries[0].van.migration_uuid)


def _moving(read: journal.Journal) -> list[journal.Entry]:
    return [e for e in read.entries() if e.van.state in states.MOVING]


def _check_decided(entries: list[journal.Entry]) -> None:
    """Check that the guest is not being moved away from this host just now.

    A caller of the library knows when its migration has ended. An operator may
    not know.
    """
    with contextlib.closing(base.look()) as opened:
        stays = guests.stays(opened, entries)
    if stays is None:
        raise exception.MigrationConflict(
            instance=entries[0].van.instance_uuid, reason=calls.UNDECIDED
        )


def _look(entries: list[journal.Entry]) -> tuple[bool | None, bool]:
    """Look at the guest of incoming VANs.

    :returns: whether it runs here, and whether to attach the devices to it. A
        guest that came without them, and was shut down since, needs them in
        its definition; one that has them there keeps them
    """
    with contextlib.closing(base.look()) as opened:
        runs = guests.runs(opened, entries)
        there = runs or guests.exists(opened, entries)
        return runs, bool(there) and moves.can_attach(opened, entries)
