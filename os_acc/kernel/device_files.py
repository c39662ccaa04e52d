# SPDX-License-Identifier: Apache-2.0

"""Looking at device files: type, numbers, owner and mode, without privilege.

A path is that of the host's /dev, such as /dev/dri/renderD128. No link is
followed when a file is opened: resolve() finds what a link stands for first.
Nothing here opens a file for reading or writing, so looking at a device never
wakes it.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import errno
import glob
import os
import posixpath
import re
import stat
from typing import NamedTuple

from os_acc import exception
from os_acc.kernel import device_file
from os_acc.kernel import sysfs

DIRECTORY = '/dev'

#: The bits of a mode that chmod(1) sets.
PERMISSIONS = 0o7777

_KINDS = {stat.S_IFCHR: 'c', stat.S_IFBLK: 'b'}

# As objects.fields.DevicePath: no blanks, quotes or backslashes, ASCII only.
_PATH = re.compile(r'/dev(/[!#-.0-\[\]-~]+)+')
_LONGEST = 4096

_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Status(NamedTuple):
    """What fstat(2) says of a file.

    :ivar number: None if it is not a device file
    :ivar mode: the permissions only
    :ivar inode: a different file at the same path has a different one
    """

    number: device_file.Number | None
    uid: int
    gid: int
    mode: int
    inode: int


@dataclasses.dataclass(frozen=True)
class Node:
    """A device file as it was when it was looked at.

    :ivar path: below /dev, without links
    """

    path: str
    number: device_file.Number
    uid: int
    gid: int
    mode: int
    inode: int

    @property
    def file(self) -> device_file.DeviceFile:
        """Path and number, as open_files takes them."""
        return device_file.DeviceFile(self.path, self.number)


def check_path(path: str) -> str:
    """Check that a text is a path below /dev in its normal form.

    :raises InvalidRequest: if it is not
    """
    if (
        isinstance(path, str)
        and len(path) <= _LONGEST
        and _PATH.fullmatch(path)
        and posixpath.normpath(path) == path
    ):
        return path
    raise exception.InvalidRequest(
        subject='device file',
        field='path',
        value=path,
        expected='a path below /dev without ".", "..", blanks, quotes or '
        'backslashes',
    )


def real_path(path: str) -> str:
    """The path to use with the kernel, for a path below /dev."""
    return sysfs.DEV + check_path(path).removeprefix(DIRECTORY)


def shown(path: str) -> str:
    """The path below /dev, for a path that real_path() gives."""
    return DIRECTORY + path.removeprefix(sysfs.DEV)


def resolve(path: str) -> str | None:
    """Follow the links of a path, such as /dev/dri/by-path/...-render.

    :returns: the path without links; None if there is no such file, or it is
        outside /dev
    """
    top = os.path.realpath(sysfs.DEV)
    found = os.path.realpath(real_path(path))
    if not found.startswith(f'{top}/') or not os.path.lexists(found):
        return None
    there = DIRECTORY + found.removeprefix(top)
    return there if _PATH.fullmatch(there) else None


def expand(pattern: str) -> list[str]:
    """Find the files that a glob names, links resolved, sorted by name.

    A link does not count in a directory that other users than root can write
    in, such as /dev/shm: they could name any device by it.

    :param pattern: a path below /dev with ``*``, ``?`` and ``[...]``
    :returns: paths without links, each once; they need not be device files
    """
    wanted = glob.escape(sysfs.DEV) + pattern.removeprefix(DIRECTORY)
    found = []
    for each in sorted(glob.glob(wanted), key=_natural):
        path = DIRECTORY + each.removeprefix(sysfs.DEV)
        if not _PATH.fullmatch(path):
            continue
        there = resolve(path)
        if there is not None and (
            there == path or not _others_can_write_above(each)
        ):
            found.append(there)
    return list(dict.fromkeys(found))


def _others_can_write_above(path: str) -> bool:
    """Whether users other than root can write in a directory above a file."""
    above = os.path.dirname(path)
    while above.startswith(f'{sysfs.DEV}/'):
        try:
            if _others_can_write(os.stat(above)):
                return True
        except OSError:
            return True
        above = os.path.dirname(above)
    return False


def _others_can_write(directory: os.stat_result) -> bool:
    return directory.st_uid not in (0, os.geteuid()) or bool(
        directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key that puts wq0.9 before wq0.10."""
    return [
        (int(part) if part.isdigit() else -1, part)
        for part in re.split(r'([0-9]+)', text)
    ]


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a file below /dev with O_PATH: it can be examined, not used.

    The directories above it are opened one by one, and none may be a link.

    :returns: a file descriptor; if the file is a link, that of the link
    :raises FileNotFoundError: if there is no such file
    :raises DeviceError: if a directory above it is a link, or users other than
        root can write in it
    """
    *directories, name = (
        check_path(path).removeprefix(f'{DIRECTORY}/').split('/')
    )
    with contextlib.ExitStack() as stack:
        here = _opened(stack, sysfs.DEV, None, path)
        for each in directories:
            here = _opened(stack, each, here, path)
        fd = os.open(name, _FILE_FLAGS, dir_fd=here)
        stack.callback(os.close, fd)
        yield fd


def _opened(
    stack: contextlib.ExitStack, name: str, above: int | None, path: str
) -> int:
    try:
        fd = os.open(name, _DIRECTORY_FLAGS, dir_fd=above)
    except OSError as err:
        if err.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise exception.DeviceError(
            device=path, reason=f'{name} above it is not a directory'
        ) from err
    stack.callback(os.close, fd)
    # Who can write in the directory could put another file in its place.
    if _others_can_write(os.fstat(fd)):
        raise exception.DeviceError(
            device=path,
            reason=f'users other than root can write to the directory {name} '
            'above it',
        )
    return fd


def status(fd: int) -> Status:
    """Examine a file that opened() has opened."""
    found = os.fstat(fd)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    number = None
    if kind is not None:
        number = device_file.Number(
            kind, os.major(found.st_rdev), os.minor(found.st_rdev)
        )
    return Status(
        number,
        found.st_uid,
        found.st_gid,
        found.st_mode & PERMISSIONS,
        found.st_ino,
    )


def node_of(path: str, fd: int) -> Node:
    """Examine a device file that opened() has opened.

    :raises DeviceNotFound: if it is not a device file
    """
    found = status(fd)
    if found.number is None:
        raise exception.DeviceNotFound(
            wanted=f'device file {path}', reason='it is not a device file'
        )
    return Node(path, found.number, *found[1:])


def look(path: str) -> Node | None:
    """Look at a device file.

    :returns: None if there is no such file, or it is not a device file
    """
    try:
        with opened(path) as fd:
            return node_of(path, fd)
    except (FileNotFoundError, exception.DeviceNotFound):
        return None


def get(path: str) -> Node:
    """Look at a device file. See look().

    :raises DeviceNotFound: if there is no such file, or it is not a device
        file
    """
    found = look(path)
    if found is None:
        raise exception.DeviceNotFound(
            wanted=f'device file {path}',
            reason='this host has no such device file',
        )
    return found
