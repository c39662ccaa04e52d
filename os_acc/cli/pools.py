# SPDX-License-Identifier: Apache-2.0

"""os-acc pools: the functions that are kept ready."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import os_acc
from os_acc.cli import base
from os_acc.cli import listing
from os_acc.desired import filling
from os_acc.desired import pools
from os_acc.objects import report as results


class Pools(base.Command, listing.Listing):
    """List the pools of the document that os-acc apply has read.

    Wanted is the number of regions that shall hold the function and be free
    now. With --keep, idle regions are first programmed until each pool has the
    wanted number: run it from a timer. Without it, nothing is changed.
    """

    creates = True
    configured = True
    columns = (
        listing.Column('function'),
        listing.Column('resource_class', rare=True),
        listing.Column('traits', rare=True),
        listing.Column('wanted'),
        listing.Column('free'),
        listing.Column('held'),
        listing.Column('max', rare=True),
        listing.Column('state'),
        listing.Column('regions', long=True),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--keep',
            action='store_true',
            help='first program idle regions until each pool has the wanted '
            'number; regions in use are not touched',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        if parsed_args.keep:
            self.initialize()
            done = os_acc.keep_pools(progress=self.show_progress)
            for each in done.steps:
                text = f'{each.name}: {each.after}: {each.result}'
                self.say(text + (f': {each.reason}' if each.reason else ''))
            self.unfinished = results.FAILED in done.results()
        with contextlib.closing(base.look()) as opened:
            found = pools.states(opened)
        return self.keys(), [_row(each) for each in found]


def _row(found: filling.State) -> tuple[Any, ...]:
    return (
        found.pool.function,
        found.pool.resource_class,
        list(found.pool.traits),
        found.wanted,
        found.free,
        len(found.held),
        found.pool.max,
        _state(found),
        [each.name for each in found.held],
    )


def _state(found: filling.State) -> str:
    if not found.is_short:
        return 'ready'
    if found.is_full:
        return 'at its maximum'
    if found.failed:
        return f'short, and failed in {found.failed}'
    return 'short' if found.acts else 'short, and waits'
