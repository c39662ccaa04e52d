# SPDX-License-Identifier: Apache-2.0

"""What is said of wrong arguments: one line, and where to look."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from os_acc.cli import exit_codes
from os_acc.cli import tables


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
    """


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
