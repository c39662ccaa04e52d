# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What the sub-commands share: errors in one line, exit codes, access."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from cliff import columns
from cliff import command
from oslo_config import cfg

import os_acc
from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import loader
from os_acc import objects

FAILED = 1
WRONG_INPUT = 2
UNFINISHED = 3

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
    """A command whose errors are one line, and an exit code."""

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
    """For commands that change: only as the user of the state path.

    :raises JournalError: it is another user's. What this one would make
        there, the service could not write
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
    """os_acc.initialize(), if this user may."""
    check_owner()
    os_acc.initialize()


def open_journal() -> journal.Journal | None:
    """The journal for looking only: nothing is made, recovered or moved.

    :returns: it; None, said on standard error, where there is none yet
    """
    conf = os_acc.CONF.os_acc
    opened = journal.Journal(
        conf.state_path, conf.journal_timeout, read_only=True
    )
    try:
        opened.check()
        return opened
    except exception.JournalMissing as err:
        print(f'{err}: nothing was plugged there', file=sys.stderr)
        return None


def host(
    opened: journal.Journal | None, loaded: loader.Extensions | None = None
) -> host_module.Host:
    """The host, for looking only.

    :param opened: what open_journal() returned
    :param loaded: the drivers and plugins, if they are loaded already
    """
    return host_module.Host(os_acc.CONF, loaded or loader.load_all(), opened)


class Nullable(columns.FormattableColumn[Any]):
    """A value that may be missing: nothing in a table, null in JSON.

    A list has a line for each.
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
