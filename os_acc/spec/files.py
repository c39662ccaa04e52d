# SPDX-License-Identifier: Apache-2.0

"""The folder [os_acc] device_spec_dir: JSON files that add to device_spec.

A file is read only if nobody but root, or the user of this process, can have
written it. The privileged daemon runs as root, so it reads only files of root.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from typing import NoReturn

from os_acc import exception
from os_acc.spec import trust
from os_acc.state import atomic_file
from os_acc.texts import documents


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the folder.

    :ivar text: JSON: an entry of device_spec, or a list of entries
    """

    path: str
    text: str


def read_all(folder: str) -> list[File]:
    """Read the files ``*.json`` of the folder, in the order of their names.

    :param folder: empty: there is none
    :returns: nothing if the folder does not exist
    :raises InvalidRequest: if the folder or a file cannot be read, or another
        user could have written it
    """
    try:
        names = sorted(os.listdir(folder)) if folder else []
    except FileNotFoundError:
        return []
    except OSError as err:
        _unreadable(folder, err)
    if folder:
        trust.check_folder(folder)
    found = []
    for name in names:
        if name.endswith('.json') and not name.startswith('.'):
            path = os.path.join(folder, name)
            text = _read(path)
            if text is not None:
                found.append(File(path, text))
    return found


def _read(path: str) -> str | None:
    """Read a file of the folder; None if it was removed meanwhile."""
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


def path_of(folder: str, name: str) -> str:
    """The file that ``os-acc device allow`` and ``deny`` write for a device.

    :param name: a PCI address in its canonical form, or the name of a parent
        of mediated devices: without slashes
    """
    return os.path.join(folder, f'50-os-acc-{name}.json')


def text_of(path: str) -> str | None:
    """The text of a file of the folder; None if it does not exist.

    :raises InvalidRequest: as read_all()
    """
    return _read(path)


def write(path: str, text: str) -> None:
    """Write a file, atomically. See path_of() and device_spec.add().

    The folder is made if it does not exist.

    :raises PrivilegeError: if it cannot be written
    """
    try:
        atomic_file.write(path, text, 0o644, 0o755)
    except OSError as err:
        raise _unwritable(path, err) from err


def remove(path: str) -> bool:
    """Remove a file that write() has made.

    :returns: False if it does not exist
    :raises PrivilegeError: if it cannot be removed
    """
    try:
        return atomic_file.remove(path)
    except OSError as err:
        raise _unwritable(path, err) from err


def _unwritable(path: str, err: OSError) -> exception.PrivilegeError:
    return exception.PrivilegeError(
        reason=f'{path} cannot be changed: {err.strerror}. Run the command as '
        'root'
    )


def _unreadable(path: str, err: OSError) -> NoReturn:
    trust.refuse(path, 'access', err.strerror or str(err), 'a readable file')
