# SPDX-License-Identifier: Apache-2.0

"""The os-acc command: main(), and the options of all sub-commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import difflib
import itertools
import logging
import os
import sys
import time
from typing import Any
import warnings

from cliff import app
from cliff import command
from cliff import commandmanager
from oslo_config import cfg
from stevedore import named

import os_acc
from os_acc import exception
from os_acc.cli import errors
from os_acc.cli import exit_codes
from os_acc.cli import logs
from os_acc.cli import usage
from os_acc.options import nova as nova_options

LOG = logging.getLogger(__name__)


class Commands(commandmanager.CommandManager):
    """Finds the sub-commands by their entry points.

    cliff's CommandManager imports every command at the start. This one
    imports only the command that is run. Importing all of them would take
    most of the time of a short command.
    """

    def load_commands(self, namespace: str) -> None:
        self.group_list.append(namespace)
        found = named.NamedExtensionManager[Any](namespace, names=[])
        for point in found.list_entry_points():
            self.commands[point.name.replace('_', ' ')] = point

    def find_command(
        self, argv: list[str]
    ) -> tuple[type[command.Command], str, list[str]]:
        """Import the command that is run."""
        with _no_green_dns():
            return super().find_command(argv)

    def add_command(self, name: str, command_class: Any) -> None:
        """Add a command of cliff, unless os-acc has its own of that name."""
        if name not in self.commands:
            super().add_command(name, command_class)


@contextlib.contextmanager
def _no_green_dns() -> Iterator[None]:
    """Let what is imported meanwhile do without eventlet's DNS resolver.

    oslo.versionedobjects imports oslo.messaging, and so eventlet. Its resolver
    would be a quarter of all modules that a command imports, and no command
    uses it. The environment is as before afterwards, for other programs.
    """
    name = 'EVENTLET_NO_GREENDNS'
    if name in os.environ:
        yield
        return
    os.environ[name] = 'yes'
    try:
        yield
    finally:
        del os.environ[name]


class OSAccApp(app.App):
    """Shows and changes the accelerators of the instances on this host."""

    # The help shows this name. By default, cliff shows sys.argv[0], which is
    # "-c" or "__main__.py" if Python starts the program.
    NAME = 'os-acc'

    def __init__(self) -> None:
        super().__init__(
            description=self.__doc__ or '',
            version='0.1.0',
            command_manager=Commands('os_acc.cli'),
            deferred_help=True,
        )

        #: The arguments of the sub-command, up to --.
        self.arguments: list[str] = []
        #: What follows --, for the sub-command run.
        self.command_line: list[str] = []
        #: Why the configuration cannot be read. The sub-command reports it, in
        #: its own format.
        self.configuration_error: Exception | None = None

    def run(self, argv: list[str]) -> int:
        before = list(itertools.takewhile(lambda word: word != '--', argv))
        if 'run' in before:
            argv, self.command_line = before, argv[len(before) + 1 :]
        return super().run(argv)

    def run_subcommand(self, argv: list[str]) -> int:
        self.arguments = argv
        if argv[0] == 'help':
            argv = [each for each in argv[1:] if each[:1] != '-'] or argv
        try:
            self.command_manager.find_command(argv)
        except ValueError:
            begun = ' '.join(argv) + ' '
            if self.arguments[0] != 'help' or not any(
                name.startswith(begun)
                for name in self.command_manager.commands
            ):
                self.stderr.write(usage.line(self.NAME, self._unknown(argv)))
                return exit_codes.WRONG_USAGE
        return super().run_subcommand(self.arguments)

    def _unknown(self, argv: list[str]) -> str:
        """Say that there is no such command, and name similar ones."""
        words = list(itertools.takewhile(lambda a: a[:1] != '-', argv))
        if not words:
            return f'{argv[0]!r} is not an option'
        called = ' '.join(words[:2])
        known = sorted(self.command_manager.commands)
        near = [name for name in known if words[0] in name.split()]
        near = near or list(usage.WORDS.get(words[0].lower(), ()))
        near = near or difflib.get_close_matches(called, known)
        text = f'{called!r} is not a command'
        return f'{text}; there is {", ".join(near)}' if near else text

    def build_option_parser(
        self, *args: Any, **kwargs: Any
    ) -> argparse.ArgumentParser:
        # With abbreviations, argparse would take --state of a sub-command for
        # --state-path.
        kwargs['argparse_kwargs'] = {'allow_abbrev': False}
        parser = super().build_option_parser(*args, **kwargs)
        usage.one_line(parser)
        usage.without_colors(parser)
        parser.add_argument(
            '--config-file',
            action='append',
            default=[],
            metavar='FILE',
            help='an oslo.config configuration file, such as '
            '/etc/nova/nova.conf; may be repeated (default: os-acc.conf in '
            'the usual places of oslo.config, such as /etc/os-acc)',
        )
        parser.add_argument(
            '--config-dir',
            action='append',
            default=[],
            metavar='DIR',
            help='a directory of configuration files, whose names end in '
            '.conf; they are read in the order of their names, after '
            '--config-file; may be repeated',
        )
        parser.add_argument(
            '--state-path',
            metavar='DIR',
            help='the directory of the journal (default: the option '
            'state_path of the group [os_acc])',
        )
        return parser

    def configure_logging(self) -> None:
        try:
            logs.configure(
                self.stderr,
                self.options.verbose_level,
                self.options.debug,
                self.options.log_file,
            )
        except OSError as err:
            self.configuration_error = exception.InvalidRequest(
                subject='os-acc',
                field='--log-file',
                value=self.options.log_file,
                expected=f'a file that can be written ({err.strerror})',
            )

    def prepare_to_run_command(self, cmd: command.Command) -> None:
        """Log which command is run, by whom; not its arguments.

        A bitstream among the arguments may be a URL with a password.
        """
        self._started = time.monotonic()
        LOG.info('Command %s of user id %d begins', cmd.cmd_name, os.geteuid())

    def clean_up(
        self, cmd: command.Command, result: int, err: BaseException | None
    ) -> None:
        LOG.info(
            'Command %s ended with exit code %d after %.3f s',
            cmd.cmd_name,
            result,
            time.monotonic() - self._started,
        )

    def print_help_if_requested(self) -> None:
        """Print the help for --help without a command, and end."""
        if self.options.deferred_help:
            # Only here, because it is slow to import.
            from os_acc.cli import help as help_module

            help_module.show(self)
            raise SystemExit(exit_codes.DONE)

    def interact(self) -> None:
        """Print the help if no command is given; cliff would open a shell."""
        self.run_subcommand(['help'])
        raise SystemExit(2)

    def initialize_app(self, argv: list[str]) -> None:
        # The command reads the file of Nova, which registers these options.
        nova_options.register(os_acc.CONF)
        arguments = []
        for path in self.options.config_file:
            arguments += ['--config-file', path]
        for path in self.options.config_dir:
            arguments += ['--config-dir', path]
        try:
            os_acc.CONF(arguments, project='os-acc')
            nova_options.set_defaults(os_acc.CONF)
        except cfg.ConfigFileParseError as err:
            self.configuration_error = errors.ConfigFileUnreadable(
                f'{exception.described(err)}. Write [group], option = value, '
                'or # before a comment'
            )
        except cfg.Error as err:
            self.configuration_error = err
        except UnicodeDecodeError as err:
            self.configuration_error = _not_text(self.options.config_file, err)
        if self.options.state_path:
            os_acc.CONF.set_override(
                'state_path',
                os.path.abspath(self.options.state_path),
                'os_acc',
            )


def _not_text(
    paths: list[str], err: UnicodeDecodeError
) -> exception.InvalidRequest:
    """Make the error for a configuration file that is not UTF-8.

    :param paths: the files of --config-file; none: those of oslo.config
    """
    for path in paths or cfg.find_config_files(project='os-acc'):
        with contextlib.suppress(OSError):
            with open(path, 'rb') as file:
                for number, line in enumerate(file, 1):
                    try:
                        line.decode()
                    except UnicodeDecodeError as found:
                        return exception.InvalidRequest(
                            f'configuration file {path}: line {number} is '
                            f'not UTF-8 (byte 0x{line[found.start]:02x} at '
                            f'position {found.start + 1} of the line)'
                        )
    return exception.InvalidRequest(
        f'a configuration file is not UTF-8: {err}'
    )


def _open_missing_streams() -> None:
    """Give this process all three standard streams.

    A caller may have closed some, as with 2>&-. The next file that is opened
    would become that stream, and Python sets the stream to None. What cannot
    be encoded, as with LC_ALL=C, is escaped and not an error.
    """
    for number, name in enumerate(('stdin', 'stdout', 'stderr')):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            # It stays open until the process ends, as the other streams do.
            setattr(sys, name, open(number, 'w' if number else 'r'))  # noqa: SIM115
        elif number and hasattr(getattr(sys, name), 'reconfigure'):
            getattr(sys, name).reconfigure(errors='backslashreplace')


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    if argv is None:
        _open_missing_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not sys.warnoptions:
        # An operator can do nothing about deprecated calls in libraries.
        warnings.simplefilter('ignore')
    try:
        return OSAccApp().run(arguments)
    except KeyboardInterrupt:
        # The code is 128 + SIGINT, as in a shell. Ctrl-C came before or after
        # the command itself; cliff handles Ctrl-C inside a command.
        return exit_codes.INTERRUPTED
