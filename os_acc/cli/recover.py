# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc recover: finish or undo what a crash or a reboot left behind."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from cliff import lister

import os_acc
from os_acc import host
from os_acc import recovery
from os_acc.cli import base
from os_acc.journal import file as journal_file


class Recover(base.Command, lister.Lister):
    """Finish or undo what a crash or a reboot of the host left behind."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--rebuild',
            action='store_true',
            help='first start a new journal, with all rows that can still be '
            'read from the damaged journal that was set aside',
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        if parsed_args.rebuild:
            host.check_owner(os_acc.CONF)
            conf = os_acc.CONF.os_acc
            rebuilt = journal_file.rebuild(
                conf.state_path, conf.journal_timeout
            )
            self.app.stderr.write(
                f'New journal: {rebuilt.vans} VANs and the records of '
                f'{rebuilt.programs} programmed regions were read and kept, '
                f'{rebuilt.lost} rows conflicted with others and were lost. '
                'Plug each instance again to add its missing VANs.\n'
            )
        # os_acc.initialize() recovers too, but does not return a report.
        report = recovery.recover(host.Host.open(os_acc.CONF))
        self.unfinished = bool(
            report.failed or report.unreadable or report.errors
        )
        rows: list[tuple[Any, ...]] = [
            (van.uuid, van.instance_uuid, result, van.error)
            for result, vans in (
                ('released', report.released),
                ('prepared again', report.restored),
                ('failed', report.failed),
            )
            for van in vans
        ]
        rows += [
            (None, uuid, 'skipped: another process holds its lock', None)
            for uuid in report.busy
        ]
        rows += [
            (None, uuid, 'unreadable', err)
            for uuid, err in report.unreadable.items()
        ]
        rows += [
            (None, uuid, 'failed', err) for uuid, err in report.errors.items()
        ]
        if not rows and not parsed_args.rebuild:
            self.app.stderr.write('There is nothing to recover\n')
        return ('VAN', 'Instance', 'Result', 'Error'), rows
