# SPDX-License-Identifier: Apache-2.0

"""Draws tables that fit the width of the terminal.

A line is never wider than the terminal, and a UUID is never broken. A table
that is too wide is made narrower in this order:

1. UUIDs of columns that allow it are cut to their first characters. They stay
   unambiguous within the column, and every command takes them.
2. Long texts are wrapped.
3. If that is not enough, each row becomes a block of lines.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
import json
import os
import re
import textwrap
from typing import Any
from typing import TextIO

from cliff import columns
import wcwidth

_SHORTEST_UUID = 8

# The width of a terminal that does not report it, and the minimum.
_USUAL = 80
_LEAST = 20

# The width of the key of an entry, with the blanks after it.
_KEY = 9

# A column is not wrapped to fewer characters.
_NARROWEST = 14

_UUID = re.compile(
    r'[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}', re.I
)

_GREEN, _YELLOW, _RED, _PLAIN = '\33[32m', '\33[33m', '\33[31m', '\33[0m'

_COLOURS = {
    _GREEN: ('plugged', 'ok', 'released', 'prepared again', 'loaded'),
    _YELLOW: ('warning', 'orphan', 'preparing', 'plugging', 'unplugging'),
    _RED: ('error', 'failed', 'unhealthy', 'unreadable', 'not released'),
}

_COLOUR_OF = {text: code for code, texts in _COLOURS.items() for text in texts}


def width(stream: TextIO, wanted: int = 0, fit: bool = False) -> int | None:
    """Return the width that a table may have, in characters.

    :param wanted: what the operator asks for; 0: the width of the terminal
    :param fit: True: it also counts if the stream is not a terminal
    :returns: None if a table may have any width: a program or a file reads it
    """
    if wanted > 0:
        return wanted
    if fit or stream.isatty():
        return _columns(stream)
    return None


def _columns(stream: TextIO) -> int:
    """The width of a stream's terminal; COLUMNS takes precedence."""
    if (wanted := os.environ.get('COLUMNS', '')).isdecimal():
        return max(int(wanted), _LEAST)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns, _LEAST)
    except (OSError, ValueError):
        return _USUAL


def has_colours(stream: TextIO) -> bool:
    """Say whether a stream shows colours, and the operator wants them.

    NO_COLOR turns them off (no-color.org).
    """
    return (
        stream.isatty()
        and not os.environ.get('NO_COLOR')
        and os.environ.get('TERM', 'dumb') != 'dumb'
    )


def draw(
    titles: Sequence[str],
    rows: Sequence[Sequence[Any]],
    limit: int | None,
    shorten: Collection[str] = (),
    brief: Collection[str] = (),
    colours: bool = False,
) -> str:
    """Draw a table.

    :param limit: the greatest width; None: any
    :param shorten: the titles of the columns whose UUIDs may be cut, the one
        to begin with first
    :param brief: the titles of the columns whose texts may be cut
    """
    cells = [[text(value) for value in row] for row in rows]
    widths = _widths(titles, cells)
    for title in shorten:
        if _fits(widths, limit):
            break
        if title in titles:
            _shorten(cells, titles.index(title))
            widths = _widths(titles, cells)
    if limit is not None and not _fits(widths, limit):
        narrowest = _narrowest(titles, cells, brief)
        if not _fits(narrowest, limit):
            return _blocks(
                titles, [list(map(text, row)) for row in rows], limit
            )
        widths = _share_out(narrowest, widths, limit)
        for at, title in enumerate(titles):
            if title in brief:
                for row in cells:
                    row[at] = cut(row[at], widths[at])
    right = [
        bool(rows) and all(type(row[at]) is int for row in rows)
        for at in range(len(titles))
    ]
    return _lines(titles, cells, widths, right, colours)


def entry(
    key: str, parts: Sequence[str], limit: int | None, colours: bool = False
) -> str:
    """Draw texts beside a key, which is a word of at most 8 characters.

    :returns: the lines, each with a line feed
    """
    indent = ' ' * _KEY
    lines = [
        indent + line
        for part in parts
        for text in part.split('\n')
        for line in (
            [text] if limit is None else wrap(text, max(limit - _KEY, _LEAST))
        )
    ]
    code = _COLOUR_OF.get(key) if colours else None
    shown = f'{code}{key}{_PLAIN}' if code else key
    lines[0] = shown + lines[0][len(key) :]
    return '\n'.join([*lines, ''])


def text(value: Any) -> str:
    """Return what a cell of a table shows.

    Nothing in it can control the terminal: it may come from a guest's name or
    from a device.
    """
    if isinstance(value, columns.FormattableColumn):
        value = value.human_readable()
    if value is None:
        return ''
    if isinstance(value, list | tuple):
        value = '\n'.join(map(str, value))
    if isinstance(value, dict):
        value = json.dumps(value)
    return '\n'.join(map(_printable, str(value).splitlines()))


def plain(value: Any) -> Any:
    """Return what csv and value show of a cell: what JSON shows.

    Text and numbers stay as they are, and no value is 'null'.
    """
    if isinstance(value, columns.FormattableColumn):
        value = value.machine_readable()
    if value is None or isinstance(value, bool | list | dict | tuple):
        return json.dumps(value)
    return value


def cut(line: str, limit: int) -> str:
    """Cut a line that is longer than a limit; '...' stands for the rest."""
    line = text(line).replace('\n', ' ')
    if _length(line) <= limit:
        return line
    while line and _length(line) > limit - 3:
        line = line[:-1]
    return line + '...'


