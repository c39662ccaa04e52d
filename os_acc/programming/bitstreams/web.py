# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Bitstreams from an https server. A checksum is required."""

from __future__ import annotations

import base64
from collections.abc import Iterator
import contextlib
import re
import ssl
import time
from typing import Any
import urllib.error
import urllib.parse
import urllib.request

from oslo_config import cfg

from os_acc import bitstream_file
from os_acc import bitstream_opts as options
from os_acc import exception
from os_acc.programming.bitstreams import download

SIDECAR = '.sha256'

_SIDECAR_BYTES = 4096
_RANGE = re.compile(r'bytes ([0-9]+)-[0-9]+/([0-9]+|\*)')
# HTTP status codes of temporary failures.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Source:
    """A file on a web server.

    :param url: either ends with #sha256=HEX or #sha512=HEX, or the server has
        the SHA-256 in a file with the same URL and the suffix '.sha256'
    :raises BitstreamError: if the URL is invalid
    """

    def __init__(self, url: str) -> None:
        self.label = mask(url)
        try:
            parts = urllib.parse.urlsplit(url)
            port = f':{parts.port}' if parts.port else ''
        except ValueError:
            # The original error may contain the password.
            raise self._failed('it is not a valid URL') from None
        if not parts.hostname:
            raise self._failed('its URL names no host')
        self._headers = {}
        if parts.username is not None:
            pair = ':'.join(
                urllib.parse.unquote(each or '')
                for each in (parts.username, parts.password)
            )
            coded = base64.b64encode(pair.encode()).decode()
            self._headers['Authorization'] = f'Basic {coded}'
        host = parts.hostname
        host = f'[{host}]' if ':' in host else host
        self._url = parts._replace(netloc=host + port, fragment='')
        self._fragment = parts.fragment
        self._etag: str | None = None
        self._opener = _opener()

    def checksum(self) -> bitstream_file.Checksum:
        """Read the checksum from the URL, or from the file beside it.

        :raises BitstreamError: if there is none
        """
        if self._fragment:
            algorithm, _, value = self._fragment.partition('=')
            return bitstream_file.Checksum.parse(algorithm, value, self.label)
        beside = self._url._replace(path=self._url.path + SIDECAR)
        try:
            text = self._read(beside.geturl())
        except (exception.BitstreamError, *download.DROPPED) as err:
            raise self._failed(
                f'there is no checksum: neither #sha256= in its URL, nor a '
                f'file {SIDECAR} beside it ({exception.describe(err)})'
            ) from err
        value = (text.split() or [''])[0]
        return bitstream_file.Checksum.parse('sha256', value, self.label)

    def _read(self, url: str) -> str:
        """Read a small file; try again when the connection was dropped."""
        conf = cfg.CONF[options.GROUP]
        deadline = time.monotonic() + conf.download_timeout
        for left in reversed(range(conf.download_attempts)):
            try:
                with self._open(url, {}) as response:
                    data = b''
                    while (room := _SIDECAR_BYTES - len(data)) and (
                        chunk := response.read1(room)
                    ):
                        data += chunk
                        download.check_deadline(deadline, self.label)
                    return data.decode(errors='replace')
            except download.DROPPED:
                if not left:
                    raise
                download.check_deadline(deadline, self.label)
                time.sleep(conf.retry_interval)
        raise AssertionError('not reached')

    @property
    def suffix(self) -> str:
        """The extension of the file's name; some vendors' tools need it."""
        return suffix_of(self._url.path)

    @contextlib.contextmanager
    def open_at(self, place: int) -> Iterator[download.Answer]:
        """See download.Open."""
        headers = {}
        if place and self._etag is not None:
            # If the file has changed, the server sends all of it.
            headers['If-Range'] = self._etag
        if place:
            headers['Range'] = f'bytes={place}-'
        with self._open(self._url.geturl(), headers) as response:
            etag = response.headers.get('ETag')
            if etag is not None and not etag.startswith('W/'):
                self._etag = etag
            # read1(), because read() waits until a chunk is complete.
            yield answer(response.status, response.headers, response.read1)

    def _open(self, url: str, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(  # noqa: S310, checked: http(s)
            url, headers={**self._headers, **headers}
        )
        conf = cfg.CONF[options.GROUP]
        try:
            return self._opener.open(request, timeout=conf.stall_timeout)
        except urllib.error.HTTPError as err:
            with err:
                if err.code in _PASSING:
                    raise ConnectionError(f'HTTP {err.code}') from None
                raise self._failed(f'HTTP {err.code} {err.reason}') from None
        except urllib.error.URLError as err:
            if isinstance(err.reason, ssl.SSLCertVerificationError):
                raise self._failed(str(err.reason)) from None
            raise ConnectionError(str(err.reason)) from None

    def _failed(self, reason: str) -> exception.BitstreamError:
        return exception.BitstreamError(bitstream=self.label, reason=reason)


def answer(status: int, headers: Any, read: Any) -> download.Answer:
    """Read from a response's headers at which offset its body starts."""
    match = _RANGE.fullmatch(headers.get('Content-Range') or '')
    if status == 206 and match is not None:
        total = None if match[2] == '*' else int(match[2])
        return download.Answer(int(match[1]), total, read)
    length = headers.get('Content-Length') or ''
    return download.Answer(0, int(length) if length.isdigit() else None, read)


def mask(url: str) -> str:
    """Remove from a URL what may be secret: user, password and query."""
    try:
        parts = urllib.parse.urlsplit(url)
        netloc = parts.netloc.rpartition('@')[2]
    except ValueError:
        return '(a malformed URL)'
    query = '...' if parts.query else ''
    return parts._replace(netloc=netloc, query=query, fragment='').geturl()


def suffix_of(path: str) -> str:
    """Give the extension of a file's name, such as '.gbs', or ''."""
    match = re.search(r'\.[A-Za-z0-9]{1,16}$', path)
    return match[0] if match else ''


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same scheme or to https.

    The password is not sent to another host.
    """

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        old, new = map(urllib.parse.urlsplit, (req.full_url, newurl))
        if new.scheme != 'https' and old.scheme != new.scheme:
            raise urllib.error.URLError(
                f'redirected from {old.scheme} to {new.scheme}'
            )
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and old.netloc != new.netloc:
            made.remove_header('Authorization')
        return made


def _opener() -> urllib.request.OpenerDirector:
    cafile = cfg.CONF[options.GROUP].cafile or None
    context = ssl.create_default_context(cafile=cafile)
    return urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), _Redirects
    )
