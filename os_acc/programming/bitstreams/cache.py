# SPDX-License-Identifier: Apache-2.0

"""The cache of downloaded bitstreams: verified files named by their checksum.

A file is downloaded under a temporary name and renamed after it was verified,
so that a file under its final name is complete. flock(2) locks on the files
keep other processes away; the kernel releases them when a process ends.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import fcntl
import logging
import os
import stat
import time
from typing import BinaryIO

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import options
from os_acc.bitstreams import reference as checksums
from os_acc.state import files as state_files
from os_acc.state import sharing

LOG = logging.getLogger(__name__)

PART = '.part'


@contextlib.contextmanager
def held(
    wanted: checksums.Checksum,
    suffix: str,
    bitstream: str,
    fill: Callable[[BinaryIO], None],
) -> Iterator[tuple[str, str]]:
    """Keep a file in the cache while the context is open.

    The file is downloaded if the cache does not have it.

    :returns: the file's path and its SHA-256
    """
    directory = _directory(bitstream)
    path = os.path.join(
        directory, f'{wanted.algorithm}-{wanted.value}{suffix}'
    )
    try:
        with _locked(path + PART, bitstream) as part:
            found = _existing(path, wanted, bitstream)
            file, digest = found or _new(part, path, wanted, bitstream, fill)
            if found is not None:
                os.unlink(path + PART)
                part.close()
    except OSError as err:
        raise exception.BitstreamError(
            bitstream=bitstream, reason=f'the cache {directory} failed: {err}'
        ) from err
    with file:
        os.utime(path)
        yield path, digest


def _directory(bitstream: str) -> str:
    """Create the directory; check who can access it.

    It must be private to this user, or shared with a group of this user.
    """
    path = options.cache_path(cfg.CONF)
    try:
        state_files.make_directory(path)
        found = os.lstat(path)
    except OSError as err:
        raise exception.BitstreamError(
            bitstream=bitstream,
            reason=f'the cache {path} cannot be created: {err}',
        ) from err
    private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    shared = state_files.is_shared(found) and state_files.is_member(
        found.st_gid
    )
    if not stat.S_ISDIR(found.st_mode) or not (private or shared):
        raise exception.BitstreamError(
            bitstream=bitstream,
            reason=f'the cache {path} must be a directory of user id '
            f'{os.geteuid()} with mode 0700, or a directory with mode 2770 of '
            f'a group that this user is in{sharing.hint(path)}',
        )
    return path


@contextlib.contextmanager
def _locked(path: str, bitstream: str) -> Iterator[BinaryIO]:
    """Lock the temporary file of a download, and empty it."""
    conf = cfg.CONF[options.GROUP]
    deadline = time.monotonic() + conf.download_timeout
    while True:
        fd = state_files.open_file(path)
        # Not closed here on success: after the rename the open file carries
        # the lock of the cached file.
        file = open(fd, 'r+b')  # noqa: SIM115
        if _lock(file, fcntl.LOCK_EX) and _is_there(file, path):
            break
        file.close()
        if time.monotonic() >= deadline:
            raise exception.Timeout(
                what=f'another download of bitstream {bitstream} to end',
                seconds=conf.download_timeout,
            )
        time.sleep(0.02)
    try:
        file.truncate(0)
        yield file
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        file.close()
        raise


def _new(
    part: BinaryIO,
    path: str,
    wanted: checksums.Checksum,
    bitstream: str,
    fill: Callable[[BinaryIO], None],
) -> tuple[BinaryIO, str]:
    fill(part)
    part.flush()
    most = options.max_bytes(cfg.CONF)
    digest = checksums.verify(part, wanted, bitstream, most)
    _make_room(os.path.dirname(path), part, bitstream)
    os.fsync(part.fileno())
    os.rename(path + PART, path)
    fcntl.flock(part, fcntl.LOCK_SH)
    return part, digest


def _existing(
    path: str, wanted: checksums.Checksum, bitstream: str
) -> tuple[BinaryIO, str] | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    file = open(fd, 'rb')  # noqa: SIM115, handed on
    fcntl.flock(file, fcntl.LOCK_SH)
    try:
        if _is_there(file, path):
            most = options.max_bytes(cfg.CONF)
            return file, checksums.verify(file, wanted, bitstream, most)
    except exception.BitstreamError as err:
        LOG.error('A damaged cached file is downloaded again: %s', err)
        os.unlink(path)
    file.close()
    return None


def _make_room(directory: str, new: BinaryIO, bitstream: str) -> None:
    """Remove the least recently used files until the new one fits."""
    mine = os.fstat(new.fileno())
    most = options.cache_bytes(cfg.CONF)
    others = []
    for entry in os.scandir(directory):
        # Another process may have removed it.
        with contextlib.suppress(FileNotFoundError):
            found = entry.stat(follow_symlinks=False)
            if not os.path.samestat(found, mine):
                others.append((found.st_mtime_ns, found.st_size, entry.path))
    size = mine.st_size + sum(each for _, each, _ in others)
    for _, before, path in sorted(others):
        if size <= most:
            return
        left = _remove(path)
        size += left - before
        if not left:
            LOG.info('Bitstream cache: removed %s to make room', path)
    if size > most:
        raise exception.BitstreamError(
            bitstream=bitstream,
            reason=f'with it the cache would have {size} bytes, cache_size is '
            f'{most}, and the other files are in use',
        )


def _remove(path: str) -> int:
    """Remove a cached file, unless it is in use.

    :returns: the size in bytes of the file that is at the path afterwards; 0
        if there is none
    """
    with contextlib.suppress(FileNotFoundError):
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), 'rb') as file:
            # Another process may have replaced the file before this one had
            # the lock. Whoever wants to replace it now waits for the lock.
            if _lock(file, fcntl.LOCK_EX) and _is_there(file, path):
                os.unlink(path)
                return 0
        return os.lstat(path).st_size
    return 0


def _lock(file: BinaryIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(file: BinaryIO, path: str) -> bool:
    """Say whether a path still names the open file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False
