# SPDX-License-Identifier: Apache-2.0

"""Checks all options. Those of the group [os_acc] are in options.common."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import os
import socket
import threading
from typing import Any
from typing import NamedTuple

from oslo_config import cfg

from os_acc import exception
from os_acc.options import common
from os_acc.options import values as option_values

GROUP = common.GROUP
OPTS = common.OPTS
register = common.register
value = common.value
option = common.option


def faults(
    conf: cfg.ConfigOpts, groups: Iterable[tuple[str, Sequence[cfg.Opt]]] = ()
) -> list[str]:
    """Read every option, and return the faults of the invalid ones.

    oslo.config checks a value only when it is read.

    :param groups: (group, options) of the drivers and plugins
    :returns: a line for each invalid option: the group, the option, the file
        and what was expected
    """
    found = []
    for group, options in (*_OWN, *groups):
        for option in options:
            try:
                value = conf[group][option.dest]
            except option_values.ERRORS as err:
                found.append(option_values.fault(conf, group, option, err))
                continue
            if expected := _expected((group, option.name), value):
                place = option_values.place(conf, group, option)
                found.append(f'{place}: it is {value!r}, expected {expected}')
    # Nova's option is read if os-acc's own is empty.
    if 'host' in conf:
        try:
            conf['host']
        except option_values.ERRORS as err:
            found.append(option_values.fault(conf, 'DEFAULT', _NOVA_HOST, err))
    return found


def _expected(name: tuple[str, str], value: Any) -> str | None:
    """Say what an option must be; None: its value is right."""
    if name in _DIRECTORIES and not os.path.isabs(value or _DIRECTORIES[name]):
        return 'the absolute path of a directory'
    # All of these options are times. Python cannot wait for longer.
    if isinstance(value, float) and not value <= threading.TIMEOUT_MAX:
        return f'a number of at most {threading.TIMEOUT_MAX:.0f}'
    return None


class Unknown(NamedTuple):
    """A line of a file that sets an option that os-acc does not have.

    :ivar text: the file, the line, and what may be meant
    :ivar mistyped: whether the name resembles an existing one. If not, it may
        belong to another version of os-acc
    """

    text: str
    mistyped: bool


def unknown(
    conf: cfg.ConfigOpts, groups: Iterable[tuple[str, Sequence[cfg.Opt]]]
) -> list[Unknown]:
    """Return the lines of the files that set options that os-acc does not
    have.

    oslo.config ignores them. A group whose name begins with os_acc may belong
    to a package that is not loaded: only a name that resembles a known one
    counts.
    """
    known: dict[str, set[str]] = {}
    for group, options in (*_OWN, *groups):
        names = known.setdefault(group, set())
        for option in options:
            names |= option_values.names(option)
    # Names with "-" are the same as those with "_".
    plain = {_plain(group): group for group in (*known, *_ELSEWHERE)}
    found: list[Unknown] = []
    for place in option_values.every(conf):
        if place.group in _ELSEWHERE:
            continue
        if place.group in known:
            if place.name not in known[place.group]:
                near = option_values.meant(place.name, known[place.group])
                text = f'{place}: [{place.group}] has no option {place.name}'
                others = f'; it has {_list(known[place.group])}'
                found.append(Unknown(text + (near or others), bool(near)))
        elif place.group != 'DEFAULT' and place.group not in conf:
            group = plain.get(_plain(place.group), '')
            near = f"; did you mean '{group}'?" if group else ''
            if place.group.startswith(GROUP):
                near = near or option_values.meant(
                    place.group, plain.values(), 0.9
                )
            if near:
                text = f'{place}: there is no group {place.group}{near}'
                found.append(Unknown(text, True))
    return found


def _plain(group: str) -> str:
    return group.lower().replace('-', '').replace('_', '')


def _list(names: Iterable[str]) -> str:
    return ', '.join(sorted(x for x in names if '-' not in x)) or 'none'


def check(
    conf: cfg.ConfigOpts, groups: Iterable[tuple[str, Sequence[cfg.Opt]]] = ()
) -> None:
    """Refuse invalid options."""
    if found := faults(conf, groups):
        raise exception.InvalidRequest(f'configuration: {"; ".join(found)}')


# The groups of os-acc's other distributions, which may read the same file.
_ELSEWHERE = ('os_acc_dra', 'os_acc_nova')

_OWN: tuple[tuple[str, Sequence[cfg.Opt]], ...] = tuple(
    (group, options) for group, _, options in common.GROUPS
)

# Options that name a directory, which must be absolute paths: a relative path
# would name another directory in each process. The value here replaces an
# empty option in the check: '' refuses an empty option, '/' allows it.
_DIRECTORIES = {
    (GROUP, 'state_path'): '',
    (GROUP, 'lock_path'): '/',
    (GROUP, 'device_spec_dir'): '/',
    (GROUP, 'xrt_path'): '',
}


def lock_path(conf: cfg.ConfigOpts) -> str:
    """Return the directory of the lock files."""
    chosen: str = value(conf, 'lock_path')
    return chosen or os.path.join(value(conf, 'state_path'), 'locks')


def host(conf: cfg.ConfigOpts) -> str:
    """Return the name of this host in Nova and Cyborg.

    Nova's own option is [DEFAULT] host, with socket.gethostname() as its
    default (nova/conf/netconf.py). Cyborg has the same option.
    """
    chosen: str = value(conf, 'host')
    # conf.host exists only if the service has registered its option.
    if not chosen and 'host' in conf:
        chosen = option_values.read(conf, 'DEFAULT', _NOVA_HOST)
    return chosen or socket.gethostname()


_NOVA_HOST = cfg.StrOpt('host')
