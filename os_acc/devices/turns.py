# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""One at a time on a device, whoever is at it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import errno
import fcntl
import os
import time
from typing import TypeVar

from os_acc import exception

_T = TypeVar('_T')


@contextlib.contextmanager
def on(path: str, seconds: float) -> Iterator[int]:
    """Hold the folder of a device while it is changed.

    The caller's locks die with the caller. What acts for it as root may live
    longer: it holds the folder itself, flock(2), so that whoever comes next
    waits until that act has come to its end.

    :param path: a folder of sysfs
    :param seconds: how long to wait for it; less than the whole act may take,
        so that the error says what it was that kept it waiting
    :returns: the turn, for keep()
    :raises DeviceNotFound: it is not there
    :raises Timeout: another act on the device does not end
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise exception.DeviceNotFound(
            wanted=path, reason=err.strerror
        ) from err
    try:
        _lock(fd, path, seconds)
        yield fd
    finally:
        os.close(fd)


def keep(turn: int, act: Callable[[], _T]) -> Callable[[], _T]:
    """Make an act keep the turn until it ends, if its caller does not wait.

    :param turn: what on() gave
    """
    # flock(2) is the open file's: it ends with the last of its numbers.
    fd = os.dup(turn)

    def run() -> _T:
        try:
            return act()
        finally:
            os.close(fd)

    return run


def _lock(fd: int, path: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as err:
            if err.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() >= deadline:
            raise exception.Timeout(
                what=f'an earlier act on {os.path.basename(path)} to end',
                seconds=seconds,
            )
        time.sleep(0.01)
