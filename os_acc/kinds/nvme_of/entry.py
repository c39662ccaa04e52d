# SPDX-License-Identifier: Apache-2.0

"""The key nvme_of of an entry of device_spec: namespaces of an NVMe-oF target.

Each reader raises InvalidRequest if the value is invalid; the error names the
key, the value and what was expected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import posixpath
import re
from typing import Any
import uuid

from os_acc.kernel import nvme_of
from os_acc.spec import values as spec_values

ERASE_ZEROES, ERASE_NONE = 'zeroes', 'none'
#: How a namespace is emptied at its release: overwritten with zeroes; or not
#: at all, because whoever owns the storage empties it.
ERASES = (ERASE_ZEROES, ERASE_NONE)

TRANSPORTS = ('tcp', 'rdma')

# NVMe Base Specification 2.0, 4.5 NVMe Qualified Names: at most 223 bytes.
_NQN = re.compile(r'nqn\.[0-9]{4}-[0-9]{2}\.[A-Za-z0-9.:_/@=+-]{1,200}')
_DISCOVERY = 'nqn.2014-08.org.nvmexpress.discovery'
# As wwid_show() in drivers/nvme/host/core.c writes a Namespace Globally
# Unique Identifier.
_NGUID = re.compile(r'eui\.[0-9a-f]{32}')
_KEYS = ('nqn', 'portals', 'namespaces', 'dhchap_secret_file', 'erase')


@dataclasses.dataclass(frozen=True)
class Target:
    """A subsystem of an NVMe-oF target, and its namespaces that are offered.

    :ivar nqn: the name of the subsystem
    :ivar namespaces: their world wide names, as the kernel has them in the
        file wwid: uuid.UUID, or eui. and the NGUID
    :ivar secret_file: the file with the secret for DH-HMAC-CHAP; None: the
        target asks for none
    :ivar erase: one of ERASES
    """

    nqn: str
    portals: tuple[nvme_of.Portal, ...]
    namespaces: tuple[str, ...]
    secret_file: str | None = None
    erase: str = ERASE_ZEROES


def read(key: str, value: Any) -> Target:
    """Read the value of the key nvme_of."""
    if not isinstance(value, dict):
        spec_values.refuse(key, value, 'a JSON object')
    spec_values.check_keys(key, value, _KEYS)
    for name in _KEYS[:3]:
        if name not in value:
            spec_values.refuse(f'{key}.{name}', None, f'a value for {name}')
    secret = value.get('dhchap_secret_file')
    return Target(
        nqn=_nqn(f'{key}.nqn', value['nqn']),
        portals=_portals(f'{key}.portals', value['portals']),
        namespaces=_namespaces(f'{key}.namespaces', value['namespaces']),
        secret_file=None
        if secret is None
        else _path(f'{key}.dhchap_secret_file', secret),
        erase=spec_values.one_of(*ERASES)(
            f'{key}.erase', value.get('erase', ERASE_ZEROES)
        ),
    )


def _nqn(key: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not _NQN.fullmatch(value)
        or value == _DISCOVERY
    ):
        spec_values.refuse(
            key,
            value,
            'the NQN of a subsystem that has namespaces, such as '
            'nqn.2024-01.org.example:fast',
        )
    return value


def _portals(key: str, value: Any) -> tuple[nvme_of.Portal, ...]:
    if not isinstance(value, list) or not value:
        spec_values.refuse(
            key,
            value,
            'a list of portals, each [address, port, transport]',
        )
    found = tuple(_portal(key, each) for each in value)
    if len(set(found)) != len(found):
        spec_values.refuse(key, value, 'each portal only once')
    return found


def _portal(key: str, value: Any) -> nvme_of.Portal:
    with contextlib.suppress(ValueError, TypeError):
        address, port, transport = value
        if (
            isinstance(address, str)
            and isinstance(port, int)
            and not isinstance(port, bool)
            and 1 <= port <= 65535
            and transport in TRANSPORTS
        ):
            return nvme_of.Portal(
                str(ipaddress.ip_address(address)), port, transport
            )
    return spec_values.refuse(
        key,
        value,
        'an IP address, a port number and tcp or rdma, such as '
        '["192.0.2.1", 4420, "tcp"]',
    )


def _namespaces(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        spec_values.refuse(key, value, 'a list of UUIDs')
    return tuple(dict.fromkeys(_namespace(key, each) for each in value))


def parse_name(text: str) -> str | None:
    """Read the name of a namespace: a UUID, or eui. and its NGUID.

    :returns: its world wide name; None if the text is not such a name
    """
    text = text.lower()
    if _NGUID.fullmatch(text):
        return text
    with contextlib.suppress(ValueError):
        made = uuid.UUID(text.removeprefix('uuid.'))
        if made.int:
            return f'uuid.{made}'
    return None


def _namespace(key: str, value: Any) -> str:
    found = parse_name(value) if isinstance(value, str) else None
    if found is not None:
        return found
    return spec_values.refuse(
        key,
        value,
        'the UUID of a namespace; or, if it has none, eui. and the 32 hex '
        'digits of its NGUID',
    )


def _path(key: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.startswith('/')
        or value.startswith('//')
        or posixpath.normpath(value) != value
        or '\0' in value
    ):
        spec_values.refuse(key, value, 'an absolute path')
    return value
