# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The base of the sub-commands: one-line errors, exit codes, the Host."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cliff import columns
from cliff import command
from oslo_config import cfg

import os_acc
from os_acc import exception
from os_acc import host
from os_acc import journal as journal_module
from os_acc import loader
from os_acc import objects

FAILED = 1
WRONG_INPUT = 2
UNFINISHED = 3

#: Shown as the state of a VAN whose row in the journal cannot be read.
#: The owner of the VANs that the command plugs.
OWNER = 'os-acc'

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
    'Live migratable',
    'Error',
)


class Command(command.Command):
    """A command that turns an error into one line and an exit code.

    :ivar unfinished: True: the command has done its work, but something is
        left undone; the exit code is then UNFINISHED
    """

    unfinished = False

    def get_epilog(self) -> str:
        """Add nothing to the help.

        cliff's get_epilog() reads the metadata of every installed package, to
        name the package of the command. That takes longer than a short
        command.
        """
        return ''

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            result: int = super().run(parsed_args)
            return UNFINISHED if self.unfinished and not result else result
        except (exception.ExceptionBase, cfg.Error) as err:
            if self.app.options.debug:
                self.app.LOG.exception('')
            text = ' '.join(str(err).split())
            self.app.LOG.error('%s: %s', type(err).__name__, text)
            wrong = isinstance(err, _WRONG_INPUT)
            return WRONG_INPUT if wrong else FAILED


def look(extensions: loader.Extensions | None = None) -> host.Host:
    """Make a Host that changes nothing: read_only is True.

    :param extensions: the drivers and plugins; None: load all of them
    """
    if extensions is None:
        extensions = loader.load_all()
    return host.Host(os_acc.CONF, extensions, read_only=True)


def tell_if_empty(journal: journal_module.Journal) -> None:
    """Say on standard error if there is no journal yet."""
    if not journal.exists():
        print(
            f'There is no journal {journal.path} yet: nothing was plugged',
            file=sys.stderr,
        )


def read(path: str) -> str:
    """Read a file of text, or standard input if the path is -.

    :raises OSError, ValueError: if it cannot be read, or is not UTF-8
    """
    if path == '-':
        return sys.stdin.read()
    with open(path, encoding='utf-8') as file:
        return file.read()


class Nullable(columns.FormattableColumn[Any]):
    """A value that may be missing.

    A missing value is an empty cell in a table, and null in JSON. In a table,
    each item of a list is on a line of its own.
    """

    def human_readable(self) -> str:
        if isinstance(self._value, list):
            return '\n'.join(map(str, self._value))
        return '' if self._value is None else str(self._value)


def van_row(van: objects.VAN) -> tuple[Any, ...]:
    """Return the values of VAN_COLUMNS."""
    handle = van.handle.identity if van.handle is not None else None
    return (
        van.uuid,
        van.instance_uuid,
        van.state,
        van.driver,
        van.plugin,
        Nullable(handle),
        Nullable(van.device),
        Nullable(van.live_migratable),
        Nullable(van.error),
    )
