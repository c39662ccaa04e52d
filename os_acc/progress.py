# SPDX-License-Identifier: Apache-2.0

"""Progress of plug, unplug and program_device, for the caller to show."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import logging
import threading

from os_acc import exception
from os_acc import log

LOG = logging.getLogger(__name__)

STARTED = 'started'
RUNNING = 'running'
DONE = 'done'
FAILED = 'failed'


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of one step of one VAN.

    :ivar instance_uuid: the instance; empty in the step program_device
    :ivar van_uuid: the VAN; empty in the steps program_device and bind
    :ivar step: prepareVAN, plug, postplug, unplug, unprepareVAN or
        program_device; or bind, which waits for Cyborg to bind the ARQs
    :ivar status: started, running, done or failed
    :ivar fraction: how much of the step is done, 0.0 to 1.0; None: unknown
    :ivar message: what the step is doing, or why it failed
    :ivar device: the address of the device; set only in program_device
    """

    instance_uuid: str
    van_uuid: str
    step: str
    status: str
    fraction: float | None = None
    message: str | None = None
    device: str | None = None


#: A function that takes a Progress, and returns nothing.
Callback = Callable[[Progress], None]

#: A function that takes the fraction that is done (0.0 to 1.0; None: unknown)
#: and a text that says what is being done.
Report = Callable[[float | None, str], None]


class Reporter:
    """Passes progress on to the caller's callback.

    Steps run in several threads, but only one thread at a time calls the
    callback. An error that the callback raises is logged and goes no further.

    :param callback: the caller's callback; None: progress is dropped
    """

    def __init__(self, callback: Callback | None) -> None:
        self._callback = callback
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        if self._callback is None:
            return
        with self._lock:
            try:
                self._callback(progress)
            except Exception as err:
                text = 'The progress callback failed on %s'
                log.error(LOG, err, text, progress)


@contextlib.contextmanager
def asked(
    ask: Callable[[], tuple[float | None, str] | None],
    report: Report,
    seconds: float,
) -> Iterator[None]:
    """Report what ask() returns, each time that it changes.

    For a call that blocks until the work is done: another thread calls ask().

    :param ask: returns the arguments of report(); None: nothing to report.
        If it raises an error of os-acc, nothing is reported: the call that
        does the work reports what is wrong
    :param seconds: the pause between two calls of ask()
    """
    done = threading.Event()

    def report_changes() -> None:
        last = None
        while not done.wait(seconds):
            with contextlib.suppress(exception.ExceptionBase):
                now = ask()
                if now is not None and now != last and not done.is_set():
                    report(*now)
                    last = now

    thread = threading.Thread(
        target=report_changes, name='os-acc progress', daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
