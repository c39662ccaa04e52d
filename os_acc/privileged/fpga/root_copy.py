# SPDX-License-Identifier: Apache-2.0

"""Root's copy of an image, so that nobody can change the image in use.

Each copy is in a directory of its own with a random name. The directory is
locked with flock(2) while the copy is in use; the command that reads the copy
inherits the lock. If the daemon is killed, the copy stays. made() and sweep()
remove the directories that nobody has locked.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import os
import secrets
import stat
from typing import BinaryIO
from typing import NamedTuple

from os_acc import exception
from os_acc.bitstreams import file as bitstream_file
from os_acc.bitstreams import options as bitstream_opts
from os_acc.privileged import arguments
from os_acc.privileged import offers
from os_acc.privileged import root_folder

#: Only root can write in it. Root creates it. It is not an option, because a
#: caller must not choose it. It is not in /run, which is in memory.
DIRECTORY = '/var/lib/os-acc-images'

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Copy(NamedTuple):
    """A copy of an image.

    :ivar path: its path
    :ivar lock: the file descriptor of its locked directory, for the command
        that uses the copy
    """

    path: str
    lock: int


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[str, BinaryIO]]:
    """Open an image that lies in one of the allowed directories, or in the
    cache.

    :returns: its real path, and the open file
    :raises BitstreamError: if it is in none of them, or cannot be opened
    """
    if not isinstance(path, str):
        arguments.refuse('path', path, 'the path of a bitstream')
    conf = offers.configuration()
    directories = list(conf[bitstream_opts.GROUP].allowed_folders)
    cache = bitstream_opts.cache_path(conf).rstrip('/')
    # The unprivileged user could replace the directory by a link to any other.
    if not os.path.islink(cache):
        directories.append(cache)
    with bitstream_file.opened(
        path, directories, bitstream_opts.max_bytes(conf)
    ) as found:
        yield found


@contextlib.contextmanager
def made(file: BinaryIO, name: str, digest: str) -> Iterator[Copy]:
    """Make a copy that only root can read; remove it afterwards.

    :param name: the copy's name. Some tools look at its extension
    """
    sweep()
    with contextlib.ExitStack() as stack:
        top = root_folder.open_at(DIRECTORY)
        stack.callback(os.close, top)
        own, lock = _new_directory(top)
        stack.callback(os.close, lock)
        stack.callback(_remove, top, own, lock)
        _copy(file, name, digest, lock)
        yield Copy(f'{DIRECTORY}/{own}/{name}', lock)


def sweep() -> bool:
    """Remove the copies that nobody uses.

    :returns: whether none is left
    """
    if not os.path.lexists(DIRECTORY):
        return True
    top = root_folder.open_at(DIRECTORY)
    try:
        with _locked(top):
            names = os.listdir(top)
            return not [name for name in names if not _sweep_one(top, name)]
    finally:
        os.close(top)


def _sweep_one(top: int, name: str) -> bool:
    try:
        fd = os.open(name, _OPEN, dir_fd=top)
    except OSError:  # no directory, so no copy; or its user has removed it
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(top, name, fd)
        return True
    except BlockingIOError:
        return False  # it is in use
    finally:
        os.close(fd)


def _new_directory(top: int) -> tuple[str, int]:
    """Make a locked directory."""
    name = secrets.token_hex(16)
    # Under the lock of sweep(): it must not remove a directory that is new.
    with _locked(top):
        os.mkdir(name, stat.S_IRWXU, dir_fd=top)
        fd = os.open(name, _OPEN, dir_fd=top)
        fcntl.flock(fd, fcntl.LOCK_EX)
    return name, fd


def _copy(file: BinaryIO, name: str, digest: str, directory: int) -> None:
    most = bitstream_opts.max_bytes(offers.configuration())
    try:
        fd = os.open(
            name,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
            stat.S_IRUSR,
            dir_fd=directory,
        )
        with open(fd, 'wb') as copy:
            found = bitstream_file.of_file(file, name, most, copy=copy)
    except OSError as err:
        if err.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise exception.BitstreamError(
            bitstream=name,
            reason=f'it cannot be copied to {DIRECTORY}: {err.strerror}',
        ) from err
    if found['sha256'] != digest:
        raise exception.BitstreamError(
            bitstream=name,
            # Do not tell the caller the checksum of a file that it may not be
            # allowed to read.
            reason=f'it was changed: its sha256 is not {digest}',
        )


def _remove(top: int, name: str, fd: int) -> None:
    """Remove a directory and the files in it; what is gone is ignored."""
    with contextlib.suppress(FileNotFoundError):
        for each in os.listdir(fd):
            os.unlink(each, dir_fd=fd)
        os.rmdir(name, dir_fd=top)


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[None]:
    # It is held only for a moment, and only root can open the directory.
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
