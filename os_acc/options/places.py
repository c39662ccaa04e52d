# SPDX-License-Identifier: Apache-2.0

"""Where the configuration files set an option: the file and the line."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import difflib
import glob
import re
from typing import NamedTuple

from oslo_config import cfg


class Place(NamedTuple):
    """A line of a configuration file that sets an option.

    :ivar group: as the file names it
    :ivar value: as it is written, with the lines that continue it
    """

    path: str
    line: int
    group: str
    name: str
    value: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}'


def files(conf: cfg.ConfigOpts) -> list[str]:
    """List the configuration files, in the order in which they are read."""
    paths = list(getattr(conf, 'config_file', None) or ())
    for directory in getattr(conf, 'config_dir', None) or ():
        paths += sorted(glob.glob(f'{glob.escape(directory)}/*.conf'))
    return paths


def every(conf: cfg.ConfigOpts) -> list[Place]:
    """List all places of all files that can be read."""
    found: list[Place] = []
    for path in files(conf):
        try:
            with open(path, encoding='utf-8') as file:
                found += _of_file(path, file)
        except (OSError, ValueError):
            continue
    return found


def find(conf: cfg.ConfigOpts, group: str, option: cfg.Opt) -> list[Place]:
    """List the places that set an option. The last one counts."""
    known = names(option)
    return [
        place
        for place in every(conf)
        if place.group == group and place.name in known
    ]


def names(option: cfg.Opt) -> set[str]:
    """The names that an option may have in a file."""
    found = {option.dest, option.name, option.name.replace('_', '-')}
    for each in option.deprecated_opts:
        found |= {each.name or option.name}
    return found


def meant(typed: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """Ask for the known name that is like what was typed.

    :returns: such as "; did you mean 'plugin'?"; '' if none is like it
    """
    near = difflib.get_close_matches(typed, sorted(known), 1, cutoff)
    return f"; did you mean '{near[0]}'?" if near else ''


def _of_file(path: str, lines: Iterator[str]) -> Iterator[Place]:
    """Read a file as oslo.config's parser does, which has accepted it."""
    group, place = '', None
    for number, line in enumerate(lines, 1):
        text = line.rstrip()
        if text[:1] in (' ', '\t') and place is not None:
            place = place._replace(value=f'{place.value}\n{text.lstrip()}')
            continue
        if place is not None:
            yield place
            place = None
        if text.startswith('['):
            group = text[1:-1]
        elif text and text[0] not in '#;':
            name, _, value = re.sub('[:=]', '\n', text, count=1).partition(
                '\n'
            )
            value = value.strip()
            if value[:1] in ('"', "'") and value[-1:] == value[:1]:
                value = value[1:-1]
            place = Place(path, number, group, name.strip(), value)
    if place is not None:
        yield place
