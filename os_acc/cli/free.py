# SPDX-License-Identifier: Apache-2.0

"""os-acc device free: give out a reserved or unhealthy device again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import contextlib
import logging

from os_acc import exception
from os_acc import health
from os_acc.cli import base
from os_acc.cli import names
from os_acc.journal import events

LOG = logging.getLogger(__name__)


class DeviceFree(base.Command):
    """Return a reserved or unhealthy device to service.

    A device is reserved after its one-time use, and unhealthy after it has
    failed. Check an unhealthy device first: os-acc does not test it. The
    command does not free a device that waits for a cold reboot of the host.

    A function that stays bound to VFIO between two instances (between_tenants
    = vfio) is bound to its previous host driver again. A drive that no VAN
    has, and that may still hold an instance's data, is erased first. The
    command refuses a device that an instance has.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'address',
            metavar='ADDRESS',
            help='the address of the device or PCI function, as device list '
            'and doctor show it',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        address = names.device(parsed_args.address)
        with contextlib.closing(base.open_existing()) as opened:
            done = []
            with opened.acting_for():
                for _, driver in sorted(opened.extensions.drivers.items()):
                    done += driver.free_device(address)
            if opened.journal.free(address):
                done.append('it is not reserved any more')
            try:
                done += health.free(opened.journal, address)
            finally:
                # Also if the device stays unhealthy until a reboot.
                if done:
                    opened.journal.note([_freed(address, done)])
                for each in done:
                    LOG.info('Device %s: %s', address, each)
                    self.out(f'{address}: {each}')
        if not done:
            raise exception.InvalidRequest(
                subject='device free',
                field='ADDRESS',
                value=parsed_args.address,
                expected='a device that is reserved or unhealthy, that '
                'os-acc keeps bound to VFIO, or that may hold the data of an '
                'instance',
            )


def _freed(address: str, done: Sequence[str]) -> events.Event:
    return events.Event(
        at=events.now(),
        operation=events.FREE,
        step=None,
        result=events.DONE,
        device=address,
        reason=events.masked('; '.join(done)),
    )
