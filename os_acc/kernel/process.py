# SPDX-License-Identifier: Apache-2.0

"""The identity of a process, and whether the process has ended."""

from __future__ import annotations

import os

from os_acc.kernel import descriptors
from os_acc.kernel import sysfs

_PROC = '/proc'


def identity(pid: int) -> str:
    """A text that identifies a process of this PID namespace.

    Process ids are reused. So the text also has the boot of the host, the PID
    namespace, and the time at which the process was started, in clock ticks
    since the boot (proc(5), /proc/PID/stat, field 22).
    """
    _, start = _state_and_start(pid)
    return '/'.join([sysfs.boot_id(), _namespace(), str(pid), start])


def has_ended(text: str) -> bool:
    """Whether the process that identity() has named has certainly ended.

    Also False if that cannot be seen from here: the process is in another PID
    namespace, or the text was not made by identity().
    """
    parts = text.split('/')
    if len(parts) != 4 or not parts[2].isdecimal():
        return False
    boot_id, namespace, pid, start = parts
    if boot_id != sysfs.boot_id():
        return True
    if namespace != _namespace():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass  # it exists, or nobody can tell
    try:
        state, now = _state_and_start(int(pid))
        # A process whose first thread has ended is a zombie with tasks.
        tasks = len(os.listdir(f'{_PROC}/{pid}/task'))
    except OSError:
        # /proc may hide the processes of other users (hidepid, proc(5)).
        return False
    return now != start or (state in 'ZX' and tasks <= 1)


def _state_and_start(pid: int) -> tuple[str, str]:
    with open(f'{_PROC}/{pid}/stat', encoding='utf-8') as file:
        return descriptors.state_and_start(file.read())


def _namespace() -> str:
    return str(os.stat(f'{_PROC}/self/ns/pid').st_ino)
