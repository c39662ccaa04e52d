# SPDX-License-Identifier: Apache-2.0

"""May a file or directory be trusted: who else could have written it?

What root reads from a file must come from root. A process of another user also
trusts its own files.
"""

from __future__ import annotations

import os
import stat
from typing import NoReturn

from os_acc import exception

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def check_directory(path: str) -> None:
    """Check that only root, or this process's user, can write in a directory.

    :raises InvalidRequest: if others could, or could replace the directory
    """
    real = os.path.realpath(path)
    check(path, os.stat(real))
    check_above(real)


def check_file(path: str) -> None:
    """Check that only root, or this process's user, can write a file.

    :raises InvalidRequest: if others could, or could replace the file, or it
        cannot be read
    """
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
    except OSError as err:
        refuse(path, 'access', err.strerror, 'a readable file')
    check(path, found)
    check_above(real)


def check(path: str, found: os.stat_result, sticky: bool = False) -> None:
    """Check the owner and the mode of a file or directory.

    :param path: for the error
    :param found: its owner and mode
    :param sticky: whether others may write to it if it has the sticky bit
    :raises InvalidRequest: if another user could write to it
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
