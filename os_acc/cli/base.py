# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What the sub-commands share: one-line errors, exit codes, the host."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any

from cliff import columns
from cliff import command
from oslo_config import cfg

import os_acc
from os_acc import exception
from os_acc import host
from os_acc import journal
from os_acc import loader
from os_acc import objects

FAILED = 1
WRONG_INPUT = 2
UNFINISHED = 3

#: In place of a VAN's state: this os-acc cannot read the VAN's row.
UNREADABLE = 'unreadable'

_WRONG_INPUT = (
    cfg.Error,
    exception.InvalidRequest,
    exception.NoMatchingDriver,
    exception.AmbiguousDriver,
    exception.NoMatchingPlugin,
    exception.UnsupportedHandle,
    exception.LiveNotSupported,
)

VAN_COLUMNS = (
    'VAN',
    'Instance',
    'State',
    'Driver',
    'Plugin',
    'Handle',
    'Device',
    'Error',
)


class Command(command.Command):
    """A command that turns an error into one line and an exit code."""

    def get_epilog(self) -> str:
        """Add nothing to the help.

        cliff's own reads the metadata of every installed package, to name the
        package of the command. That takes longer than a short command.
        """
        return ''

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            result: int = super().run(parsed_args)
            return result
        except (exception.ExceptionBase, cfg.Error) as err:
            if self.app.options.debug:
                self.app.LOG.exception('')
            text = ' '.join(str(err).split())
            self.app.LOG.error('%s: %s', type(err).__name__, text)
            wrong = isinstance(err, _WRONG_INPUT)
            return WRONG_INPUT if wrong else FAILED


def check_owner() -> None:
    """Refuse a command that changes something if the journal is another's.

    A file that another user makes in the state path could not be written by
    the service.

    :raises JournalError: if the state path belongs to another user
    """
    path = os_acc.CONF.os_acc.state_path
    if not os.path.exists(path):
        return
    owner = os.stat(path).st_uid
    if owner != os.geteuid():
        raise exception.JournalError(
            path=path,
            reason=f'it belongs to user id {owner}; run the command as that '
            f'user: sudo -u "#{owner}" os-acc ...',
        )


def initialize() -> None:
    """Check the owner of the state path, then call os_acc.initialize()."""
    check_owner()
    os_acc.initialize()


def look(
    extensions: loader.Extensions | None = None, with_journal: bool = True
) -> host.Host:
    """Open the host for looking: nothing is created, recovered or moved.

    :param extensions: the drivers and plugins; None: load them all
    :param with_journal: False: do not open the journal
    :returns: the host; journal_of() gives its journal
    :raises JournalError: if there is a journal that cannot be opened
    """
    conf = os_acc.CONF
    if extensions is None:
        extensions = loader.load_all()
    opened: journal.Journal | None = None
    if with_journal:
        with contextlib.suppress(exception.JournalMissing):
            opened = journal.Journal(
                conf.os_acc.state_path,
                conf.os_acc.journal_timeout,
                create=False,
            )
    return host.Host(conf, extensions, opened)


def journal_of(looked: host.Host) -> journal.Journal | None:
    """The journal of a host from look().

    :returns: None if there is none yet; standard error then says so
    """
    try:
        return looked.journal
    except exception.JournalMissing as err:
        print(f'{err}: nothing was plugged there', file=sys.stderr)
        return None


class Nullable(columns.FormattableColumn[Any]):
    """A value that may be missing.

    In a table a missing value is an empty cell, in JSON it is null. A list
    has one line for each item in a table.
    """

    def human_readable(self) -> str:
        if isinstance(self._value, list):
            return '\n'.join(map(str, self._value))
        return '' if self._value is None else str(self._value)


def van_row(van: objects.VAN) -> tuple[Any, ...]:
    """The values of VAN_COLUMNS."""
    handle = van.handle.identity if van.handle is not None else None
    return (
        van.uuid,
        van.instance_uuid,
        van.state,
        van.driver,
        van.plugin,
        Nullable(handle),
        Nullable(van.device),
        Nullable(van.error),
    )
