# SPDX-License-Identifier: Apache-2.0

"""os-acc demand: what was requested and not found."""

from __future__ import annotations

import argparse
import contextlib

from os_acc.cli import base
from os_acc.cli import listing


class Demand(base.Command, listing.Listing):
    """List the requests that found no device, the newest first.

    Requests for the same resource class, traits and function are one line.
    Times are in UTC. The journal keeps the newest 500 lines. The command
    changes nothing.
    """

    columns = (
        listing.Column('resource_class'),
        listing.Column('traits', rare=True),
        listing.Column('function_id', 'Function'),
        listing.Column('count'),
        listing.Column('first_at', 'First', long=True),
        listing.Column('last_at', 'Last'),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        with contextlib.closing(base.look()) as opened:
            found = opened.journal.demand()
        return self.keys(), [
            (
                each.resource_class,
                list(each.traits),
                each.function_id,
                each.count,
                each.first_at,
                each.last_at,
            )
            for each in reversed(found)
        ]
