# SPDX-License-Identifier: Apache-2.0
"""--watch: print a list again and again."""

from __future__ import annotations

import argparse
import copy
import time

from os_acc.cli import base
from os_acc.cli import waiting

#: Seconds that --watch stands for without a number.
DEFAULT = 2.0

# Moves the cursor to the top left, and clears the screen.
_CLEAR = '\033[H\033[2J'


class Command(base.Command):
    """A command with the option --watch, which only looks."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--watch',
            metavar='SECONDS',
            nargs='?',
            type=waiting.seconds,
            const=DEFAULT,
            help='print it again and again, with this pause, until Ctrl-C '
            f'(default: {DEFAULT:g} seconds)',
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        if parsed_args.watch is None:
            return super().run(parsed_args)
        out = self.app.stdout
        code = 0
        try:
            while True:
                if out.isatty():
                    out.write(
                        f'{_CLEAR}Every {parsed_args.watch:g} s: '
                        f'{self.cmd_name}; Ctrl-C ends it\n\n'
                    )
                # A command may change its arguments.
                code = super().run(copy.copy(parsed_args))
                if not out.isatty():
                    out.write('\n')
                out.flush()
                time.sleep(parsed_args.watch)
        except KeyboardInterrupt:
            return code
