# SPDX-License-Identifier: Apache-2.0

"""Checks all options. Those of the group [os_acc] are in options.common."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import os
import socket

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import options as bitstream_opts
from os_acc.options import common
from os_acc.options import placement as placement_opts
from os_acc.options import values as option_values

GROUP = common.GROUP
OPTS = common.OPTS
register = common.register
value = common.value


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
    own: list[tuple[str, Sequence[cfg.Opt]]] = [
        (GROUP, OPTS),
        (bitstream_opts.GROUP, bitstream_opts.OPTS),
        (placement_opts.GROUP, placement_opts.OPTS),
    ]
    for group, options in (*own, *groups):
        for option in options:
            try:
                value = conf[group][option.dest]
            except option_values.ERRORS as err:
                found.append(option_values.fault(conf, group, option, err))
                continue
            name = (group, option.name)
            if name in _FOLDERS and not os.path.isabs(value or _FOLDERS[name]):
                found.append(
                    f'[{group}] {option.name}: it is {value!r}, expected the '
                    'absolute path of a folder'
                )
    # Nova's option is read if os-acc's own is empty.
    if 'host' in conf:
        try:
            conf['host']
        except option_values.ERRORS as err:
            found.append(option_values.fault(conf, 'DEFAULT', _NOVA_HOST, err))
    return found


def check(
    conf: cfg.ConfigOpts, groups: Iterable[tuple[str, Sequence[cfg.Opt]]] = ()
) -> None:
    """Refuse invalid options.

    :raises InvalidRequest: if an option is invalid; the error names every
        invalid option
    """
    if found := faults(conf, groups):
        raise exception.InvalidRequest(f'configuration: {"; ".join(found)}')


# Options that name a folder, which must be absolute paths: a relative path
# would name another folder in each process. The value here replaces an empty
# option in the check: '' refuses an empty option, '/' allows it.
_FOLDERS = {
    (GROUP, 'state_path'): '',
    (GROUP, 'lock_path'): '/',
    (GROUP, 'device_spec_dir'): '/',
    (GROUP, 'xrt_path'): '',
}


def lock_path(conf: cfg.ConfigOpts) -> str:
    """Return the folder of the lock files."""
    chosen: str = value(conf, 'lock_path')
    return chosen or os.path.join(value(conf, 'state_path'), 'locks')


def host(conf: cfg.ConfigOpts) -> str:
    """Return the name of this host in Nova and Cyborg.

    Nova's own option is [DEFAULT] host, with socket.gethostname() as its
    default (nova/conf/netconf.py). Cyborg has the same option.

    :raises InvalidRequest: if the option that counts cannot be read
    """
    chosen: str = value(conf, 'host')
    # conf.host exists only if the service has registered its option.
    if not chosen and 'host' in conf:
        chosen = option_values.read(conf, 'DEFAULT', _NOVA_HOST)
    return chosen or socket.gethostname()


_NOVA_HOST = cfg.StrOpt('host')
