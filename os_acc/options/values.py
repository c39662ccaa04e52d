# SPDX-License-Identifier: Apache-2.0

"""Reads options, and says in plain words why one cannot be read.

oslo.config checks a value only when it is read, and its errors quote values,
and parts of values. A value may be a secret.
"""

from __future__ import annotations

import glob
import re
from typing import Any

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
    """Say why an option cannot be read.

    :param err: one of ERRORS
    """
    path, values = _in_files(conf, group, option)
    place = f' in {path}' if path else ''
    return f'[{group}] {option.name}{place}: {_why(option, values, err)}'


def hides(option: cfg.Opt) -> bool:
    """Whether an error must not quote the value of an option."""
    return bool(option.secret) or masking.is_secret_name(option.dest)


def _why(option: cfg.Opt, values: list[str], err: BaseException) -> str:
    text = str(err)
    if isinstance(err, RecursionError):
        return (
            'its value refers to itself, maybe by way of other options. '
            'oslo.config looks for an option in the same group first, so a '
            'value cannot refer to the option of [DEFAULT] that has its own '
            f'name. Write the value without the reference. {_REMEDY}'
        )
    # The option exists: else the caller could not have it.
    if isinstance(err, (*_REFERENCES, cfg.TemplateSubstitutionError)):
        name = _name(option, values, err)
        return (
            f'its value has a "$" with a name after it{name} that is no '
            f'option which os-acc knows. {_REMEDY}, or write the value of '
            'the option instead of its name'
        )
    if hides(option):
        return 'its value is invalid. It is secret, so it is not shown'
    return masking.of_error(text.rpartition(' is not valid: ')[2])


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


def _in_files(
    conf: cfg.ConfigOpts, group: str, option: cfg.Opt
) -> tuple[str, list[str]]:
    """Find the file that sets an option: the last one counts.

    :returns: its path, and the values in it as they are written; '' and []
        if no file sets it
    """
    found: tuple[str, list[str]] = '', []
    paths = list(getattr(conf, 'config_file', None) or ())
    for directory in getattr(conf, 'config_dir', None) or ():
        paths += sorted(glob.glob(f'{glob.escape(directory)}/*.conf'))
    names = (option.dest, option.name, option.name.replace('_', '-'))
    for path in paths:
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(path, sections).parse()
        except (cfg.Error, OSError, ValueError):
            continue
        for name in names:
            if values := sections.get(group, {}).get(name):
                found = path, values
    return found
