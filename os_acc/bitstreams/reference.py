# SPDX-License-Identifier: Apache-2.0

"""What names a bitstream: a path, a URL, or the UUID of an image.

A URL may contain secrets: a user name, a password, and a token in its query.
Only a reference that parse() accepts is used, and only masked() is written
into logs, errors and the journal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from typing import BinaryIO
from typing import NamedTuple
from typing import NoReturn
import unicodedata
import urllib.parse

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import file as bitstream_file
from os_acc.bitstreams import options
from os_acc.texts import forms
from os_acc.texts import masking

#: What replaces the user and password, or the query, in a masked URL.
HIDDEN = masking.LEFT_OUT

_URL = re.compile(
    r'(?P<scheme>https?)://'
    r'(?:(?P<user>[^/?#]*)@)?'
    r'(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])'
    r'(?::(?P<port>[0-9]{1,5}))?'
    r'(?P<path>/[^?#@]*)?'
    r'(?:\?(?P<query>[^#@]*))?'
    r'(?:#(?P<fragment>.*))?',
    re.I | re.ASCII,
)
_FILE = re.compile(r'file:(?://(?:localhost)?)?(/(?!/)[^?#@]*)', re.I)
# A text that cannot contain a password.
_NAME = re.compile(r'[A-Za-z0-9._-]{1,255}')

_EXPECTED = (
    'an absolute path, a file or https URL, or the UUID of an image (http '
    'only where [os_acc_bitstreams] allow_http is set)'
)


@dataclasses.dataclass(frozen=True)
class Path:
    """A local file, which was given as a path or as a file URL."""

    path: str


@dataclasses.dataclass(frozen=True)
class Image:
    """An image of Glance.

    :ivar uuid: in lower case and with hyphens
    """

    uuid: str


@dataclasses.dataclass(frozen=True)
class Web:
    """An http or https URL.

    :ivar scheme: 'http' or 'https'
    :ivar host: the host, with its port if the URL names one
    :ivar path: starts with '/', or is empty
    :ivar user: 'user' or 'user:password', percent-encoded; None: none
    :ivar query: what follows the '?'; '' for none
    :ivar checksum: the checksum of the file; None: the URL does not have it
    """

    scheme: str
    host: str
    path: str
    user: str | None = dataclasses.field(repr=False)
    query: str = dataclasses.field(repr=False)
    checksum: Checksum | None

    @property
    def is_masked(self) -> bool:
        """Whether masked() has removed a secret from this URL."""
        return HIDDEN in (self.user, self.query)

    def url(self, suffix: str = '') -> str:
        """The URL to request: without user, password and checksum."""
        query = f'?{self.query}' if self.query else ''
        return f'{self.scheme}://{self.host}{self.path}{suffix}{query}'

    def masked(self) -> str:
        """The URL with HIDDEN in place of its secrets."""
        user = f'{HIDDEN}@' if self.user is not None else ''
        query = f'?{HIDDEN}' if self.query else ''
        fragment = ''
        if self.checksum is not None:
            fragment = f'#{self.checksum.algorithm}={self.checksum.value}'
        return f'{self.scheme}://{user}{self.host}{self.path}{query}{fragment}'


Reference = Path | Image | Web


def parse(text: object, subject: str = 'os_acc') -> Reference:
    """Read a reference to a bitstream.

    :param subject: what has the field 'bitstream', for the error
    :raises InvalidRequest: if the reference has none of the known forms. The
        error contains no secret
    """
    try:
        found = _parse(text)
        if not isinstance(found, Web) or found.scheme == 'https':
            return found
        if cfg.CONF[options.GROUP].allow_http:
            return found
        expected = (
            'an https URL, because [os_acc_bitstreams] allow_http is not set'
        )
    except _MalformedError as err:
        expected = str(err)
    raise exception.InvalidRequest(
        subject=subject,
        field='bitstream',
        value=masked(text),
        expected=expected,
    )


def masked(text: object) -> str:
    """Name a reference in logs, errors and the journal, without its secrets.

    It never raises. The result of a valid reference is a valid reference
    again, and masking it again does not change it.

    :param text: a reference; it may be malformed. None: the bitstream is
        looked for by its function
    """
    if text is None:
        return '(by function)'
    try:
        found = _parse(text)
    except _MalformedError:
        # No part of it can be shown: it is unknown where a password starts.
        if isinstance(text, str) and _NAME.fullmatch(text):
            return text
        return '(a malformed reference)'
    if isinstance(found, Web):
        return found.masked()
    return found.path if isinstance(found, Path) else found.uuid


class _MalformedError(Exception):
    """A reference is malformed; its text says what is expected."""


def _parse(text: object) -> Reference:
    if not isinstance(text, str):
        _refuse(_EXPECTED)
    scheme = text.partition(':')[0].lower()
    if scheme in ('http', 'https'):
        return _web(text)
    if scheme == 'file':
        match = _FILE.fullmatch(_printable(text))
        if match is None:
            _refuse(
                'a URL file:///PATH of this host, in which the characters '
                '?, # and @ are percent-encoded'
            )
        return _path(os.fsdecode(urllib.parse.unquote_to_bytes(match[1])))
    if text.startswith('/'):
        return _path(text)
    uuid = forms.uuid(text)
    if uuid is None:
        _refuse(_EXPECTED)
    return Image(uuid)


def _path(text: str) -> Path:
    if any(unicodedata.category(each) == 'Cc' for each in text):
        _refuse('a path without control characters')
    if text.startswith('//'):
        _refuse(_EXPECTED)
    return Path(text)


def _web(text: str) -> Web:
    match = _URL.fullmatch(_printable(text))
    if match is None or int(match['port'] or 0) > 65535:
        _refuse(
            'a URL https://[USER:PASSWORD@]HOST[:PORT]/PATH[?QUERY], in which '
            'the characters /, ?, # and @ of the user and password, and @ in '
            'the path and query, are percent-encoded'
        )
    port = f':{match["port"]}' if match['port'] else ''
    return Web(
        scheme=match['scheme'].lower(),
        host=match['host'] + port,
        path=match['path'] or '',
        user=match['user'] or None,
        query=match['query'] or '',
        checksum=_checksum(match['fragment']),
    )


def _checksum(fragment: str | None) -> Checksum | None:
    if not fragment:
        return None
    algorithm, _, value = fragment.partition('=')
    checksum = None
    # Its error would show the value, which may be a part of a password that
    # contains '#'.
    with contextlib.suppress(exception.BitstreamError):
        checksum = Checksum.parse(algorithm, value, 'the URL')
    if checksum is None:
        _refuse(
            'a URL that ends with its checksum, such as #sha256= and 64 hex '
            'digits, or that has no #'
        )
    return checksum


def _printable(text: str) -> str:
    for number, each in enumerate(text, 1):
        if not '!' <= each <= '~':
            _refuse(
                'a URL of printable ASCII characters without spaces '
                f'(character {number} is not): percent-encode the others, '
                'and write the name of a host in its ASCII form'
            )
    return text


def _refuse(expected: str) -> NoReturn:
    raise _MalformedError(expected)


# Checksums that are given for bitstreams.


#: The accepted algorithms, and the hex digits of each. Glance's default for
#: os_hash_algo is sha512.
ALGORITHMS = {'sha256': 64, 'sha384': 96, 'sha512': 128}


class Checksum(NamedTuple):
    algorithm: str
    value: str

    @classmethod
    def parse(cls, algorithm: str, value: str, bitstream: str) -> Checksum:
        """Check a checksum that is given as a text."""
        digits = ALGORITHMS.get(algorithm)
        if digits is None:
            raise exception.BitstreamError(
                bitstream=bitstream,
                reason=f'its checksum algorithm is {algorithm!r}, expected '
                'one of ' + ', '.join(ALGORITHMS),
            )
        if not re.fullmatch(f'[0-9a-fA-F]{{{digits}}}', value):
            raise exception.BitstreamError(
                bitstream=bitstream,
                reason=f'its checksum is {value[:150]!r}, expected {digits} '
                f'hex digits of {algorithm}',
            )
        return cls(algorithm, value.lower())


def verify(file: BinaryIO, wanted: Checksum, bitstream: str, most: int) -> str:
    """Check that a file has the wanted checksum.

    :returns: the file's SHA-256
    """
    found = bitstream_file.of_file(file, bitstream, most, wanted.algorithm)
    if found[wanted.algorithm] != wanted.value:
        raise exception.BitstreamError(
            bitstream=bitstream,
            reason=f'its {wanted.algorithm} is {found[wanted.algorithm]}, '
            f'expected {wanted.value}',
        )
    return found['sha256']
