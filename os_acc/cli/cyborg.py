# SPDX-License-Identifier: Apache-2.0
"""os-acc cyborg check: compare this host with Cyborg and Placement."""

from __future__ import annotations

import argparse
import contextlib

from os_acc import host
from os_acc.cli import arqs
from os_acc.cli import base
from os_acc.cli import listing
from os_acc.cli import waiting
from os_acc.cyborg import api
from os_acc.cyborg import check
from os_acc.cyborg import connections
from os_acc.placement import client

MINIMUM_AGE = 3600.0


class CyborgCheck(base.Command, listing.Listing):
    """List what differs between this host, Cyborg and Placement.

    The exit code is 3 if something differs, and 0 if nothing does or if
    everything was fixed.
    """

    columns = (
        listing.Column('problem'),
        listing.Column('van_uuid', long=True),
        listing.Column('arq_uuid', long=True),
        listing.Column('instance_uuid', long=True),
        listing.Column('device', long=True),
        listing.Column('details'),
        listing.Column('to_do'),
        listing.Column('result', rare=True),
    )
    shorten = ('arq_uuid', 'van_uuid', 'instance_uuid')

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
            type=waiting.seconds,
            default=MINIMUM_AGE,
            help='with --fix: skip instances with a VAN that was changed '
            f'within this time (default: {MINIMUM_AGE:g})',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        # Before anything that takes time: it may be refused.
        with contextlib.closing(
            base.open_existing() if parsed_args.fix else base.look()
        ) as opened:
            result = self._examine(opened, parsed_args)
        for note in result.notes:
            self.say(note)
        self.unfinished = not all(each.fixed for each in result.differences)
        return self.keys(), [
            (
                each.problem,
                each.van,
                each.arq,
                each.instance,
                each.device,
                each.details,
                each.advice,
                each.result,
            )
            for each in result.differences
        ]

    def _examine(
        self, opened: host.Host, parsed_args: argparse.Namespace
    ) -> check.Result:
        cloud = parsed_args.os_cloud
        cyborg = api.API(connections.by_cloud(connections.ACCELERATOR, cloud))
        placement = client.Client(
            connections.by_cloud(connections.PLACEMENT, cloud)
        )
        result = check.examine(opened, cyborg, placement)
        base.tell_if_empty(opened.journal)
        if parsed_args.fix:
            check.fix(opened, result, parsed_args.minimum_age)
        return result
