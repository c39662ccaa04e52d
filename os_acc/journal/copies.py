# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A copy of a journal that sqlite cannot open where it is, for a reader.

To read a journal, sqlite makes files beside it, unless a service has made them
already. It cannot do so on a read-only file system or on a full disk, and an
operator then needs the journal most. Nor can a user who may only read it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import weakref

from os_acc import sharing
from os_acc.journal import database
from os_acc.journal import file as journal_file

_MEMORY = '/dev/shm'  # noqa: S108 (mkdtemp makes a folder of its own there)

# Attempts to copy the files while nobody writes to them.
_ATTEMPTS = 10


def reason(path: str, err: BaseException) -> str | None:
    """Say why a journal has to be copied to be read.

    :param path: of the journal
    :param err: the error of reading it
    :returns: None if it is no error of sqlite, or has another reason
    """
    found: BaseException | None = err
    while found is not None and not isinstance(found, sqlite3.Error):
        found = found.__cause__
    if found is None:
        return None
    folder = os.path.dirname(path)
    if (text := sharing.read_only(folder)) is not None:
        return text
    if (text := database.full(folder)) is not None:
        return text
    return sharing.may_only_read(folder, path)


class Copy:
    """A copy in a folder that is removed with the object.

    :ivar state_path: the folder of the copy
    :raises OSError: if it cannot be made
    """

    def __init__(self, path: str) -> None:
        memory = os.access(_MEMORY, os.W_OK)
        self.state_path = tempfile.mkdtemp(
            prefix='os-acc-journal-', dir=_MEMORY if memory else None
        )
        self._end = weakref.finalize(
            self, _remove, self.state_path, os.getpid()
        )
        new = journal_file.path_in(self.state_path)
        for _ in range(_ATTEMPTS):
            before = _state(path)
            for end in ('', '-wal'):
                if os.path.exists(path + end):
                    shutil.copyfile(path + end, new + end)
            if _state(path) == before:
                break

    def remove(self) -> None:
        """Remove the copy."""
        self._end()


def _state(path: str) -> list[tuple[int, int] | None]:
    """What changes if somebody writes to the files."""
    found: list[tuple[int, int] | None] = []
    for end in ('', '-wal'):
        try:
            stat = os.stat(path + end)
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((stat.st_size, stat.st_mtime_ns))
    return found


def _remove(folder: str, pid: int) -> None:
    # A forked child must leave it to its parent.
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
