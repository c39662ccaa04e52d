# SPDX-License-Identifier: Apache-2.0

"""Child processes of a test, each of which uses os-acc."""

from __future__ import annotations

from collections.abc import Callable
import os
import signal
import sys
import threading
import traceback

#: What wait() returns for a process that SIGKILL has ended.
KILLED = -signal.SIGKILL


def _stop_coverage() -> None:
    # It would trace the child slowly, and lose the result.
    if 'coverage' in sys.modules:
        running = sys.modules['coverage'].Coverage.current()
        if running is not None:
            running.stop()
    threading.settrace(None)


def start(work: Callable[[], None]) -> int:
    """Do work in a forked child.

    :returns: its process id, for wait()
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        _stop_coverage()
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def wait(pid: int) -> int:
    """Wait for a child.

    :returns: 0: it was done; 1: it raised (its trace is on stderr); negative:
        the signal that ended it
    """
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def run(work: Callable[[], None]) -> int:
    """Do work in a forked child, and wait for it. See wait()."""
    return wait(start(work))
