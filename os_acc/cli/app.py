# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The os-acc command: main(), and the options of all sub-commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import logging
import os
import sys
from typing import Any
import warnings

from cliff import app
from cliff import commandmanager
from oslo_config import cfg
from stevedore import named

import os_acc

# Loggers that are silent unless --verbose or --debug is given.
QUIET = ('os_acc', 'oslo.privsep', 'oslo_service', 'stevedore')

INTERRUPTED = 130


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


class OSAccApp(app.App):
    """Shows and changes the accelerators of the instances on this host."""

    def __init__(self) -> None:
        super().__init__(
            description=self.__doc__ or '',
            version='0.1.0',
            command_manager=Commands('os_acc.cli'),
            deferred_help=True,
        )

    def build_option_parser(
        self, *args: Any, **kwargs: Any
    ) -> argparse.ArgumentParser:
        # With abbreviations, argparse would take --state of a sub-command for
        # --state-path.
        kwargs['argparse_kwargs'] = {'allow_abbrev': False}
        parser = super().build_option_parser(*args, **kwargs)
        parser.add_argument(
            '--config-file',
            action='append',
            default=[],
            metavar='FILE',
            help='a configuration file of oslo.config, such as '
            '/etc/nova/nova.conf; may be repeated (default: os-acc.conf in '
            'the usual places of oslo.config, such as /etc/os-acc)',
        )
        parser.add_argument(
            '--state-path',
            metavar='FOLDER',
            help='the folder of the journal (default: the option state_path '
            'of the group [os_acc])',
        )
        return parser

    def configure_logging(self) -> None:
        super().configure_logging()
        if self.options.verbose_level <= 1 and not self.options.debug:
            # A command that fails prints its error in one line. The log would
            # repeat the error.
            for name in QUIET:
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def interact(self) -> None:
        """Print the help if no command is given; cliff would open a shell."""
        self.run_subcommand(['help'])
        raise SystemExit(2)

    def initialize_app(self, argv: list[str]) -> None:
        # The command reads the files of services, which register this option.
        os_acc.CONF.register_opt(cfg.StrOpt('host'))
        arguments = []
        for path in self.options.config_file:
            arguments += ['--config-file', path]
        try:
            os_acc.CONF(arguments, project='os-acc')
        except cfg.Error as err:
            self.LOG.error(err)
            raise SystemExit(2) from err
        if self.options.state_path:
            os_acc.CONF.set_override(
                'state_path',
                os.path.abspath(self.options.state_path),
                'os_acc',
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    :param argv: the arguments; None: the arguments of the process
    :returns: the exit code: 0 done; 1 failed; 2 wrong arguments or input;
        3 recover or orphans left something undone, or cyborg check found
        something; 130 interrupted by Ctrl-C
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not sys.warnoptions:
        # An operator can do nothing about deprecated calls in libraries.
        warnings.simplefilter('ignore')
    try:
        return OSAccApp().run(arguments)
    except KeyboardInterrupt:
        # The code is 128 + SIGINT, as in a shell. Ctrl-C came before or after
        # the command itself; cliff handles Ctrl-C inside a command.
        return INTERRUPTED
