# SPDX-License-Identifier: Apache-2.0

"""Bitstreams from an https server. A checksum is required.

The errors raised here say only what os-acc itself knows to be harmless: the
texts of urllib and http.client, and what a server sends, may contain the URL
with its password and query. They are raised outside of the except blocks, so
that the original error is not chained to them either.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
import contextlib
import http.client
import re
import ssl
import time
from typing import Any
from typing import NoReturn
import urllib.error
import urllib.parse
import urllib.request

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import options
from os_acc.bitstreams import reference as bitstream_reference
from os_acc.programming.bitstreams import download

_SIDECAR_BYTES = 4096
# What a server says may be anything, such as digits that int() does not take.
_LENGTH = re.compile('[0-9]{1,18}')
_RANGE = re.compile(r'bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18}|\*)')
#: HTTP status codes of temporary failures.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Source:
    """A file on a web server.

    :param reference: if it has no checksum, the server must have the SHA-256
        in a file with the same path and the suffix '.sha256'
    :raises BitstreamError: if a masked reference has no checksum
    """

    # A URL does not say which function the file has.
    function_id: str | None = None

    def __init__(self, reference: bitstream_reference.Web) -> None:
        self.label = reference.masked()
        if reference.is_masked and reference.checksum is None:
            raise self._failed(
                f'{_INCOMPLETE}, and the URL does not have the checksum with '
                f'which the file could be found in the cache. {_ADVICE}'
            )
        self._reference = reference
        self._headers = {}
        if reference.user is not None:
            name, _, password = reference.user.partition(':')
            pair = (
                urllib.parse.unquote_to_bytes(name)
                + b':'
                + urllib.parse.unquote_to_bytes(password)
            )
            coded = base64.b64encode(pair).decode()
            self._headers['Authorization'] = f'Basic {coded}'
        self._etag: str | None = None
        self._opener = _opener()

    def checksum(self) -> bitstream_reference.Checksum:
        """Read the checksum from the URL, or from the file beside it."""
        if self._reference.checksum is not None:
            return self._reference.checksum
        try:
            text = self._read(self._reference.url(options.SIDECAR))
        except (exception.BitstreamError, *download.DROPPED) as err:
            raise self._failed(
                f'there is no checksum: neither #sha256= in its URL, nor a '
                f'file {options.SIDECAR} beside it ({exception.describe(err)})'
            ) from err
        value = (text.split() or [''])[0]
        return bitstream_reference.Checksum.parse('sha256', value, self.label)

    def signature(self) -> None:
        """Return None: only images have signatures."""

    def _read(self, url: str) -> str:
        """Read a small file; try again when the connection was dropped."""
        conf = cfg.CONF[options.GROUP]
        deadline = time.monotonic() + conf.download_timeout
        for left in reversed(range(conf.download_attempts)):
            try:
                return self._read_once(url, deadline)
            except download.DROPPED as err:
                reason = download.describe(err)
            if left:
                download.check_deadline(deadline, self.label)
                time.sleep(conf.retry_interval)
        raise download.TemporaryFailure(reason)

    def _read_once(self, url: str, deadline: float) -> str:
        with self._open(url, {}) as response:
            data = b''
            while (room := _SIDECAR_BYTES - len(data)) and (
                chunk := response.read1(room)
            ):
                data += chunk
                download.check_deadline(deadline, self.label)
            return data.decode(errors='replace')

    @property
    def suffix(self) -> str:
        """The extension of the file's name; some vendors' tools need it."""
        return suffix_of(self._reference.path)

    @contextlib.contextmanager
    def open_at(self, place: int) -> Iterator[download.Answer]:
        """See download.Open."""
        if self._reference.is_masked:
            raise self._failed(
                f'{_INCOMPLETE}, and the cache no longer has the file. '
                f'{_ADVICE}'
            )
        headers = {}
        if place and self._etag is not None:
            # If the file has changed, the server sends all of it.
            headers['If-Range'] = self._etag
        if place:
            headers['Range'] = f'bytes={place}-'
        with self._open(self._reference.url(), headers) as response:
            etag = response.headers.get('ETag')
            if etag is not None and not etag.startswith('W/'):
                self._etag = etag
            # read1(), because read() waits until a chunk is complete.
            yield answer(response.status, response.headers, response.read1)

    def _open(self, url: str, headers: dict[str, str]) -> Any:
        """Send a GET request."""
        request = urllib.request.Request(  # noqa: S310, checked: http(s)
            url, headers={**self._headers, **headers}
        )
        conf = cfg.CONF[options.GROUP]
        failed: Exception
        try:
            return self._opener.open(request, timeout=conf.stall_timeout)
        except urllib.error.HTTPError as err:
            with err:
                failed = self._of_status(err.code)
        except urllib.error.URLError as err:
            failed = self._of_reason(err.reason)
        except download.DROPPED as err:
            failed = download.TemporaryFailure(download.describe(err))
        except ValueError:
            # Such as a host name that cannot be encoded by IDNA, or an
            # invalid URL in a redirect.
            failed = self._failed('its URL, or a redirect from it, is invalid')
        raise failed

    def _of_status(self, code: int) -> Exception:
        # Not the phrase of the answer: the server may repeat the URL in it.
        text = f'HTTP {code} {http.client.responses.get(code, "")}'.strip()
        if code in PASSING:
            return download.TemporaryFailure(text)
        if code in range(300, 400):
            text += ': this redirect is not followed'
        return self._failed(text)

    def _of_reason(self, reason: object) -> Exception:
        if isinstance(reason, _RefusedError):
            return self._failed(str(reason))
        if isinstance(reason, ssl.SSLCertVerificationError):
            return self._failed(f'its certificate: {reason.verify_message}')
        if isinstance(reason, BaseException):
            return download.TemporaryFailure(download.describe(reason))
        return download.TemporaryFailure('the URL cannot be opened')

    def _failed(self, reason: str) -> exception.BitstreamError:
        return exception.BitstreamError(bitstream=self.label, reason=reason)


_INCOMPLETE = 'the journal keeps a URL without its user, password and query'
_ADVICE = (
    'Program the device with os-acc device program and the whole URL, or plug '
    'the instance again with it'
)


def answer(status: int, headers: Any, read: Any) -> download.Answer:
    """Read from a response's headers at which offset its body starts."""
    match = _RANGE.fullmatch(headers.get('Content-Range') or '')
    if status == 206 and match is not None:
        total = None if match[2] == '*' else int(match[2])
        return download.Answer(int(match[1]), total, read)
    length = headers.get('Content-Length') or ''
    total = int(length) if _LENGTH.fullmatch(length) else None
    return download.Answer(0, total, read)


def suffix_of(path: str) -> str:
    """Give the extension of a file's name, such as '.gbs', or ''."""
    match = re.search(r'\.[A-Za-z0-9]{1,16}$', path)
    return match[0] if match else ''


class _RefusedError(OSError):
    """A redirect is not followed; the text says why."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same scheme or to https.

    The password is not sent to another host.
    """

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        old, new = map(urllib.parse.urlsplit, (req.full_url, newurl))
        if '@' in new.netloc:
            _refuse('it redirects to a URL with a user or password')
        if new.scheme != 'https' and old.scheme != new.scheme:
            _refuse(f'it redirects from {old.scheme} to {new.scheme}')
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and old.netloc != new.netloc:
            made.remove_header('Authorization')
        return made


def _refuse(reason: str) -> NoReturn:
    raise urllib.error.URLError(_RefusedError(reason))


def _opener() -> urllib.request.OpenerDirector:
    cafile = cfg.CONF[options.GROUP].cafile or None
    context = ssl.create_default_context(cafile=cafile)
    return urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), _Redirects
    )
