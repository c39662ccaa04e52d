# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc van list, van show: what the journal holds."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from cliff import lister
from cliff import show

from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.cli import base
from os_acc.objects import van as states


class VANList(base.Command, lister.Lister):
    """List the VANs of this host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('--instance', metavar='UUID', help='of this one')
        parser.add_argument(
            '--state', choices=states.STATES, help='in this state'
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[tuple[str, ...], Iterable[Any]]:
        instance = parsed_args.instance
        if instance is not None:
            # One that is misspelt is refused: it would have no VANs, for sure.
            instance = objects.InstanceInfo(uuid=instance).uuid
        rows = [
            base.van_row(entry.van)
            for entry in _entries(instance)
            if parsed_args.state in (None, entry.van.state)
        ]
        return base.VAN_COLUMNS, rows


class VANShow(base.Command, show.ShowOne):
    """Show all of one VAN."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('van', metavar='VAN', help='its UUID')
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        for entry in _entries():
            if entry.van.uuid == parsed_args.van.lower():
                fields = _fields(entry)
                return [n for n, _ in fields], [v for _, v in fields]
        raise exception.InvalidRequest(
            subject='van show',
            field='VAN',
            value=parsed_args.van,
            expected='the UUID of a VAN in the journal (see van list)',
        )


def _entries(instance: str | None = None) -> list[journal.Entry]:
    opened = base.open_journal()
    if opened is None:
        return []
    try:
        return opened.entries(instance)
    finally:
        opened.close()


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
        ('device', van.device),
        ('handle', handle.identity if handle is not None else None),
        ('function_id', van.function_id),
        ('guest_config', van.guest_config),
        ('driver_data', dict(van.driver_data)),
        ('boot_id', van.boot_id),
        ('created_at', str(van.created_at)),
        ('updated_at', str(van.updated_at)),
    ]
