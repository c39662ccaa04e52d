# SPDX-License-Identifier: Apache-2.0

"""The other host of ``os-acc migrate``, and how to reach os-acc there."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import re
import shlex
from urllib import parse

from os_acc import exception

#: What --to takes, for errors.
EXPECTED = (
    'ssh://[user@]host[:port], or a URI of libvirt such as '
    'qemu+ssh://root@host/system'
)

# What ssh and libvirt take, and nothing that could be an option or be read by
# a shell: a name or an IPv4 address, an IPv6 address, the name of a user.
_HOST = re.compile(r'[0-9A-Za-z]([0-9A-Za-z._-]*[0-9A-Za-z])?', re.ASCII)
_IPV6 = re.compile(r'[0-9A-Fa-f:.]+(%[0-9A-Za-z._-]+)?', re.ASCII)
_USER = re.compile(r'[0-9A-Za-z_][0-9A-Za-z_.@-]*', re.ASCII)
_SCHEME = re.compile(r'[a-z][a-z0-9]*(\+[a-z][a-z0-9]*)?', re.ASCII)
_TRANSPORTS_OF_SSH = ('ssh', 'libssh', 'libssh2')

# ssh asks for no password. It ends if the other host does not answer for 20 s
# when it connects, or for 60 s after that.
_SSH = (
    *('ssh', '-T', '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=20'),
    *('-o', 'ServerAliveInterval=15', '-o', 'ServerAliveCountMax=4'),
)


@dataclasses.dataclass(frozen=True)
class Destination:
    """The other host.

    :ivar uri: as it was given
    :ivar host: None: it is this machine, such as with qemu+unix:///system
    :ivar user: of ssh; None: the one that ssh chooses
    :ivar port: of ssh; None: the one that ssh chooses
    """

    uri: str
    host: str | None = None
    user: str | None = None
    port: int | None = None

    @property
    def called(self) -> str:
        """What messages call it."""
        return self.host or self.uri

    def command(self, os_acc: Sequence[str]) -> list[str]:
        """The command that runs os-acc there."""
        if self.host is None:
            return list(os_acc)
        made = list(_SSH)
        if self.port is not None:
            made += ['-p', str(self.port)]
        if self.user is not None:
            made += ['-l', self.user]
        # The shell of the other host reads it.
        return [*made, '--', self.host, shlex.join(os_acc)]


def parse_uri(text: str) -> Destination:
    """Read where to move an instance."""
    try:
        parts = parse.urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError as err:
        raise _refused(text) from err
    if (
        not text.isprintable()
        or re.search(r'[\s\\]', text)
        or not _SCHEME.fullmatch(parts.scheme)
        or parts.fragment
        or parts.password is not None
        or (host is not None and not _is_host(host))
        or (parts.username is not None and not _USER.fullmatch(parts.username))
    ):
        raise _refused(text)
    if parts.scheme == 'ssh':
        if host is None or parts.path not in ('', '/') or parts.query:
            raise _refused(text)
        return Destination(text, host, parts.username, port)
    if not parts.path and not host:
        raise _refused(text)
    if parts.scheme.partition('+')[2] in _TRANSPORTS_OF_SSH:
        return Destination(text, host, parts.username, port)
    # The user and the port are those of libvirt, not of ssh.
    return Destination(text, host)


def _is_host(text: str) -> bool:
    pattern = _IPV6 if ':' in text else _HOST
    return pattern.fullmatch(text) is not None


def _refused(text: str) -> exception.InvalidRequest:
    return exception.InvalidRequest(
        subject='migrate', field='--to', value=text, expected=EXPECTED
    )
