# SPDX-License-Identifier: Apache-2.0

"""The message for wrong arguments: one line, and where to look."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from os_acc.cli import exit_codes
from os_acc.cli import tables

# The help of what argparse and cliff add, in one style: lower case, no full
# stop.
TEXTS = {
    '--help': 'show this help and exit',
    '--version': 'show the version of os-acc and exit',
    '--verbose': 'write more to standard error; may be repeated',
    '--quiet': 'write only warnings and errors to standard error',
    '--log-file': 'also write messages to this file',
    '--debug': 'show tracebacks of errors',
    '--format': 'the format of the output (default: table)',
    '--column': 'show only this column; may be repeated',
    '--quote': 'which values get quotes (default: nonnumeric)',
    '--noindent': 'print the JSON without indentation',
    '--max-width': 'the widest line, in characters; 0 for no limit (default: '
    'the variable CLIFF_MAX_TERM_WIDTH of the environment)',
    '--fit-width': 'fit the table to the terminal; so do --max-width and '
    'CLIFF_FIT_WIDTH=1 in the environment',
    '--print-empty': 'print the header of an empty table',
    '--sort-column': 'sort the lines by this column; its name in any case, '
    'with _ for a blank; may be repeated, the most important first',
    '--sort-ascending': 'sort in ascending order (default)',
    '--sort-descending': 'sort in descending order',
    '--prefix': 'begin the name of each variable with this text',
    '--variable': 'only this variable; may be repeated',
}
_HEADINGS = {
    'output formatters': 'output',
    'CSV Formatter': 'output as CSV',
    'json formatter': 'output as JSON',
    'shell formatter': 'output as shell variables',
    'table formatter': 'output as a table',
    'value formatter': 'output as values',
}

#: What to type, by a word that is not a command: an earlier name of it, or
#: the word that a similar program has.
WORDS = {
    'attach': ('plug',),
    'bundle': ('support',),
    'check': ('doctor', 'cyborg check'),
    'completion': ('complete',),
    'config': ('device spec', 'doctor'),
    'create': ('plug',),
    'delete': ('unplug', 'van forget'),
    'detach': ('unplug',),
    'devices': ('device list',),
    'discover': ('device list',),
    'exec': ('run',),
    'health': ('doctor',),
    'history': ('events',),
    'hosts': ('host show',),
    'info': ('host show',),
    'inspect': ('van show', 'device show'),
    'journal': ('van list', 'events'),
    'log': ('events',),
    'logs': ('events',),
    'ls': ('van list', 'device list'),
    'preview': ('plug --dry-run', 'unplug --dry-run'),
    'ps': ('van list',),
    'release': ('unplug', 'orphans --release'),
    'remove': ('unplug',),
    'report': ('support',),
    'rm': ('unplug', 'van forget'),
    'rollback': ('recover',),
    'start': ('run',),
    'state': ('van list',),
    'status': ('van list', 'doctor'),
    'stop': ('unplug',),
    'undo': ('recover',),
    'vans': ('van list',),
}


def one_line(parser: argparse.ArgumentParser) -> None:
    """Make a parser say in one line what is wrong, and where to look."""

    def error(message: str) -> NoReturn:
        parser.exit(exit_codes.WRONG_USAGE, line(parser.prog, message))

    parser.error = error  # type: ignore[method-assign]


class _PlainHelp(argparse.HelpFormatter):
    """Help without the colors of autopage.

    autopage puts them around the names of values, and argparse counts their
    characters when it aligns the columns and breaks the lines. autopage adds
    them to its own formatters, and to argparse.HelpFormatter itself.

    It also gives the texts of argparse and cliff the style of os-acc's own.
    """

    def start_section(self, heading: str | None) -> None:
        super().start_section(_HEADINGS.get(heading or '', heading))

    def add_text(self, text: str | None) -> None:
        if text != 'output formatter options':
            super().add_text(text)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        for option in action.option_strings:
            if option in TEXTS:
                return TEXTS[option]
        return super()._get_help_string(action)


def without_colors(parser: argparse.ArgumentParser) -> None:
    """Let the help have no colors."""
    parser.formatter_class = _PlainHelp


def line(program: str, message: str) -> str:
    """Return the line for wrong arguments, as wide as the terminal.

    :param program: the command, such as 'os-acc van list'
    """
    name, _, command = program.partition(' ')
    place = f'{name} help {command}' if command else f'{name} --help'
    text = ' '.join(message.split()).rstrip('.')
    text = f'{program}: error: {text}. See: {place}'
    return '\n'.join(tables.fitted(text, sys.stderr)) + '\n'
