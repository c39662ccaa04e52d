# SPDX-License-Identifier: Apache-2.0

"""The directory [os_acc] device_spec_dir: JSON files that add to device_spec.

A file is read only if nobody but root, or the user of this process, can have
written it. The privileged daemon runs as root, so it reads only files of root.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from typing import NoReturn

from os_acc import exception
from os_acc.texts import documents


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the directory.

    :ivar text: JSON: an entry of device_spec, or a list of entries
    """

    path: str
    text: str


def read_all(directory: str) -> list[File]:
    """Read the files ``*.json`` of the directory, in the order of their names.

    :raises InvalidRequest: if the directory or a file cannot be read, or
        another user could have written it
    """
    try:
        names = sorted(os.listdir(directory)) if directory else []
    except FileNotFoundError:
        return []
    except OSError as err:
        _unreadable(directory, err)
    if directory:
        check_directory(directory)
    found = []
    for name in names:
        if name.endswith('.json') and not name.startswith('.'):
            path = os.path.join(directory, name)
            text = read(path)
            if text is not None:
                found.append(File(path, text))
    return found


def read(path: str) -> str | None:
    """Read a file of the directory; None if it does not exist."""
    real = os.path.realpath(path)
    if os.path.islink(path):
        check_above(real)
    try:
        # O_NONBLOCK: a named pipe must not block the call.
        fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, 'rb') as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                refuse(path, 'type', stat.filemode(found.st_mode), 'a file')
            check(path, found)
            return documents.text_of(file.read())
    except FileNotFoundError:
        return None
    except OSError as err:
        _unreadable(path, err)
    except ValueError as err:
        refuse(path, 'encoding', str(err), 'UTF-8')


def _unreadable(path: str, err: OSError) -> NoReturn:
    refuse(path, 'access', err.strerror or str(err), 'a readable file')


# May a file or directory be trusted: who else could have written it?
#
# What root reads from a file must come from root. A process of another user
# also trusts its own files.


_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def check_directory(path: str) -> None:
    """Check that only root, or this process's user, can write in it."""
    real = os.path.realpath(path)
    check(path, os.stat(real))
    check_above(real)


def check_file(path: str) -> None:
    """Check that only root, or this process's user, can write a file."""
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
    except OSError as err:
        refuse(path, 'access', err.strerror, 'a readable file')
    check(path, found)
    check_above(real)


def check(path: str, found: os.stat_result, sticky: bool = False) -> None:
    """Check the owner and the mode of a file or directory.

    :param sticky: whether others may write to it if it has the sticky bit
    """
    if found.st_uid not in (0, os.geteuid()):
        refuse(path, 'owner', f'user id {found.st_uid}', 'root')
    # In a directory with the sticky bit, such as /tmp, nobody can replace the
    # files and directories of another user: chmod(2).
    if found.st_mode & _WRITABLE and not (
        sticky and found.st_mode & stat.S_ISVTX
    ):
        refuse(
            path,
            'mode',
            stat.filemode(found.st_mode),
            'one that lets neither the group nor others write',
        )


def check_above(real: str) -> None:
    """Check the directories above a path that has no links. See check()."""
    while real != os.path.dirname(real):
        real = os.path.dirname(real)
        check(real, os.stat(real), sticky=True)


def refuse(path: str, field: str, value: object, expected: str) -> NoReturn:
    """Raise the error for a file that cannot be read or trusted."""
    raise exception.InvalidRequest(
        subject=path, field=field, value=value, expected=expected
    )
