# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The options of the group [os_acc], and all of them for oslo.config."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import os
import re

from oslo_config import cfg

from os_acc import bitstream_opts
from os_acc import exception

GROUP = 'os_acc'

OPTS = [
    cfg.StrOpt(
        'plugin',
        default='libvirt',
        help='Name of the plugin that does the instance half on this host: '
        'one of the entry points os_acc.plugins.',
    ),
    cfg.ListOpt(
        'drivers',
        default=[],
        help='Names of drivers in order of preference, for requests that '
        'more than one of them claims. Those not named come last.',
    ),
    cfg.StrOpt(
        'state_path',
        default='/var/lib/os-acc',
        help='Folder of the journal. It must be on a local disk, and belong '
        'to the user that the calling service runs as.',
    ),
    cfg.StrOpt(
        'lock_path',
        default='',
        sample_default='<state_path>/locks',
        help='Folder of the lock files, the same for all services of the '
        'host that use os-acc.',
    ),
    cfg.IntOpt(
        'max_workers',
        default=16,
        min=1,
        max=256,
        help='How many accelerators of one instance are prepared at once.',
    ),
    cfg.FloatOpt(
        'lock_timeout',
        default=300.0,
        min=0,
        help='Seconds to wait for another thread or process that works on '
        'the same instance or device.',
    ),
    cfg.FloatOpt(
        'journal_timeout',
        default=30.0,
        min=0.1,
        help='Seconds to wait for another thread or process that writes to '
        'the journal.',
    ),
    cfg.MultiStrOpt(
        'device_spec',
        default=[],
        help='The devices that os-acc may touch, as JSON objects in the '
        "style of Nova's [pci] device_spec. May be given several times; the "
        'first entry that names a device counts. Where it is not set, every '
        'device that the host itself does not use may be asked for.',
    ),
    cfg.FloatOpt(
        'device_timeout',
        default=60.0,
        min=0.1,
        help='Seconds for the kernel to bind, create, remove or reset a '
        'device.',
    ),
    cfg.FloatOpt(
        'release_timeout',
        default=60.0,
        min=0,
        help='Seconds for a guest to close the file of a device that it is '
        'to give back.',
    ),
    cfg.StrOpt(
        'cleaning_command',
        default='',
        help='Command that cleans a device between two tenants, run as root '
        'without a shell; {address} stands for the PCI address, or the UUID '
        'of a mediated device. If it fails, the device is kept in state '
        'error and not given out.',
    ),
    cfg.FloatOpt(
        'cleaning_timeout',
        default=600.0,
        min=0.1,
        help='Seconds for cleaning_command; then it is killed, with all '
        'that it started.',
    ),
    cfg.FloatOpt(
        'program_timeout',
        default=1800.0,
        min=0.1,
        help='Seconds for a command that programs, clears or checks a '
        'device; then it is killed, with all that it started. Whoever waits '
        'for the same device waits as long.',
    ),
    cfg.FloatOpt(
        'hook_timeout',
        default=30.0,
        min=0.1,
        help='Seconds for each of the hooks os_acc.programmed.',
    ),
]


def register(conf: cfg.ConfigOpts) -> None:
    """Register the group [os_acc] with conf. May be called again."""
    conf.register_group(cfg.OptGroup(GROUP, title='os-acc options'))
    conf.register_opts(OPTS, group=GROUP)
    conf.register_group(
        cfg.OptGroup(bitstream_opts.GROUP, title='os-acc: bitstreams')
    )
    conf.register_opts(bitstream_opts.OPTS, group=bitstream_opts.GROUP)


def faults(
    conf: cfg.ConfigOpts, groups: Iterable[tuple[str, Sequence[cfg.Opt]]] = ()
) -> list[str]:
    """What is wrong with the values: oslo.config looks when one is read.

    :param groups: (group, options) of the drivers and plugins
    :returns: a line for each: group, option, file, what was expected
    """
    found = []
    own = [(GROUP, OPTS), (bitstream_opts.GROUP, bitstream_opts.OPTS)]
    for group, options in (*own, *groups):
        for option in options:
            try:
                value = conf[group][option.dest]
            except (cfg.Error, ValueError) as err:
                found.append(f'[{group}] {option.name}{_reason(err)}')
                continue
            name = (group, option.name)
            if name in _FOLDERS and not os.path.isabs(value or _FOLDERS[name]):
                found.append(
                    f'[{group}] {option.name}: it is {value!r}, expected the '
                    'absolute path of a folder'
                )
    return found


def check(
    conf: cfg.ConfigOpts, groups: Iterable[tuple[str, Sequence[cfg.Opt]]] = ()
) -> None:
    """See that all values can be read.

    :raises InvalidRequest: those that cannot; see faults
    """
    if found := faults(conf, groups):
        raise exception.InvalidRequest(f'configuration: {"; ".join(found)}')


# What is relative would be another folder for each process. The value is what
# an empty one stands for.
_FOLDERS = {(GROUP, 'state_path'): '', (GROUP, 'lock_path'): '/'}


def _reason(err: Exception) -> str:
    """oslo's text, 'Value for option N from LocationInfo(...) is not ...'."""
    text = str(err)
    place = re.search(r"detail='([^']+)'", text)
    where = f' in {place[1]}' if place else ''
    return f'{where}: {text.rpartition(" is not valid: ")[2]}'


def lock_path(conf: cfg.ConfigOpts) -> str:
    """The folder of the lock files."""
    chosen: str = conf.os_acc.lock_path
    return chosen or os.path.join(conf.os_acc.state_path, 'locks')
