# SPDX-License-Identifier: Apache-2.0

"""The open files of the processes of this host: proc(5), /proc/pid/fd.

/proc/PID/fd shows the table of file descriptors of the main thread. It is
empty when the main thread has ended and other threads go on, and it lacks the
files of a thread that has a table of its own after unshare(CLONE_FILES). So
every different table of the threads of a process is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import ctypes
import dataclasses
import errno
import os
import platform

from os_acc import exception
from os_acc.kernel import sysfs

# The number of the system call kcmp(2), by machine: the tables of the kernel,
# arch/*/kernel/syscalls/*.tbl and include/uapi/asm-generic/unistd.h.
_KCMP = {
    'x86_64': 312,
    'aarch64': 272,
    'riscv64': 272,
    'loongarch64': 272,
    'ppc64le': 354,
    's390x': 343,
}.get(platform.machine())

# include/uapi/linux/kcmp.h: compares the tables of file descriptors
_KCMP_FILES = 2

_LIBC = ctypes.CDLL(None)


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """One open file of a process."""

    task: str  # the directory of the process or thread in /proc
    number: str  # of the file descriptor

    @property
    def path(self) -> str:
        """The link to the open file itself; stat() follows it."""
        return f'{self.task}/fd/{self.number}'

    @property
    def text(self) -> str | None:
        """What the link shows, such as '/dev/vfio/12' or 'socket:[4711]'.

        None if its path is longer than the kernel shows (one page, d_path() in
        fs/d_path.c). FileNotFoundError if it has been closed.
        """
        try:
            return os.readlink(self.path)
        except OSError as err:
            if err.errno == errno.ENAMETOOLONG:
                return None
            # A process that has just ended gives ENOENT or ESRCH, and
            # EACCES in older kernels: proc_pid_readlink() in fs/proc/base.c.
            if not os.path.exists(self.task):
                raise FileNotFoundError(
                    errno.ENOENT, os.strerror(errno.ENOENT), self.path
                ) from err
            if isinstance(err, PermissionError):
                raise _unreadable(self.path) from err
            raise

    def info(self) -> list[str]:
        """The lines of /proc/PID/fdinfo/NUMBER; empty if it is closed."""
        text = sysfs.read(f'{self.task}/fdinfo/{self.number}') or ''
        return text.splitlines()


def processes() -> list[str]:
    """The ids of all processes that this process sees."""
    return [pid for pid in sysfs.names(sysfs.PROC) if pid.isdigit()]


def of_process(pid: str) -> Iterator[Descriptor]:
    """The open files of all threads of a process."""
    try:
        for task in _tables(pid):
            # The process, or the thread, may end meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for number in os.listdir(f'{task}/fd'):
                    with contextlib.suppress(FileNotFoundError):
                        yield Descriptor(task, number)
    except PermissionError as err:
        raise _unreadable(f'{sysfs.PROC}/{pid}/fd') from err


def _unreadable(path: str, how: str = 'open') -> exception.PrivilegeError:
    """The error for open files that this process may not see: ptrace(2)."""
    return exception.PrivilegeError(
        reason=f'{path} cannot be read, so it is unknown who has a device '
        f'{how}; "os-acc doctor" says what the privileged daemon lacks'
    )


def maps_of(pid: str) -> str:
    """The text of /proc/PID/maps, which all threads of a process share.

    That of the main thread is empty once it has ended. The text is empty for a
    process that has ended, and for a thread of the kernel.
    """
    own = f'{sysfs.PROC}/{pid}'
    tasks = [f'{own}/task/{tid}' for tid in sysfs.names(f'{own}/task')]
    for task in [own, *tasks]:
        try:
            with open(f'{task}/maps', encoding='utf-8', errors='replace') as f:
                text = f.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError as err:
            raise _unreadable(f'{task}/maps', 'mapped') from err
        if text:
            return text
    return ''


def _tables(pid: str) -> list[str]:
    """The directories in /proc of a process's tasks whose tables differ."""
    own = f'{sysfs.PROC}/{pid}'
    tids = [tid for tid in sysfs.names(f'{own}/task') if tid != pid]
    if not tids:
        return [own]
    return [
        own if tid == pid else f'{own}/task/{tid}'
        for tid in _different([pid, *tids])
    ]


def _different(tids: Iterable[str]) -> list[str]:
    """Leave out the threads that share the table of an earlier one.

    kcmp() orders the tables, so that many threads with a table of their own
    take n log n comparisons.
    """
    found: list[str] = []
    for tid in tids:
        low, high = 0, len(found)
        while low < high:
            middle = (low + high) // 2
            order = _compare(tid, found[middle])
            if order == 0:
                break
            if order == 1:
                high = middle
            else:
                low = middle + 1
        else:
            found.insert(low, tid)
    return found


def _compare(one: str, other: str) -> int:
    """Compare the tables of two threads, as kcmp(2) does.

    :returns: 0 if they share one; 1 or 2 for less or greater; -1 if unknown
        (a thread has ended, or the kernel has no kcmp), so that the table is
        read
    """
    if _KCMP is None:
        return -1
    arguments = (_KCMP, int(one), int(other), _KCMP_FILES, 0, 0)
    result: int = _LIBC.syscall(*map(ctypes.c_long, arguments))
    return result


def state_and_start(stat: str) -> tuple[str, str]:
    """The state, a letter, and the start, in ticks since the boot: proc(5).

    :param stat: the text of /proc/PID/stat
    """
    # The name of the program, in parentheses, may have any character.
    fields = stat.rpartition(')')[2].split()
    return fields[0], fields[19]
