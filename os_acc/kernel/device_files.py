# SPDX-License-Identifier: Apache-2.0

"""Device files: path, type, numbers, owner and mode, without privilege.

A path is that of the host's /dev, such as /dev/dri/renderD128. No link is
followed when a file is opened: resolve() finds what a link stands for first.
Nothing here opens a file for reading or writing, so looking at a device never
wakes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import ctypes
import dataclasses
import errno
import glob
import os
import re
import stat
import struct
from typing import NamedTuple

from os_acc import exception
from os_acc.kernel import sysfs
from os_acc.texts import forms

DIRECTORY = '/dev'

#: The bits of a mode that chmod(1) sets.
PERMISSIONS = 0o7777

_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Status(NamedTuple):
    """What fstat(2) says of a file."""

    number: Number | None  # None if it is not a device file
    uid: int
    gid: int
    mode: int  # the permissions only
    inode: int  # a different file at the same path has a different one


@dataclasses.dataclass(frozen=True)
class Node:
    """A device file, below /dev and without links, as it was looked at."""

    path: str
    number: Number
    uid: int
    gid: int
    mode: int
    inode: int

    @property
    def file(self) -> DeviceFile:
        """Path and number, as open_files takes them."""
        return DeviceFile(self.path, self.number)


def check_path(path: str) -> str:
    """Check that a text is a path below /dev in its normal form."""
    if _is_below(path):
        return path
    raise exception.InvalidRequest(
        subject='device file',
        field='path',
        value=path,
        expected='a path below /dev without ".", "..", blanks, quotes or '
        'backslashes',
    )


def _is_below(path: object) -> bool:
    return forms.is_device_path(path) and str(path).startswith(f'{DIRECTORY}/')


def real_path(path: str) -> str:
    """The path to use with the kernel, for a path below /dev."""
    return sysfs.DEV + check_path(path).removeprefix(DIRECTORY)


def shown(path: str) -> str:
    """The path below /dev, for a path that real_path() gives."""
    return DIRECTORY + path.removeprefix(sysfs.DEV)


def resolve(path: str) -> str | None:
    """Follow the links of a path, such as /dev/dri/by-path/...-render.

    None: there is no such file, or it is outside /dev.
    """
    top = os.path.realpath(sysfs.DEV)
    found = os.path.realpath(real_path(path))
    if not found.startswith(f'{top}/') or not os.path.lexists(found):
        return None
    there = DIRECTORY + found.removeprefix(top)
    return there if _is_below(there) else None


def expand(pattern: str) -> list[str]:
    """Find the files that a glob names, links resolved, sorted by name.

    A link does not count in a directory that other users than root can write
    in, such as /dev/shm: they could name any device by it. The files found
    need not be device files.

    :param pattern: a path below /dev with ``*``, ``?`` and ``[...]``
    """
    wanted = glob.escape(sysfs.DEV) + pattern.removeprefix(DIRECTORY)
    found = []
    for each in sorted(glob.glob(wanted), key=_natural):
        path = DIRECTORY + each.removeprefix(sysfs.DEV)
        if not _is_below(path):
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

    The directories above it are opened one by one. None may be a link, and no
    user other than root may write in one. If the file is a link, the file
    descriptor is that of the link.
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
    kind = KINDS.get(stat.S_IFMT(found.st_mode))
    major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
    number = Number(kind, major, minor) if kind else None
    mode = found.st_mode & PERMISSIONS
    return Status(number, found.st_uid, found.st_gid, mode, found.st_ino)


def node_of(path: str, fd: int) -> Node:
    """Examine a device file that opened() has opened."""
    found = status(fd)
    if found.number is None:
        raise exception.DeviceNotFound(
            wanted=f'device file {path}', reason='it is not a device file'
        )
    return Node(path, found.number, *found[1:])


def look(path: str) -> Node | None:
    """Look at a device file; None: there is none, or it is another file."""
    try:
        with opened(path) as fd:
            return node_of(path, fd)
    except (FileNotFoundError, exception.DeviceNotFound):
        return None


def get(path: str) -> Node:
    """Look at a device file that must be there."""
    found = look(path)
    if found is None:
        raise exception.DeviceNotFound(
            wanted=f'device file {path}',
            reason='this host has no such device file',
        )
    return found


# Device files and the device numbers behind them.
#
# The number identifies a device, its path does not: libvirt deletes the file
# in QEMU's private /dev before QEMU has closed it, and a container may show
# the device under any other path.


# include/uapi/linux/fcntl.h and stat.h
_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE = 0x1
# The fields stx_mode, stx_rdev_major and stx_rdev_minor of struct statx.
_STATX_SIZE = 256
_STATX_FIELDS = struct.Struct('=28xH98xII')

#: By the type of a file: as Number.kind.
KINDS = {stat.S_IFCHR: 'c', stat.S_IFBLK: 'b'}

_LIBC = ctypes.CDLL(None)


class Number(NamedTuple):
    """A device number."""

    kind: str  # 'c' for a character device, 'b' for a block device
    major: int
    minor: int


#: The number of no device, since no driver has the major number 0:
#: Documentation/admin-guide/devices.txt in the kernel.
NO_DEVICE = Number('c', 0, 0)


@dataclasses.dataclass(frozen=True)
class DeviceFile:
    """A device file of this host, such as /dev/vfio/12."""

    path: str
    number: Number


def read(path: str, directory: str, kind: str = 'c') -> DeviceFile | None:
    """Read the number of a device file from sysfs; None: the device is gone.

    :param path: of the device file; it need not exist in this /dev
    :param directory: the device's, with the file dev
    """
    text = sysfs.read(f'{directory}/dev')
    return None if text is None else DeviceFile(path, parse(text, kind))


def text(number: Number) -> str:
    """A device number as os_acc.claims and errors have it: 'c 226:0'."""
    return f'{number.kind} {number.major}:{number.minor}'


def texts(numbers: Iterable[Number]) -> tuple[str, ...]:
    """Device numbers as text() writes them."""
    return tuple(map(text, numbers))


def parse(text: str, kind: str = 'c') -> Number:
    """Parse a number as sysfs writes it, such as '244:3'."""
    major, _, minor = text.partition(':')
    return Number(kind, int(major), int(minor))


def number_of(path: str, follow: bool = True) -> Number | None:
    """The number of a device file; None: it is none, or cannot be read.

    This uses statx() and not stat(), because a stat() of a file on a network
    file system waits as long as its server does not answer.
    """
    found = _statx(path, follow)
    if found is None:
        return None
    mode, major, minor = _STATX_FIELDS.unpack_from(found)
    kind = KINDS.get(stat.S_IFMT(mode))
    return None if kind is None else Number(kind, major, minor)


def exists(path: str) -> bool:
    """Whether a file is there. See number_of() on how this is found."""
    return _statx(path, True) is not None


def _statx(path: str, follow: bool) -> ctypes.Array[ctypes.c_char] | None:
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    failed = _LIBC.statx(
        _AT_FDCWD,
        os.fsencode(path),
        _AT_STATX_DONT_SYNC | (0 if follow else _AT_SYMLINK_NOFOLLOW),
        _STATX_TYPE,
        buffer,
    )
    return None if failed else buffer
