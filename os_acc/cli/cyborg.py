# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""os-acc cyborg check: compare this host with Cyborg and Placement."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import sys
from typing import Any

from cliff import lister

import os_acc
from os_acc import host
from os_acc.cli import arqs
from os_acc.cli import base
from os_acc.cyborg import api
from os_acc.cyborg import check
from os_acc.cyborg import connections
from os_acc.placement import client

MINIMUM_AGE = 3600.0

COLUMNS = (
    'Problem',
    'VAN',
    'ARQ',
    'Instance',
    'Device',
    'Details',
    'To do',
    'Result',
)


class CyborgCheck(base.Command, lister.Lister):
    """List what differs between this host, Cyborg and Placement.

    The exit code is 3 if something differs, and 0 if nothing does or if
    everything was fixed.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        arqs.add_cloud(parser)
        parser.add_argument(
            '--fix',
            action='store_true',
            help='release the VANs whose ARQ and instance are gone',
        )
        parser.add_argument(
            '--minimum-age',
            metavar='SECONDS',
            type=arqs.seconds,
            default=MINIMUM_AGE,
            help='with --fix: leave instances with a VAN that was changed '
            f'within this time (default: {MINIMUM_AGE:g})',
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        cloud = parsed_args.os_cloud
        cyborg = api.API(connections.by_cloud(connections.ACCELERATOR, cloud))
        placement = client.Client(
            connections.by_cloud(connections.PLACEMENT, cloud)
        )
        if parsed_args.fix:
            opened = host.Host.open(os_acc.CONF)
        else:
            opened = base.look()
        try:
            result = check.examine(opened, cyborg, placement)
            if parsed_args.fix:
                check.fix(opened, result, parsed_args.minimum_age)
        finally:
            opened.close()
        for note in result.notes:
            print(note, file=sys.stderr)
        self.unfinished = not all(each.fixed for each in result.differences)
        return COLUMNS, [
            (
                each.problem,
                base.Nullable(each.van),
                base.Nullable(each.arq),
                base.Nullable(each.instance),
                base.Nullable(each.device),
                each.details,
                each.advice,
                base.Nullable(each.result),
            )
            for each in result.differences
        ]
