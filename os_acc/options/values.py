# SPDX-License-Identifier: Apache-2.0

"""Reads options, and says in plain words why one cannot be read.

oslo.config checks a value only when it is read, and its errors quote values,
and parts of values. A value may be a secret.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import difflib
import glob
import re
from typing import Any
from typing import NamedTuple

from oslo_config import cfg

from os_acc import exception
from os_acc.texts import masking

#: What oslo.config raises for a value that it cannot give. A value that
#: refers to itself ends in a RecursionError.
ERRORS = (cfg.Error, ValueError, RecursionError)

_REFERENCES = (cfg.NoSuchOptError, cfg.NoSuchGroupError)
_REMEDY = 'Write "$$" for a "$" that is a character of the value'


def read(conf: cfg.ConfigOpts, group: str, option: cfg.Opt) -> Any:
    """Read an option.

    :param group: its group, such as 'os_acc' or 'DEFAULT'
    :raises InvalidRequest: if its value is invalid, or refers to an option
        that does not exist, or to itself. The error names the group, the
        option and the file, and quotes nothing of a secret option
    """
    try:
        if group == 'DEFAULT':
            return conf[option.dest]
        return conf[group][option.dest]
    except ERRORS as err:
        raise exception.InvalidRequest(
            f'configuration: {fault(conf, group, option, err)}'
        ) from None


def fault(
    conf: cfg.ConfigOpts, group: str, option: cfg.Opt, err: BaseException
) -> str:
    """Say why an option cannot be read."""
    found = find(conf, group, option)
    # All values of the last file: any of them may have the reference.
    values = [x.value for x in found if x.path == found[-1].path]
    return f'{place(conf, group, option)}: {_why(option, values, err)}'


def place(conf: cfg.ConfigOpts, group: str, option: cfg.Opt) -> str:
    """Name an option, and the line of the file that sets it."""
    found = find(conf, group, option)
    where = f' in {found[-1]}' if found else ''
    return f'[{group}] {option.name}{where}'


def hides(option: cfg.Opt) -> bool:
    """Whether an error must not quote the value of an option."""
    return bool(option.secret) or masking.is_secret_name(option.dest)


def _why(option: cfg.Opt, values: list[str], err: BaseException) -> str:
    text = str(err)
    if isinstance(err, RecursionError):
        return (
            'its value refers to itself, possibly through other options. '
            'oslo.config looks for an option in the same group first, so a '
            'value cannot refer to the option of [DEFAULT] that has its own '
            f'name. Write the value without the reference. {_REMEDY}'
        )
    # The option exists: else the caller could not have it.
    if isinstance(err, (*_REFERENCES, cfg.TemplateSubstitutionError)):
        name = _name(option, values, err)
        return (
            f'its value has a "$" followed by a name{name} that is not an '
            f'option that os-acc knows. {_REMEDY}, or write the value of '
            'the option instead of its name'
        )
    if hides(option):
        return 'its value is invalid. It is secret, so it is not shown'
    why = masking.of_error(text.rpartition(' is not valid: ')[2])
    return why + _advice(option, err)


def _advice(option: cfg.Opt, err: BaseException) -> str:
    """What to write for a value that cannot be read as its type."""
    if not isinstance(err, ValueError) or 'Should be' in str(err):
        return ''
    if isinstance(option, cfg.FloatOpt | cfg.IntOpt):
        example = 1 if option.default is None else option.default
        return f'. Write a number and nothing else, such as {example:g}'
    if isinstance(option, cfg.BoolOpt):
        return '. Write true or false'
    return ''


def _name(option: cfg.Opt, values: list[str], err: BaseException) -> str:
    """The name in a reference, if it is certainly no part of a secret."""
    name = getattr(err, 'opt_name', '')
    known = (
        bool(name)
        and not hides(option)
        and any(
            re.search(rf'\$\{{?{re.escape(name)}\b', str(masking.masked(each)))
            for each in values
        )
    )
    return f' (${name})' if known else ''


# Where the configuration files set an option: the file and the line.


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
    # The default file is found twice, for the project and for the program.
    return list(dict.fromkeys(paths))


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
