# SPDX-License-Identifier: Apache-2.0

"""Small files of the privileged half, one for each device, by its name."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import os

from os_acc import exception
from os_acc.privileged import root_folder

_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC


class RootFiles:
    """The files of one directory, see root_folder.

    A file is replaced in one step.

    :param path: gives the directory's path, for errors
    :param opened: opens the directory, and makes it if it does not exist;
        gives a file descriptor, which is closed here
    :param durable: whether the files must survive a loss of power
    :param mode: of the files
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
        """The names of all files; empty if the directory does not exist.

        :raises PrivilegeError: if the directory cannot be trusted or read
        """
        if not os.path.lexists(self._path()):
            return []
        with self._opened('') as directory:
            found = os.listdir(directory)
        return sorted(each for each in found if not each.endswith('.new'))

    def read(self, name: str) -> str | None:
        """Read a file; None if it does not exist.

        :raises PrivilegeError: if it cannot be read
        """
        root_folder.check_name(name)
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
        """Write a file.

        :raises PrivilegeError: if it cannot be written
        """
        root_folder.check_name(name)
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
        """Delete a file, if it exists, and what a write() has left of it.

        :raises PrivilegeError: if it cannot be deleted
        """
        root_folder.check_name(name)
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
