# SPDX-License-Identifier: Apache-2.0

"""Small files that are written as a whole, or not at all."""

from __future__ import annotations

import os
import tempfile


def write(path: str, text: str, mode: int, directory_mode: int) -> None:
    """Write a file in one step, so that it survives a loss of power.

    Its directory, and the directories above, are made if they do not exist.
    The process's umask does not matter.

    :param directory_mode: of its directory, if it is made
    :raises OSError: if it cannot be written; nothing is left of it then
    """
    path = os.path.abspath(path)
    directory = os.path.dirname(path)
    _make(directory, directory_mode)
    # The prefix hides the file from those who read all files of the directory.
    fd, new = tempfile.mkstemp('.new', '.', directory)
    try:
        with open(fd, 'w', encoding='utf-8') as file:
            file.write(text)
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
    _sync(directory)


def remove(path: str) -> bool:
    """Remove a file.

    :returns: False if it does not exist
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    _sync(os.path.dirname(os.path.abspath(path)))
    return True


def _make(directory: str, mode: int) -> None:
    if os.path.isdir(directory):
        return
    _make(os.path.dirname(directory), 0o755)
    try:
        os.mkdir(directory)
    except FileExistsError:
        return
    os.chmod(directory, mode)


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
