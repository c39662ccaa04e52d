# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc doctor: what is wrong on this host, and what to do about it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

from cliff import lister

import os_acc
from os_acc import doctor
from os_acc import finding
from os_acc import loader
from os_acc.cli import base
from os_acc.doctor import configuration


class Doctor(base.Command, lister.Lister):
    """Find what is wrong on this host; exit code 1 if there is an error.

    The command changes nothing.
    """

    sick = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--problems',
            action='store_true',
            help='show only warnings and errors',
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        extensions = loader.load_all()
        found = list(configuration.findings(os_acc.CONF, extensions))
        if not found:
            found = list(doctor.findings(base.look(extensions)))
        self.sick = any(each.verdict == finding.ERROR for each in found)
        return ('Subject', 'Verdict', 'Finding', 'What to do'), [
            dataclasses.astuple(each)
            for each in found
            if not (parsed_args.problems and each.verdict == finding.OK)
        ]

    def run(self, parsed_args: argparse.Namespace) -> int:
        return super().run(parsed_args) or (base.FAILED if self.sick else 0)
