# SPDX-License-Identifier: Apache-2.0

"""Starts the command of os-acc run, and passes signals on to it.

The process of the command is made before its devices are plugged, so that the
journal can name it. It waits until it gets its environment, and then becomes
the command. If os-acc is killed before, the process reads the end of the pipe
and ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

#: The signals that are passed on.
SIGNALS = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)

# Exit codes, as those of env(1) and of shells.
NOT_RUNNABLE = 126
NOT_FOUND = 127

# Wakes the main thread or the watching thread. Nobody else sends it.
_WAKE = signal.SIGRTMIN

# asm-generic/siginfo.h: the kernel has sent the signal. It sends those of a
# terminal to all processes of the foreground, so also to the command.
_SI_KERNEL = 0x80

# Python ignores these, and a program inherits that.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Stopped(BaseException):
    """A signal has ended os-acc run before its command has begun."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def check(program: str) -> tuple[int, str] | None:
    """Say why a program cannot be run; None: it can.

    :returns: the exit code, and a text for the operator
    """
    if shutil.which(program) is not None:
        return None
    if os.sep in program and os.path.exists(program):
        return NOT_RUNNABLE, f'{program}: it is not an executable file'
    return NOT_FOUND, f'{program}: no such command'


class Child:
    """The process that becomes the command."""

    def __init__(self, command: Sequence[str]) -> None:
        reading, self._writing = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # If the parent of this process ignores SIGCHLD, so does this process,
        # and the kernel keeps no exit code of a child: wait(2), notes.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writing)
            _become(command, reading)
        os.close(reading)
        # Unlike the process id, it never means another process.
        self._handle = os.pidfd_open(self.pid)
        self._code: int | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Let it become the command."""
        with open(self._take_pipe(), 'wb') as pipe:
            # It may have ended by a signal.
            with contextlib.suppress(BrokenPipeError):
                pipe.write(json.dumps(dict(environment)).encode())
                pipe.flush()

    def wait(self) -> int:
        """Wait until it has ended.

        :returns: its exit code; 128 + the signal that has ended it
        """
        if self._code is None:
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._code = code if code >= 0 else 128 - code
        return self._code

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def close(self) -> None:
        """End it if it has not been started, and wait until it has ended."""
        if self._writing != -1:
            os.close(self._take_pipe())
        self.wait()
        if self._handle != -1:
            os.close(self._handle)
            self._handle = -1

    def _take_pipe(self) -> int:
        taken, self._writing = self._writing, -1
        return taken


def _become(command: Sequence[str], reading: int) -> NoReturn:
    """In the new process: wait for the environment, and run the command."""
    code = NOT_RUNNABLE
    try:
        for number in (*_IGNORED_BY_PYTHON, *SIGNALS):
            if (
                number in _IGNORED_BY_PYTHON
                or signal.getsignal(number) is not signal.SIG_IGN
            ):
                signal.signal(number, signal.SIG_DFL)
        with open(reading, 'rb') as pipe:
            text = pipe.read()
        if text:
            environment = {**os.environ, **json.loads(text)}
            # S606: it is the command that the operator has given.
            os.execvpe(command[0], list(command), environment)  # noqa: S606
    except FileNotFoundError as err:
        # Somebody has removed it since check().
        code = NOT_FOUND
        os.write(2, f'{command[0]}: {err.strerror}\n'.encode())
    except OSError as err:
        os.write(2, f'{command[0]}: {err.strerror}\n'.encode())
    finally:
        os._exit(code)


class Signals:
    """Takes the signals of this process while it is entered.

    A thread waits for them. Python's handlers would not do: they do not say
    who has sent a signal, and they interrupt an undo. Enter it before other
    threads are started, because a thread inherits which signals are blocked.

    Only the main thread may enter it. A signal that this process ignores, as
    nohup(1) makes it ignore SIGHUP, stays ignored.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._received: list[int] = []
        self._target: Child | None = None
        self._interruptible = False

    def __enter__(self) -> Signals:
        self._taken = {_WAKE} | {
            number
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        self._handler = signal.signal(_WAKE, self._interrupt)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        self._main = threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, name='os-acc signals', daemon=True
        )
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_WAKE})
        return self

    def __exit__(self, *args: object) -> None:
        assert self._thread.ident is not None
        signal.pthread_kill(self._thread.ident, _WAKE)
        self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.signal(_WAKE, self._handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the first signal raise Stopped in the main thread."""
        with self._mutex:
            self._check()
            self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def pass_to(self, child: Child) -> None:
        """Pass all further signals on to a process.

        :raises Stopped: if one came before
        """
        with self._mutex:
            self._check()
            self._target = child

    def pass_to_nobody(self) -> None:
        """Ignore all further signals: what follows must not be interrupted."""
        with self._mutex:
            self._target = None

    def _check(self) -> None:
        if self._received:
            raise Stopped(self._received[0])

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interruptible:
            self._interruptible = False
            raise Stopped(self._received[0])

    def _watch(self) -> None:
        while True:
            found = signal.sigwaitinfo(self._taken)
            if found.si_signo == _WAKE:
                return
            with self._mutex:
                self._received.append(found.si_signo)
                if self._target is None:
                    signal.pthread_kill(self._main, _WAKE)
                elif found.si_code != _SI_KERNEL:
                    self._target.send(found.si_signo)
