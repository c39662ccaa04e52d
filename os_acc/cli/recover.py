# SPDX-License-Identifier: Apache-2.0

"""os-acc recover: finish or undo what a crash or a reboot left behind."""

from __future__ import annotations

import argparse
import contextlib

import os_acc
from os_acc import host
from os_acc import objects
from os_acc.cli import base
from os_acc.cli import listing
from os_acc.cli import report
from os_acc.desired import applying
from os_acc.journal import file as journal_file
from os_acc.objects import report as results
from os_acc.operations import recovery


class Recover(base.Command, listing.Listing):
    """Finish or undo what a crash or a reboot left behind."""

    columns = (
        listing.Column('van_uuid'),
        listing.Column('instance_uuid'),
        listing.Column('result'),
        listing.Column('error', rare=True),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--rebuild',
            action='store_true',
            help='first start a new journal, with all rows that can still be '
            'read from the damaged journal',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        if parsed_args.rebuild:
            host.check_owner(os_acc.CONF)
            conf = os_acc.CONF.os_acc
            rebuilt = journal_file.rebuild(
                conf.state_path, conf.journal_timeout
            )
            self.say(
                f'New journal: {rebuilt.vans} VANs and the records of '
                f'{rebuilt.programs} programmed regions were read and kept, '
                f'{rebuilt.lost} rows conflicted with others and were lost. '
                'Plug each instance again to add its missing VANs.'
            )
        else:
            with base.reading() as read:
                if base.is_missing(read):
                    self.say(f'There is no journal {read.path}: nothing to do')
                    return self.keys(), []
        with contextlib.closing(host.Host.open(os_acc.CONF)) as opened:
            applying.before_instances(opened)
            done = recovery.recover(opened)
            applied = applying.again(opened, anew=True)
        self.unfinished = bool(done.failed or done.unreadable or done.errors)
        if applied is not None:
            self._tell(applied)
        rows = report.rows(done)
        found = f'{len(rows)} VANs or instances' if rows else 'nothing to do'
        if not parsed_args.rebuild:
            self.say(f'Journal {opened.journal.path}: {found}')
        return self.keys(), [
            (
                row.van and row.van.uuid,
                row.instance_uuid,
                row.result,
                base.error_cell(row.error),
            )
            for row in rows
        ]

    def _tell(self, applied: objects.ApplyReport) -> None:
        """Say what was done for the document of os-acc apply.

        What is only in the way is done later: see applying.again().
        """
        self.unfinished |= results.FAILED in applied.results()
        if set(applied.results()) == {results.UNCHANGED}:
            return
        for each in applied.steps:
            why = f' ({each.reason})' if each.reason else ''
            self.say(f'{each.part} {each.name}: {each.result}{why}')
