# SPDX-License-Identifier: Apache-2.0

"""Reading and writing the files of sysfs, procfs and configfs.

All writes go through write().
"""

from __future__ import annotations

import errno
import os
import re

# All paths are built upon these.
SYS = '/sys'
PROC = '/proc'
DEV = '/dev'
ETC = '/etc'
LIB_MODULES = '/lib/modules'
UDEV_DATA = '/run/udev/data'

# A space, a tab, a line feed and a backslash are written in octal: proc(5).
_OCTAL = re.compile(r'\\([0-7]{3})')

# What the kernel answers if a device or a process (ESRCH) goes away while its
# files are read.
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR, errno.ESRCH)


def read(path: str) -> str | None:
    """The text of a file, without surrounding white space.

    None: the file or its device does not exist. If it cannot be read for
    another reason, this raises the OSError, as all functions here do.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as err:
        if err.errno in _GONE:
            return None
        raise
    try:
        # A file in sysfs has one page at most: sysfs.rst in the kernel's
        # Documentation/filesystems.
        data = os.read(fd, 65536)
    except OSError as err:
        if err.errno in _GONE:
            return None
        err.filename = path
        raise
    finally:
        os.close(fd)
    return data.decode('utf-8', 'replace').strip()


def read_long(path: str) -> str:
    """Read a file of procfs, which can be longer than a page; '' if none."""
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read()
    except OSError as err:
        if err.errno in _GONE:
            return ''
        err.filename = path
        raise


def read_if_possible(path: str) -> str:
    """The text of a file; empty if it is not there, or cannot be read."""
    try:
        return read(path) or ''
    except OSError:
        return ''


def read_int(path: str) -> int | None:
    """Read a number. See read()."""
    text = read(path)
    return int(text, 0) if text else None


def link(path: str) -> str | None:
    """The last component of a link's target. See target()."""
    there = target(path)
    return None if there is None else os.path.basename(there)


def target(path: str) -> str | None:
    """The target of a link; None if there is no link."""
    try:
        return os.readlink(path)
    except OSError as err:
        if err.errno in (*_GONE, errno.EINVAL):
            return None
        raise


def place(path: str) -> str:
    """The directory of a device in the tree of devices, /sys/devices.

    :param path: a link whose target has no further links, or a directory
    """
    there = target(path)
    if there is None:
        return path
    return os.path.normpath(os.path.join(os.path.dirname(path), there))


def unescaped(text: str) -> str:
    """A path from a procfs file, with its octal escapes decoded."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def names(path: str) -> list[str]:
    """The names in a directory, sorted; empty if there is no such directory.

    A device whose directory cannot be read must not count as unused.
    """
    try:
        return sorted(os.listdir(path))
    except OSError as err:
        if err.errno in _GONE:
            return []
        raise


def folders(path: str) -> list[str]:
    """As names(), but only the directories, without links to directories."""
    try:
        with os.scandir(path) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            )
    except OSError as err:
        if err.errno in _GONE:
            return []
        raise


def count_directories(path: str) -> int:
    """How many directories a directory of sysfs has, also of other namespaces.

    The number of links counts all of them (kernfs_refresh_inode() in
    fs/kernfs/inode.c), while a list leaves out what belongs to another network
    namespace. It is 0 or less if there is no such directory.
    """
    try:
        return os.stat(path).st_nlink - 2
    except OSError as err:
        if err.errno in _GONE:
            return 0
        raise


def write(path: str, text: str) -> None:
    """Write to an existing file, in one system call."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def boot_id() -> str:
    """The UUID of the current boot of the host.

    The kernel makes a new random one at each boot: drivers/char/random.c,
    proc(5).
    """
    path = os.path.join(PROC, 'sys/kernel/random/boot_id')
    with open(path, encoding='ascii') as file:
        return file.read().strip()
