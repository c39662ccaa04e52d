# SPDX-License-Identifier: Apache-2.0

"""The base of the sub-commands: one-line errors, exit codes, the Host."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
import json
import os
import re
import sys
from typing import Any
from typing import ClassVar

from cliff import columns
from cliff import command

import os_acc
from os_acc import exception
from os_acc import host
from os_acc import journal as journal_module
from os_acc import loader
from os_acc import log
from os_acc import objects
from os_acc import opts
from os_acc import progress
from os_acc.cli import app as app_module
from os_acc.cli import exit_codes
from os_acc.cli import listing
from os_acc.cli import progress as bars
from os_acc.cli import report
from os_acc.cli import tables
from os_acc.cli import usage
from os_acc.operations import configuration
from os_acc.state import instance_names
from os_acc.texts import documents

#: The owner of the VANs that the command plugs.
OWNER = 'os-acc'

#: Shown as the state of a VAN whose row in the journal cannot be read.
UNREADABLE = 'unreadable'

VAN_COLUMNS = (
    listing.Column('uuid', 'VAN'),
    listing.Column('instance_uuid'),
    listing.Column('state'),
    listing.Column('driver', long=True),
    listing.Column('plugin', long=True),
    listing.Column('handle', long=True),
    listing.Column('device'),
    listing.Column('live_migratable', long=True),
    listing.Column('error', rare=True, brief=True),
)


class Command(command.Command):
    """A command that turns an error into one line and an exit code.

    :ivar unfinished: True: the command has done its work, but something is
        left undone; the exit code is then DIFFERS
    :cvar creates: whether it may create the journal. Then the directory that
        --state-path names must exist, because it may be mistyped
    :cvar configured: whether it looks for devices, so that the whole
        configuration must be in order. Other commands work without it
    :cvar announces: whether it says on a terminal that it still works, when it
        takes long; False for a command that uses the terminal for something
        else
    :ivar notice: what says so
    """

    app: app_module.OSAccApp
    unfinished = False
    creates: ClassVar[bool] = False
    configured: ClassVar[bool] = False
    announces: ClassVar[bool] = True
    notice: bars.Notice

    def get_epilog(self) -> str:
        """Add nothing to the help.

        cliff's get_epilog() reads the metadata of every installed package, to
        name the package of the command. That takes longer than a short
        command.
        """
        return ''

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        usage.one_line(parser)
        usage.without_colors(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        with self.patience():
            try:
                self.check_configuration()
                result: int = super().run(parsed_args)
            except BrokenPipeError:
                raise
            except Exception as err:
                return self.tell(err)
        if self.unfinished and not result:
            return exit_codes.DIFFERS
        return result

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """Say on a terminal that the command still works, if it does."""
        self.notice = bars.Notice(self.app.stderr, self.cmd_name or '')
        self._bar = bars.Bar(self.app.stderr)
        with self.notice if self.announces else contextlib.nullcontext():
            yield

    def check_configuration(self) -> None:
        """Check that the configuration could be read."""
        if self.app.configuration_error is not None:
            raise self.app.configuration_error
        if self.configured:
            configuration.check(os_acc.CONF, loader.load_all())
        path = self.app.options.state_path
        if self.creates and path is not None and not os.path.isdir(path):
            raise exception.InvalidRequest(
                subject='os-acc',
                field='--state-path',
                value=path,
                expected='a directory that exists; os-acc creates only that '
                'of the option state_path',
            )

    def print_json(self, answer: dict[str, Any]) -> None:
        """Print an answer for scripts on standard output."""
        self.app.stdout.write(json.dumps(answer, indent=2) + '\n')
        self.app.stdout.flush()

    def say(self, text: str) -> None:
        """Print a text on standard error, as wide as the terminal."""
        note(text)

    def show_progress(self, event: progress.Progress) -> None:
        """Draw a bar for a step, or say what is done if it takes long."""
        self.notice(event)
        self._bar(event)

    def out(self, text: str) -> None:
        """Print lines on standard output, as wide as the terminal."""
        lines = tables.fitted(text, self.app.stdout)
        self.app.stdout.write('\n'.join(lines) + '\n')
        self.app.stdout.flush()

    def tell(self, err: Exception) -> int:
        """Print an error in one line.

        :returns: the exit code
        """
        if self.app.options.debug:
            log.error(self.app.LOG, err, '')
        text = exception.described(err)
        text = f'{type(err).__name__}: {" ".join(text.split())}'
        lines = tables.fitted(text, self.app.stderr)
        self.app.LOG.error('%s', '\n'.join(lines))
        return exit_codes.of(err)

    def initialize(self) -> objects.RecoveryReport | None:
        """Initialize os_acc, and say what its recovery did.

        :returns: what the recovery did; None: it was done before
        """
        done = os_acc.initialize(owner=OWNER)
        if done is not None:
            for line in report.lines(done):
                self.say(f'Recovery before this command: {line}')
        return done


def instance_info(called: str, **fields: Any) -> objects.InstanceInfo:
    """Make an InstanceInfo from what the operator calls the instance.

    :param called: a UUID, or any name
    :param fields: its other fields; without a name in them, it is the name
        that the operator has given
    """
    fields.setdefault('name', called)
    return objects.InstanceInfo(
        uuid=instance_names.instance_uuid(called), **fields
    )


def look(extensions: loader.Extensions | None = None) -> host.Host:
    """Make a Host that changes nothing: read_only is True.

    :param extensions: the drivers and plugins; None: load all of them
    """
    return host.Host(
        os_acc.CONF, extensions or loader.load_all(), read_only=True
    )


def open_existing() -> host.Host:
    """Make the Host of a journal that exists.

    It is for a command that has nothing to do without a journal. Such a
    command must not make one where a mistyped state path points to.
    """
    with reading() as journal:
        if is_missing(journal):
            raise exception.JournalMissing(
                path=journal.path,
                reason='it does not exist, so there is nothing to do; if the '
                'path is wrong, correct --state-path or [os_acc] state_path',
            )
    return host.Host.open(os_acc.CONF)


@contextlib.contextmanager
def reading() -> Iterator[journal_module.Journal]:
    """Open the journal to read it, without drivers.

    Rows whose handle class is of a driver's package are unreadable then.
    """
    path = opts.value(os_acc.CONF, 'state_path')
    timeout = os_acc.CONF.os_acc.journal_timeout
    with contextlib.closing(
        journal_module.Journal(path, timeout, read_only=True)
    ) as journal:
        yield journal


def is_missing(journal: journal_module.Journal) -> bool:
    """Whether there is no journal.

    :raises JournalError: if it was set aside, because it was damaged
    """
    return not journal.exists() and not journal.vans()


def devices(opened: host.Host) -> list[objects.Device]:
    """List the devices. Those of a driver that fails are missing."""
    # Only here, because most commands list no devices.
    from os_acc.operations import discovery

    try:
        return discovery.devices(opened)
    except exception.DiscoveryFailed as err:
        return err.devices


def tell_if_empty(journal: journal_module.Journal) -> None:
    """Say on standard error if there is no journal yet.

    Call it after the journal was read.
    """
    if not journal.exists():
        note(f'There is no journal {journal.path} yet: nothing was plugged')


def note(text: str) -> None:
    """Print a text on standard error, as wide as the terminal."""
    for line in tables.fitted(text, sys.stderr):
        print(line, file=sys.stderr, flush=True)


def read(path: str) -> str:
    """Read a file of text, or standard input if the path is -."""
    if path == '-':
        # Not by the locale, which may be another encoding than UTF-8.
        return documents.text_of(sys.stdin.buffer.read())
    with open(path, 'rb') as file:
        return documents.text_of(file.read())


class _Error(columns.FormattableColumn[str]):
    """The error of a VAN, which a table shows without the VAN's UUID."""

    def human_readable(self) -> str:
        return re.sub(r'^VAN [0-9a-f-]{36}: ', '', str(self._value))


def error_cell(text: str | None) -> _Error | None:
    """Return the cell for the error of a VAN that the same row names."""
    return None if text is None else _Error(text)


class _Instance(columns.FormattableColumn[str]):
    """The UUID of an instance; a table shows its name in texts."""

    def __init__(self, uuid: str, called: str) -> None:
        super().__init__(uuid)
        self._called = called

    def human_readable(self) -> str:
        return self._called


def van_row(van: objects.VAN, called: str) -> tuple[Any, ...]:
    """Return the values of VAN_COLUMNS.

    :param called: the name of its instance in texts, see journal.Entry
    """
    handle = van.handle.identity if van.handle is not None else None
    return (
        van.uuid,
        _Instance(van.instance_uuid, called),
        van.state,
        van.driver,
        van.plugin,
        handle,
        van.device,
        van.live_migratable,
        error_cell(van.error),
    )
