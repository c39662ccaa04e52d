# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The os-acc command: options that all sub-commands share, and main()."""

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

import os_acc

INTERRUPTED = 130


class OSAccApp(app.App):
    """Shows and changes the accelerators of this host's instances."""

    def __init__(self) -> None:
        super().__init__(
            description=self.__doc__ or '',
            version='0.1.0',
            command_manager=commandmanager.CommandManager('os_acc.cli'),
            deferred_help=True,
        )

    def build_option_parser(
        self, *args: Any, **kwargs: Any
    ) -> argparse.ArgumentParser:
        # Else --state of a sub-command would be taken for --state-path.
        kwargs['argparse_kwargs'] = {'allow_abbrev': False}
        parser = super().build_option_parser(*args, **kwargs)
        parser.add_argument(
            '--config-file',
            action='append',
            default=[],
            metavar='FILE',
            help='oslo.config file, such as /etc/nova/nova.conf; may be '
            'repeated (default: os-acc.conf in the usual places)',
        )
        parser.add_argument(
            '--state-path',
            metavar='FOLDER',
            help='folder of the journal (default: [os_acc] state_path)',
        )
        return parser

    def configure_logging(self) -> None:
        super().configure_logging()
        if self.options.verbose_level <= 1 and not self.options.debug:
            # The error that a command ends with says it all, in one line.
            for name in ('os_acc', 'oslo.privsep', 'stevedore'):
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def interact(self) -> None:
        """No command given: cliff would open a shell of its own."""
        self.run_subcommand(['help'])
        raise SystemExit(2)

    def initialize_app(self, argv: list[str]) -> None:
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

    :param argv: its arguments; None: those of the process
    :returns: 0 done; 1 failed; 2 wrong arguments or input; 3 recover left
        something undone; 130 interrupted
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not sys.warnoptions:
        # What a library deprecates is not for the operator's screen.
        warnings.simplefilter('ignore')
    try:
        return OSAccApp().run(arguments)
    except KeyboardInterrupt:
        # As a shell has it. What a command does itself, cliff sees to.
        return INTERRUPTED
