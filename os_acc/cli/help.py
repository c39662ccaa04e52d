# SPDX-License-Identifier: Apache-2.0

"""The help of the program: its options, and a line for each command."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from cliff import app as cliff_app
from cliff import help as cliff_help

from os_acc import exception
from os_acc.cli import tables
from os_acc.cli import usage


class Help(cliff_help.HelpCommand):
    """Show this help, or all options of one command."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        usage.without_colors(parser)
        return parser

    def get_epilog(self) -> str:
        """Add nothing to the help. See os_acc.cli.base.Command."""
        return ''

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if parsed_args.cmd:
            return super().take_action(parsed_args)
        show(self.app)
        return 0


def show(app: cliff_app.App) -> None:
    """Print the options of all commands, and a line for each command."""
    width = tables.width(app.stdout, fit=True) or 0
    manager: Any = app.command_manager
    found = {name: _summary(app, name) for name in manager.commands}
    margin = max(map(len, found)) + 4
    lines = []
    for name, text in sorted(found.items()):
        lines += textwrap.wrap(
            text,
            max(width, margin + 20),
            initial_indent=f'  {name}'.ljust(margin),
            subsequent_indent=' ' * margin,
            break_on_hyphens=False,
        )
    app.stdout.write(
        f'{app.parser.format_help()}\ncommands:\n'
        + '\n'.join(lines)
        + f'\n\nAll options of a command: {app.NAME} help COMMAND\n'
    )


def _summary(app: cliff_app.App, name: str) -> str:
    """Say what a command does: the first line of its description."""
    try:
        made, _, _ = app.command_manager.find_command(name.split())
        text = made(app, None, cmd_name=name).get_description()
    except Exception as err:
        # A package of somebody else may have added it.
        return f'cannot be loaded: {exception.describe(err)}'
    return text.split('\n')[0].rstrip('.')
