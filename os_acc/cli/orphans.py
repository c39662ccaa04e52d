# SPDX-License-Identifier: Apache-2.0
"""os-acc orphans: the VANs of instances that no longer exist."""

from __future__ import annotations

import argparse
import contextlib

from os_acc import exception
from os_acc.cli import base
from os_acc.cli import listing
from os_acc.operations import orphans

MINIMUM_AGE = 3600.0


class Orphans(base.Command, listing.Listing):
    """List or release the VANs of instances that are gone.

    The plugin asks the hypervisor whether the guest of an instance exists.
    But the guest of an existing instance may be missing for a while, such as
    during a hard reboot. So --release also needs the list of the instances.
    """

    columns = (
        listing.Column('uuid', 'VAN'),
        listing.Column('instance_uuid'),
        listing.Column('owner'),
        listing.Column('handle', long=True),
        listing.Column('changed', long=True),
        listing.Column('result'),
        listing.Column('error', rare=True),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--known',
            metavar='FILE',
            help='a file with the UUIDs of all instances of this host, one '
            'per line, such as the output of "openstack server list '
            '--all-projects --host HOST -f value -c ID"; - reads standard '
            'input. These instances have no orphans',
        )
        parser.add_argument(
            '--minimum-age',
            metavar='SECONDS',
            type=float,
            default=MINIMUM_AGE,
            help='skip instances with a VAN that was changed within this '
            f'time (default: {MINIMUM_AGE:g})',
        )
        parser.add_argument(
            '--owner',
            metavar='NAME',
            help='only VANs that this program plugged, such as nova-compute '
            '(see the column Owner)',
        )
        parser.add_argument(
            '--release',
            action='store_true',
            help='release them; needs --known and --owner',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        path, owner = parsed_args.known, parsed_args.owner
        if parsed_args.release and None in (path, owner):
            raise exception.InvalidRequest(
                'orphans: --release needs --known and --owner'
            )
        known = [] if path is None else _read(path)
        age = parsed_args.minimum_age
        if parsed_args.release:
            with contextlib.closing(base.open_existing()) as opened:
                vans = orphans.release(opened, known, age, owner)
            self.unfinished = any(van.error is not None for van in vans)
        else:
            with contextlib.closing(base.look()) as opened:
                base.tell_if_empty(opened.journal)
                vans = orphans.find(opened, known, age, owner)
        good, bad = 'orphan', 'unknown'
        if parsed_args.release:
            good, bad = 'released', 'not released'
        return self.keys(), [
            (
                van.uuid,
                van.instance_uuid,
                van.owner,
                van.handle and van.handle.identity,
                str(van.updated_at),
                good if van.error is None else bad,
                base.error_cell(van.error),
            )
            for van in vans
        ]


def _read(path: str) -> list[str]:
    """Read the UUIDs of the instances.

    :raises InvalidRequest: if the file cannot be read or is empty. A command
        that failed leaves an empty file, and everything would be an orphan
    """
    try:
        text = base.read(path)
    except (OSError, ValueError) as err:
        raise exception.InvalidRequest(
            subject='orphans',
            field='--known',
            value=path,
            expected=f'a readable file with UUIDs ({err})',
        ) from err
    if not text.split():
        raise exception.InvalidRequest(
            subject='orphans',
            field='--known',
            value=path,
            expected='at least one UUID. If this host has no instance at all, '
            'use os-acc unplug for each',
        )
    return text.split()
