# SPDX-License-Identifier: Apache-2.0

"""Downloads with limits, resumed when the connection was dropped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
import http.client
import logging
import time
from typing import BinaryIO
from typing import NamedTuple

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import options

LOG = logging.getLogger(__name__)

_CHUNK = 1 << 16
#: What a dropped connection or a temporary failure of a server raises.
DROPPED = (OSError, http.client.HTTPException)


class TemporaryFailure(OSError):
    """A server failed and may work later. The text contains no secret."""


class Answer(NamedTuple):
    """The body that a server sends.

    :ivar start: offset of its first byte in the whole file
    :ivar total: length of the whole file in bytes; None: unknown
    :ivar read: returns up to the given number of bytes, b'' at the end
    """

    start: int
    total: int | None
    read: Callable[[int], bytes]


#: Requests the bytes from an offset on. An error of DROPPED is temporary.
Open = Callable[[int], AbstractContextManager[Answer]]
Report = Callable[[float | None, str], None]


def download(
    open_at: Open, file: BinaryIO, bitstream: str, report: Report
) -> None:
    """Download a bitstream into an empty file.

    :param bitstream: its name in messages, without secrets
    """
    conf = cfg.CONF[options.GROUP]
    deadline = time.monotonic() + conf.download_timeout
    pause = conf.retry_interval
    for attempt in range(1, conf.download_attempts + 1):
        reason = _attempt(open_at, file, bitstream, report, deadline)
        if reason is None:
            return
        LOG.warning(
            'Bitstream %s: attempt %d of %d: %s',
            bitstream,
            attempt,
            conf.download_attempts,
            reason,
        )
        if attempt < conf.download_attempts:
            check_deadline(deadline, bitstream)
            time.sleep(max(min(pause, deadline - time.monotonic()), 0))
            pause *= 2
    raise exception.BitstreamError(
        bitstream=bitstream,
        reason=f'{reason}; tried {conf.download_attempts} times',
    )


def _attempt(
    open_at: Open,
    file: BinaryIO,
    bitstream: str,
    report: Report,
    deadline: float,
) -> str | None:
    """Download the part that the file does not have yet.

    :returns: None if the file is complete, else why it is not
    """
    most = options.max_bytes(cfg.CONF)
    have, total = file.tell(), None
    try:
        with open_at(have) as answer:
            total = answer.total
            if answer.start != have:
                # The server cannot resume, or its file has changed.
                file.seek(0)
                file.truncate()
                have = 0
            if answer.start not in (0, have):
                return f'the server sent byte {answer.start} instead of {have}'
            _check_size(total or 0, most, bitstream)
            while chunk := answer.read(_CHUNK):
                have += len(chunk)
                _check_size(have, most, bitstream)
                check_deadline(deadline, bitstream)
                _write(file, chunk, bitstream)
                report(have / total if total else None, 'downloading')
    except DROPPED as err:
        return f'the connection failed at byte {have}: {describe(err)}'
    if total is not None and have < total:
        return f'the connection ended at byte {have} of {total}'
    return None


def describe(err: BaseException) -> str:
    """Describe why a connection failed, without what the server has sent.

    The texts of http.client's errors may contain the URL with its password.
    """
    if isinstance(err, TemporaryFailure):
        return str(err)
    if isinstance(err, OSError) and err.strerror:
        # A file name is that of a configuration file, such as clouds.yaml.
        return err.strerror + (f': {err.filename}' if err.filename else '')
    return type(err).__name__


def _write(file: BinaryIO, chunk: bytes, bitstream: str) -> None:
    try:
        file.write(chunk)
    except OSError as err:
        raise exception.BitstreamError(
            bitstream=bitstream, reason=f'it cannot be stored: {err}'
        ) from err


def _check_size(size: int, most: int, bitstream: str) -> None:
    if size > most:
        raise exception.BitstreamError(
            bitstream=bitstream,
            reason=f'it has {size} bytes or more, max_size is {most}',
        )


def check_deadline(deadline: float, bitstream: str) -> None:
    """:raises Timeout: if download_timeout has passed"""
    if time.monotonic() >= deadline:
        raise exception.Timeout(
            what=f'the download of bitstream {bitstream} to end',
            seconds=cfg.CONF[options.GROUP].download_timeout,
        )