def fitted(text: str, stream: TextIO) -> list[str]:
    """Return the lines of a text, as wide as the terminal.

    As in a cell, nothing in it can control the terminal: see text().

    :param stream: where they will be printed. If it is not a terminal, no line
        is broken
    """
    lines = list(map(_printable, text.split('\n')))
    limit = width(stream)
    if limit is None:
        return lines
    return [part for line in lines for part in wrap(line, limit)]


def wrap(line: str, limit: int) -> list[str]:
    """Break a line between words, or within a word that is no UUID.

    Further lines are indented as the first one.
    """
    if _length(line) <= limit:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if len(indent) > limit // 2:
        indent = ''
    pieces = textwrap.wrap(
        line,
        limit,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part for piece in pieces for part in _break(piece, limit)]


def _break(piece: str, limit: int) -> list[str]:
    """Break a long word, but not within a UUID."""
    parts = []
    while _length(piece) > limit:
        place = len(piece)
        while place > 1 and _length(piece[:place]) > limit:
            place -= 1
        for match in _UUID.finditer(piece):
            if match.start() < place < match.end():
                place = match.start() or match.end()
        if place >= len(piece):
            break
        parts.append(piece[:place])
        piece = piece[place:]
    return [*parts, piece]


def _printable(line: str) -> str:
    return ''.join(
        each if each.isprintable() else ascii(each)[1:-1] for each in line
    )


def _length(line: str) -> int:
    """The number of places that a line takes on a terminal."""
    return max(wcwidth.wcswidth(line), 0)


def _widths(
    titles: Sequence[str], cells: Sequence[Sequence[str]]
) -> list[int]:
    """The width that each column needs to be unwrapped."""
    return [
        max(
            map(
                _length,
                [title, *(p for row in cells for p in row[at].split('\n'))],
            )
        )
        for at, title in enumerate(titles)
    ]


def _narrowest(
    titles: Sequence[str],
    cells: Sequence[Sequence[str]],
    brief: Collection[str],
) -> list[int]:
    """The width to which each column may be wrapped."""
    found = []
    for at, natural in enumerate(_widths(titles, cells)):
        least = min(natural, _NARROWEST)
        if titles[at] not in brief:
            uuids = (u for row in cells for u in _UUID.findall(row[at]))
            least = max([least, *map(len, uuids)])
        found.append(max(least, _length(titles[at])))
    return found


def _fits(widths: Sequence[int], limit: int | None) -> bool:
    return limit is None or sum(widths) + 3 * len(widths) + 1 <= limit


def _share_out(
    narrowest: Sequence[int], wanted: Sequence[int], limit: int
) -> list[int]:
    """Give the places that are left to the narrowest columns first."""
    widths = list(narrowest)
    left = limit - sum(widths) - 3 * len(widths) - 1
    while left > 0:
        short = [at for at, has in enumerate(widths) if has < wanted[at]]
        if not short:
            break
        widths[min(short, key=lambda at: widths[at])] += 1
        left -= 1
    return widths


def _shorten(cells: list[list[str]], at: int) -> None:
    """Cut the UUIDs of a column, as far as they stay unambiguous."""
    found = {row[at] for row in cells if _UUID.fullmatch(row[at])}
    length = _SHORTEST_UUID
    while len({each[:length] for each in found}) < len(found):
        length += 1
    for row in cells:
        if row[at] in found:
            row[at] = row[at][:length]


def _lines(
    titles: Sequence[str],
    cells: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Sequence[bool],
    colours: bool,
) -> str:
    rule = '+' + ''.join('-' * (each + 2) + '+' for each in widths)
    drawn = [rule, _line(titles, widths), rule]
    for row in cells:
        wrapped = [
            [part for line in cell.split('\n') for part in wrap(line, most)]
            for cell, most in zip(row, widths, strict=True)
        ]
        for number in range(max(map(len, wrapped))):
            parts = [
                lines[number] if number < len(lines) else ''
                for lines in wrapped
            ]
            drawn.append(_line(parts, widths, right, colours))
    return '\n'.join([*drawn, rule, ''])


def _line(
    parts: Sequence[str],
    widths: Sequence[int],
    right: Sequence[bool] = (),
    colours: bool = False,
) -> str:
    line = '|'
    for at, (part, most) in enumerate(zip(parts, widths, strict=True)):
        blanks = ' ' * (most - _length(part))
        code = _COLOUR_OF.get(part) if colours else None
        shown = f'{code}{part}{_PLAIN}' if code else part
        if at < len(right) and right[at]:
            line += f' {blanks}{shown} |'
        else:
            line += f' {shown}{blanks} |'
    return line


def _blocks(
    titles: Sequence[str], rows: Sequence[Sequence[str]], limit: int
) -> str:
    """Draw each row as a block: a line for each title and its text."""
    first = max(map(_length, titles)) + 2
    blocks = []
    for row in rows:
        lines = []
        for title, cell in zip(titles, row, strict=True):
            start = title + ' ' * (first - _length(title))
            for line in cell.split('\n'):
                for part in wrap(line, max(limit - first, _NARROWEST)):
                    lines.append((start + part).rstrip())
                    start = ' ' * first
        blocks.append('\n'.join(lines) + '\n')
    return '\n'.join(blocks)
