# SPDX-License-Identifier: Apache-2.0

"""os-acc apply and os-acc export: the state of this host's devices."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc import opts
from os_acc.cli import base
from os_acc.cli import exit_codes
from os_acc.cli import listing
from os_acc.cli import waiting
from os_acc.desired import applying
from os_acc.desired import documents
from os_acc.desired import export
from os_acc.desired import offered
from os_acc.objects import report as results
from os_acc.spec import changing as spec_changing
from os_acc.state import sharing


class Apply(base.Command, listing.Listing):
    """Bring this host's devices into the state that a document describes.

    It does not touch devices that are already in that state, or that are in
    use. Run it as root if it changes which devices are offered.
    """

    creates = True
    configured = True
    columns = (
        listing.Column('part'),
        listing.Column('name'),
        listing.Column('before', long=True),
        listing.Column('after', long=True),
        listing.Column('result'),
        listing.Column('reason', rare=True),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'path',
            metavar='PATH',
            help='a file of JSON or YAML, or a directory of such files',
        )
        parser.add_argument(
            '--check',
            action='store_true',
            help='change nothing; the exit code is 2 if something would '
            'change, and 1 if the document is wrong',
        )
        parser.add_argument(
            '--diff',
            action='store_true',
            help='also show on standard error the old state and the new one',
        )
        parser.add_argument(
            '--wait',
            type=waiting.seconds,
            nargs='?',
            const=waiting.DEFAULT,
            metavar='SECONDS',
            help='if a device is in use, retry for this time (default: '
            f'{waiting.DEFAULT:.0f})',
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        self._changes = False
        code = super().run(parsed_args)
        if not parsed_args.check:
            return code
        if code == exit_codes.WRONG_USAGE:
            return exit_codes.FAILED
        return code or exit_codes.WOULD_CHANGE * self._changes

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        document = documents.from_files(parsed_args.path)
        if parsed_args.check:
            done = applying.check(base.look(), document)
            self._changes = results.WOULD_CHANGE in done.results()
            self.unfinished = results.FAILED in done.results()
        else:
            _become_owner()
            self.initialize()
            done = self._apply(document.as_object(), parsed_args.wait)
            self.unfinished = bool(
                {results.IN_THE_WAY, results.FAILED} & done.results()
            )
        if parsed_args.diff:
            for line in _difference(done):
                self.say(line)
        return self.keys(), [
            tuple(getattr(each, key) for key in self.keys())
            for each in done.steps
        ]

    def _apply(
        self, document: dict[str, Any], seconds: float | None
    ) -> objects.ApplyReport:
        """Apply a document until no device is in use, or the time has passed.

        A step that has failed would fail again, so it ends the wait.
        """
        done = objects.ApplyReport()

        def act() -> None:
            nonlocal done
            done = os_acc.apply(document, progress=self.show_progress)
            if results.FAILED in done.results():
                return
            for each in done.steps:
                if each.result == results.IN_THE_WAY:
                    raise exception.DeviceBusy(
                        device=each.name, reason=each.reason
                    )

        try:
            waiting.retry(
                act,
                seconds,
                self.say,
                lambda: waiting.release_ended(self.say),
            )
        except exception.DeviceBusy:
            if not done.steps:
                raise
        return done


def _become_owner() -> None:
    """Go on as the user of the journal's directory, if root may not write it.

    Only root may write what is offered.
    """
    path = opts.value(os_acc.CONF, 'state_path')
    if sharing.belongs_to_another(path):
        spec_changing.keep_root(offered.path_of(os_acc.CONF))
        sharing.become_owner(path)


def _difference(report: objects.ApplyReport) -> Iterable[str]:
    for each in report.steps:
        if each.result == results.UNCHANGED:
            continue
        yield f'{each.part} {each.name}'
        before, after = each.before.splitlines(), each.after.splitlines()
        yield from (f'- {line}' for line in before if line not in after)
        yield from (f'+ {line}' for line in after if line not in before)


class Export(base.Command):
    """Print the present state of this host's devices as a document.

    os-acc apply can read it. The command changes nothing.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.print_json(export.export(base.look()))
