# SPDX-License-Identifier: Apache-2.0

"""The directory of the privileged half: its locks, and its record of its work.

Only root may read or change what is in it. A user who could open a lock file
could hold the lock, and stop all operations on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import fcntl
import os
import re
import stat
import time

from os_acc import exception

#: Root creates it. Like the state of the kernel's devices, it is gone after a
#: reboot of the host. It is not an option, because a caller must not choose
#: it.
PATH = '/run/os-acc'

_NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.:+@=-]{0,254}')
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(name: str) -> int:
    """Open a directory below PATH. It and PATH are made if they do not exist.

    :returns: a file descriptor, which the caller closes
    :raises PrivilegeError: if one of the two is a link or not a directory,
        belongs to another user, or can be written by others
    """
    top = _open(PATH, None)
    try:
        return _open(name, top)
    finally:
        os.close(top)


def open_at(path: str, mode: int = 0o700) -> int:
    """Open another directory that only root may write to, as open_directory().

    It is made if it does not exist. The directories above it must exist, and
    only root may be able to write to them: they are not checked.
    """
    return _open(path, None, mode)


def open_file(directory: str, name: str) -> int:
    """Open a file in a directory below PATH, and make it if needed."""
    parent = open_directory(directory)
    try:
        return os.open(
            check_name(name),
            os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=parent,
        )
    except OSError as err:
        raise _refused(
            f'{PATH}/{directory}/{name}', str(err.strerror)
        ) from err
    finally:
        os.close(parent)


@contextlib.contextmanager
def locked(
    directory: str, name: str, seconds: float, how: int = fcntl.LOCK_EX
) -> Iterator[int]:
    """Hold a lock, flock(2), on a file in one of root's directories.

    :returns: its file descriptor. The lock lasts until the last copy of it is
        closed
    :raises Timeout: if somebody else does not release the lock in time
    """
    fd = open_file(directory, name)
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                break
            except BlockingIOError as err:
                if time.monotonic() >= deadline:
                    raise exception.Timeout(
                        what=f'an earlier operation on {name} to end',
                        seconds=seconds,
                    ) from err
            time.sleep(0.01)
        yield fd
    finally:
        os.close(fd)


def check() -> None:
    """Check PATH, and make nothing, for ``os-acc doctor``."""
    if os.path.lexists(PATH):
        os.close(_open(PATH, None))


def check_name(name: str) -> str:
    """Check that a text names a file, not a path."""
    if not _NAME.fullmatch(name):
        raise exception.InvalidRequest(
            subject='privileged call',
            field='name',
            value=name,
            expected="the name of a device, such as '0000:3b:00.0'",
        )
    return name


def _open(name: str, parent: int | None, mode: int = 0o700) -> int:
    path = name if parent is None else f'{PATH}/{name}'
    try:
        with contextlib.suppress(FileExistsError):
            # oslo.privsep sets the umask to 0.
            os.mkdir(name, mode, dir_fd=parent)
        fd = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as err:
        raise _refused(path, str(err.strerror)) from err
    status = os.fstat(fd)
    reason = None
    if status.st_uid != os.geteuid():
        reason = f'it belongs to user id {status.st_uid}'
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = 'users other than its owner can write to it'
    if reason is not None:
        os.close(fd)
        raise _refused(path, reason)
    return fd


def _refused(path: str, reason: str) -> exception.PrivilegeError:
    return exception.PrivilegeError(
        reason=f'{path}: {reason}. It must be a directory or file that only '
        f'user id {os.geteuid()} can write to; os-acc creates it if it does '
        'not exist'
    )


# Small files of the privileged half, one for each device, by its name.


_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC


class RootFiles:
    """The files of one directory, see root_folder.

    A file is replaced in one step.

    :param opened: opens the directory, and makes it if it does not exist;
        returns a file descriptor, which is closed here
    :param durable: whether the files must survive a loss of power
    """

    def __init__(
        self,
        path: Callable[[], str],
        opened: Callable[[], int],
        durable: bool,
        mode: int = 0o600,
    ) -> None:
        self._path = path
        self._open = opened
        self._durable = durable
        self._mode = mode

    def path(self, name: str) -> str:
        """The path of a file, for errors."""
        return f'{self._path()}/{name}'

    def names(self) -> list[str]:
        """The names of all files; empty if the directory does not exist."""
        if not os.path.lexists(self._path()):
            return []
        with self._opened('') as directory:
            found = os.listdir(directory)
        return sorted(each for each in found if not each.endswith('.new'))

    def read(self, name: str) -> str | None:
        """Read a file; None if it does not exist."""
        check_name(name)
        if not os.path.lexists(self._path()):
            return None
        with self._opened(name) as directory:
            try:
                fd = os.open(name, os.O_RDONLY | _SAFE, dir_fd=directory)
            except FileNotFoundError:
                return None
            with open(fd, encoding='utf-8', errors='replace') as file:
                return file.read()

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        check_name(name)
        new = f'{name}.new'
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFE
        with self._opened(name) as directory:
            fd = os.open(new, flags, self._mode, dir_fd=directory)
            with open(fd, 'w', encoding='utf-8') as file:
                file.write(text)
                os.fchmod(fd, self._mode)
                file.flush()
                if self._durable:
                    os.fsync(fd)
            os.replace(new, name, src_dir_fd=directory, dst_dir_fd=directory)
            self._sync(directory)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists, and what a write() has left of it."""
        check_name(name)
        if not os.path.lexists(self._path()):
            return
        with self._opened(name) as directory:
            for each in (f'{name}.new', name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(each, dir_fd=directory)
                    self._sync(directory)

    def _sync(self, directory: int) -> None:
        if self._durable:
            os.fsync(directory)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        directory = self._open()
        try:
            yield directory
        except OSError as err:
            raise exception.PrivilegeError(
                reason=f'{self.path(name)}: {exception.describe(err)}'
            ) from err
        finally:
            os.close(directory)
