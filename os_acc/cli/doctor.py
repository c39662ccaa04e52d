# SPDX-License-Identifier: Apache-2.0

"""os-acc doctor: what is wrong on this host, and what to do about it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

import os_acc
from os_acc import doctor
from os_acc import finding
from os_acc import loader
from os_acc.cli import answers
from os_acc.cli import base
from os_acc.cli import listing
from os_acc.cli import tables
from os_acc.doctor import extensions as doctor_extensions


class Doctor(answers.Command, listing.Listing):
    """Find what is wrong on this host; exit with 1 for an error.

    The command changes nothing. It looks for devices, checks the hardware of
    each VAN, and starts the privsep daemon. As root it also starts it as the
    service's user.
    """

    columns = (
        listing.Column('subject'),
        listing.Column('verdict'),
        listing.Column('finding'),
        listing.Column('what_to_do'),
    )

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
    ) -> int:
        if parsed_args.formatter != 'table' or parsed_args.columns:
            return super().produce_output(parsed_args, column_names, data)
        # Four columns of sentences are too narrow to read.
        stdout = self.app.stdout
        limit = listing.width(stdout, parsed_args)
        verdicts = []
        for subject, verdict, text, advice in data:
            verdicts.append(verdict)
            parts = [tables.text(f'{subject}: {text}')]
            if advice:
                parts.append(tables.text(f'To do: {advice}'))
            stdout.write(
                tables.entry(verdict, parts, limit, tables.has_colours(stdout))
            )
        stdout.write(_summary(verdicts) + '\n')
        return 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--problems',
            action='store_true',
            help='show only warnings and errors',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        return self.keys(), [
            dataclasses.astuple(each) for each in self._findings(parsed_args)
        ]

    def answer(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        found = self._findings(parsed_args)
        keys = self.keys()
        return {
            'healthy': not self.failed,
            'findings': [
                dict(zip(keys, dataclasses.astuple(each), strict=True))
                for each in found
            ],
        }

    def _findings(
        self, parsed_args: argparse.Namespace
    ) -> list[finding.Finding]:
        found = examine(loader.load_all())
        self.failed = any(each.verdict == finding.ERROR for each in found)
        return [
            each
            for each in found
            if not (parsed_args.problems and each.verdict == finding.OK)
        ]


def _summary(verdicts: Sequence[str]) -> str:
    """Count the findings that are shown, such as '1 error, 2 ok'."""
    kinds = ((finding.ERROR, 's'), (finding.WARNING, 's'), (finding.OK, ''))
    counts = ((verdicts.count(kind), kind, end) for kind, end in kinds)
    return (
        ', '.join(
            f'{number} {kind}{end if number > 1 else ""}'
            for number, kind, end in counts
            if number
        )
        or 'nothing was found'
    )


def examine(extensions: loader.Extensions) -> list[finding.Finding]:
    """Check the whole host; if the configuration is wrong, only that."""
    return list(doctor_extensions.invalid(os_acc.CONF, extensions)) or list(
        doctor.findings(base.look(extensions))
    )
