# SPDX-License-Identifier: Apache-2.0

"""A lock that keeps privileged operations on one device apart.

A caller's locks are gone when the caller dies, but what the privileged half
does for it may go on. Each such operation therefore holds a lock of its own
until it has ended, and the next operation on the device waits for it.

The lock is a file that only root can open, see root_folder.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import errno
import os
from typing import TypeVar

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.privileged import root_folder

_DIRECTORY = 'locks'

_T = TypeVar('_T')


def held(path: str, seconds: float) -> contextlib.AbstractContextManager[int]:
    """Hold the lock of a device: flock(2) on a file with the device's name.

    :param seconds: how long to wait for the lock. Give less than the whole
        operation may take, so that the error names what it waited for.
    :returns: a file descriptor that stands for the lock, for at_most()
    :raises Timeout: if another operation on the device does not end
    """
    if not os.path.isdir(path):
        raise exception.DeviceNotFound(
            wanted=path, reason=os.strerror(errno.ENOENT)
        )
    return named(os.path.basename(path), seconds)


def named(name: str, seconds: float) -> contextlib.AbstractContextManager[int]:
    """Hold the lock of a device that need not be in sysfs. See held().

    The file stays until the host is rebooted. So look first whether there is
    such a device: a caller could name more and more of them.

    :param name: without slashes, such as the world wide name of a namespace
    """
    return root_folder.locked(_DIRECTORY, name, seconds)


def was_named(name: str) -> bool:
    """Whether an operation has held such a lock in this boot.

    If none has, and there is no note, there is nothing to undo.
    """
    path = f'{root_folder.PATH}/{_DIRECTORY}/{root_folder.check_name(name)}'
    return os.path.lexists(path)


def within(
    lock: Callable[[float], contextlib.AbstractContextManager[int]],
    seconds: float,
    what: str,
    act: Callable[[waiting.Deadline], _T],
) -> _T:
    """Take a lock and run an act that may block. See waiting.at_most().

    :param seconds: for both
    """
    deadline = waiting.Deadline(seconds)

    def run() -> _T:
        with lock(deadline.left(0.5)):
            return act(deadline)

    return waiting.at_most(run, seconds, what)


def at_most(lock: int, act: Callable[[], _T], seconds: float, what: str) -> _T:
    """Do waiting.at_most() for an act that keeps a lock until it ends.

    :param lock: the file descriptor that held() gave
    """
    # flock(2) belongs to the open file: it lasts until the last descriptor
    # is closed.
    fd = os.dup(lock)

    def run() -> _T:
        try:
            return act()
        finally:
            os.close(fd)

    return waiting.at_most(run, seconds, what)
