# SPDX-License-Identifier: Apache-2.0

"""Device files and the device numbers behind them.

The number identifies a device, its path does not: libvirt deletes the file in
QEMU's private /dev before QEMU has closed it, and a container may show the
device under any other path.
"""

from __future__ import annotations

from collections.abc import Iterable
import ctypes
import dataclasses
import os
import stat
import struct
from typing import NamedTuple

from os_acc.kernel import sysfs

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
