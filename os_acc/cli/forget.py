# SPDX-License-Identifier: Apache-2.0

"""os-acc van forget: delete a VAN that cannot be released on this host."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from typing import NamedTuple

from os_acc import exception
from os_acc import host
from os_acc import log
from os_acc import objects
from os_acc.cli import base
from os_acc.cli import errors
from os_acc.cli import exit_codes
from os_acc.cli import names
from os_acc.journal import events

LOG = logging.getLogger(__name__)


class _Lost(NamedTuple):
    """A VAN that cannot be released, and why."""

    van: str
    instance: str
    driver: str | None
    handle: str | None
    device: str | None
    reason: str


class VANForget(base.Command):
    """Delete from the journal a VAN that cannot be released.

    A VAN cannot be released if its driver or plugin is missing, or if its row
    in the journal is unreadable. The command touches no device. Use it only
    if the missing package cannot be installed again. It refuses a VAN that can
    be released: use os-acc unplug for that.
    """

    announces = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('van', metavar='VAN', help=names.VAN_HELP)
        parser.add_argument(
            '--yes',
            action='store_true',
            help='do not ask; required if standard input is not a terminal',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        with base.reading() as read:
            wanted = names.van(
                names.vans(read), parsed_args.van, 'van forget: VAN'
            )
        with contextlib.closing(base.open_existing()) as opened:
            lost = _find(opened, wanted)
            self.out(_left_undone(lost))
            if not (parsed_args.yes or self._confirmed()):
                self.app.stdout.write('not forgotten\n')
                return exit_codes.FAILED
            with opened.locks.instance(lost.instance):
                if _find(opened, wanted) != lost:
                    raise exception.InvalidRequest(
                        f'VAN {wanted} was changed meanwhile: try again'
                    )
                opened.journal.forget(wanted, [_forgotten(lost)])
                log.about(LOG, lost.instance, lost.van).warning(
                    'deleted from the journal: handle %s on device %s was not '
                    'released (%s)',
                    lost.handle,
                    lost.device,
                    lost.reason,
                )
        self.app.stdout.write('forgotten\n')
        return 0

    def _confirmed(self) -> bool:
        if not sys.stdin.isatty():
            raise exception.InvalidRequest(
                'van forget: standard input is not a terminal, so the command '
                'cannot ask; give --yes to forget the VAN'
            )
        self.app.stdout.write('Forget it? [y/N] ')
        self.app.stdout.flush()
        return sys.stdin.readline().strip().lower() in ('y', 'yes')


def _find(opened: host.Host, van: str) -> _Lost:
    """Find a VAN that cannot be released.

    :raises NotFound: if there is no such VAN
    :raises InvalidRequest: if it can be released
    """
    for row in opened.journal.unreadable():
        if row.van_uuid == van:
            return _Lost(
                van,
                row.instance_uuid,
                None,
                row.handle,
                row.device,
                f'its row in the journal is unreadable: {row.reason}',
            )
    for entry in opened.journal.entries():
        if entry.van.uuid == van:
            return _without_extension(opened, entry.van)
    raise errors.NotFound(
        subject='van forget',
        field='VAN',
        value=van,
        expected='the UUID of a VAN in the journal (see van list)',
    )


def _without_extension(opened: host.Host, van: objects.VAN) -> _Lost:
    try:
        opened.extensions.driver(van.driver)
        opened.extensions.plugin(van.plugin)
    except exception.NoMatchingDriver as err:
        reason = f'driver {van.driver!r} is missing: {err.kwargs["reason"]}'
    except exception.NoMatchingPlugin as err:
        reason = f'plugin {van.plugin!r} is missing: {err.kwargs["reason"]}'
    else:
        raise exception.InvalidRequest(
            f'VAN {van.uuid} can be read, and its driver {van.driver!r} and '
            f'plugin {van.plugin!r} are loaded; release it: os-acc unplug '
            f'{van.instance_uuid} --van {van.uuid}'
        )
    return _Lost(
        van.uuid,
        van.instance_uuid,
        van.driver,
        van.handle.identity if van.handle is not None else None,
        van.device,
        reason,
    )


def _forgotten(lost: _Lost) -> events.Event:
    return events.Event(
        at=events.now(),
        operation=events.FORGET,
        step=None,
        result=events.DONE,
        van_uuid=lost.van,
        instance_uuid=lost.instance,
        device=lost.device,
        handle=lost.handle,
        extension=lost.driver,
        reason=events.masked(lost.reason),
    )


def _left_undone(lost: _Lost) -> str:
    return f"""\
VAN {lost.van} cannot be released: {lost.reason}
  instance  {lost.instance}
  driver    {lost.driver or 'unknown'}
  handle    {lost.handle or 'none'}
  device    {lost.device or 'unknown'}
This only deletes the VAN from the journal. Nothing is undone: the device may
still be assigned to the guest, bound to VFIO or programmed, or hold the
tenant's data. os-acc may then give it to another instance. Check it by hand.
"""
