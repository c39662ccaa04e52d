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

from os_acc.spec import trust
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

    :param directory: empty: there is none
    :returns: nothing if the directory does not exist
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
        trust.check_directory(directory)
    found = []
    for name in names:
        if name.endswith('.json') and not name.startswith('.'):
            path = os.path.join(directory, name)
            text = read(path)
            if text is not None:
                found.append(File(path, text))
    return found


def read(path: str) -> str | None:
    """Read a file of the directory; None if it does not exist.

    :raises InvalidRequest: as read_all()
    """
    real = os.path.realpath(path)
    if os.path.islink(path):
        trust.check_above(real)
    try:
        # O_NONBLOCK: a named pipe must not block the call.
        fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, 'rb') as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                trust.refuse(
                    path, 'type', stat.filemode(found.st_mode), 'a file'
                )
            trust.check(path, found)
            return documents.text_of(file.read())
    except FileNotFoundError:
        return None
    except OSError as err:
        _unreadable(path, err)
    except ValueError as err:
        trust.refuse(path, 'encoding', str(err), 'UTF-8')


def _unreadable(path: str, err: OSError) -> NoReturn:
    trust.refuse(path, 'access', err.strerror or str(err), 'a readable file')
