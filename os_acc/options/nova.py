# SPDX-License-Identifier: Apache-2.0

"""Reads Nova's own options where Nova itself is not in the process.

A nova.conf then means to the command, and to the privileged daemon, what it
means to nova-compute.
"""

from __future__ import annotations

from collections.abc import Callable
import importlib.util
import os
import re
import socket

from oslo_config import cfg

from os_acc.options import values

#: nova/conf/netconf.py and nova/conf/paths.py.
OPTS = (
    cfg.StrOpt('my_ip'),
    cfg.StrOpt('host'),
    cfg.StrOpt('pybasedir'),
    cfg.StrOpt('state_path'),
)
#: nova/conf/libvirt.py.
LIBVIRT_OPTS = (cfg.StrOpt('connection_uri'),)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; may be called again.

    Those that a service has registered itself stay as they are.
    """
    for option in OPTS:
        if option.dest not in conf:
            conf.register_opt(option)
    if 'libvirt' not in conf:
        conf.register_group(cfg.OptGroup('libvirt'))
    for option in LIBVIRT_OPTS:
        if option.dest not in conf.libvirt:
            conf.register_opt(option, group='libvirt')


def set_defaults(conf: cfg.ConfigOpts) -> None:
    """Give Nova's defaults to the options that the files refer to.

    Call it after the files were read. An option that no value refers to has
    no default, so that a file of another service means what it meant before.
    """
    text = ''.join(_text(path) for path in values.files(conf))
    names = set(re.findall(r'\$\{?(\w+)', text))
    if 'state_path' in names:
        names.add('pybasedir')
    for name in names & _DEFAULTS.keys():
        conf.set_default(name, _DEFAULTS[name]())


def connection_uri(conf: cfg.ConfigOpts) -> str | None:
    """The URI of libvirt in ``[libvirt] connection_uri``, if it is set."""
    if 'libvirt' in conf and 'connection_uri' in conf.libvirt:
        found: str | None = conf.libvirt.connection_uri
        return found or None
    return None


def _my_ip() -> str:
    # Its import takes 0.1 s.
    from oslo_utils import netutils

    address: str = netutils.get_my_ipv4()
    return address


def _pybasedir() -> str | None:
    """The directory above the package nova; None if it is not installed."""
    found = importlib.util.find_spec('nova')
    if found is None or not found.origin:
        return None
    return os.path.dirname(os.path.dirname(os.path.abspath(found.origin)))


# The defaults of nova/conf/netconf.py and nova/conf/paths.py.
_DEFAULTS: dict[str, Callable[[], str | None]] = {
    'my_ip': _my_ip,
    'host': socket.gethostname,
    'pybasedir': _pybasedir,
    'state_path': lambda: '$pybasedir',
}


def _text(path: str) -> str:
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read()
    except OSError:
        return ''
