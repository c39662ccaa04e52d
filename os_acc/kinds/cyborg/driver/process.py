# SPDX-License-Identifier: Apache-2.0

"""Starts, calls and ends the process in which Cyborg's drivers run."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any
from typing import NamedTuple
import weakref

from os_acc import exception
from os_acc.kinds.cyborg.driver import helper as cyborg_helper
from os_acc.kinds.cyborg.driver import output as cyborg_output

LOG = logging.getLogger(__name__)

# Bytes of one answer. Real answers are far shorter; the limit keeps an endless
# one from filling the memory.
_LONGEST = 16 * 2**20
# Characters of an error message in an answer; the helper sends fewer.
_LONGEST_MESSAGE = 4000
# Seconds for a killed process to end, and for an idle one to answer a ping.
_END_SECONDS = 5.0


class CallFailed(exception.HelperError):
    """A method that was called in the helper process raised an error.

    :ivar errno: the number of an OSError, else None
    """

    def __init__(self, errno: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.errno = errno


class _BadAnswer(Exception):
    """What the helper process sent is not the answer to the request."""


class Deadline(NamedTuple):
    """When to stop waiting.

    :ivar seconds: the whole time limit, for messages
    :ivar at: the end of it, on time.monotonic()
    """

    seconds: float
    at: float

    @property
    def left(self) -> float:
        """Seconds left; never 0, which makes a socket non-blocking."""
        return max(self.at - time.monotonic(), 0.001)


class Process:
    """A helper process: the leader of a process group, and a socket to it."""

    def __init__(self, python: str) -> None:
        self._python = python
        directory = os.path.dirname(cyborg_helper.__file__)
        script = os.path.join(directory, '__main__.py')
        self._socket, theirs = socket.socketpair()
        reader, writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                [python, script],
                stdin=theirs.fileno(),
                stdout=writer,
                stderr=writer,
                start_new_session=True,
            )
        except OSError as err:
            os.close(reader)
            self._socket.close()
            raise self._error(f'it does not start: {err.strerror}') from err
        finally:
            theirs.close()
            os.close(writer)
        self._output = cyborg_output.Output(reader, self._process.pid)
        # The id of the last request. An answer must have the same id.
        self._last_id = 0
        self._owner = os.getpid()
        #: Kills the process. Python also calls it when it frees this object.
        self.end = weakref.finalize(
            self, _end, self._process, self._socket, self._owner
        )

    @property
    def usable(self) -> bool:
        """Whether it runs and was started here, not before a fork."""
        return (
            self.end.alive
            and self._owner == os.getpid()
            and _exit_of(self._process) is None
        )

    def answers(self) -> bool:
        """Whether it answers a ping now; it may have died unnoticed."""
        until = Deadline(_END_SECONDS, time.monotonic() + _END_SECONDS)
        with contextlib.suppress(exception.HelperError, exception.Timeout):
            return self.usable and bool(self.call('ping', {}, until, 'answer'))
        return False

    def call(
        self,
        method: str,
        params: dict[str, Any],
        deadline: Deadline,
        what: str,
    ) -> Any:
        """Call a method of helper.__main__.Drivers.

        After any error except CallFailed the process is no longer usable.

        :param what: what the method does, for error messages: an infinitive
        :raises CallFailed: if the method raised an error
        :raises HelperError: if Cyborg or one of its drivers cannot be loaded,
            or the process died
        :raises Timeout: at the deadline; the process is killed then, with all
            processes that it has started
        """
        try:
            self._last_id += 1
            request = {'id': self._last_id, 'method': method, 'params': params}
            self._socket.settimeout(deadline.left)
            self._socket.sendall(json.dumps(request).encode() + b'\n')
            answer = _read_answer(self._line(deadline), self._last_id)
        except BaseException as err:
            # Kill it: nobody waits for its answer any more.
            how = self._end_and_say(
                isinstance(err, EOFError | ConnectionError)
            )
            if isinstance(err, TimeoutError):
                raise exception.Timeout(
                    what=f"Cyborg's drivers to {what}; their process was "
                    'killed',
                    seconds=deadline.seconds,
                ) from err
            if isinstance(err, OSError | EOFError | _BadAnswer):
                how = how or f'did not answer in its protocol ({err})'
                raise self._error(
                    f'their process {how} when it was called to {what}'
                ) from err
            raise
        finally:
            self._output.call_ended()
        if (error := answer.get('error')) is None:
            return answer.get('result')
        message = str(error.get('message'))[:_LONGEST_MESSAGE]
        if error.get('kind') == 'fatal':
            self.end()
            raise self._error(f'could not {what}: {message}')
        number = error.get('errno')
        raise CallFailed(
            errno=number if isinstance(number, int) else None,
            python=self._python,
            reason=f'could not {what}: {message}',
        )

    def _line(self, deadline: Deadline) -> bytes:
        """Receive one line."""
        received = bytearray()
        while True:
            self._socket.settimeout(deadline.left)
            part = self._socket.recv(65536)
            if not part:
                raise EOFError('it closed its socket')
            received += part
            if b'\n' in part:
                break
            if len(received) > _LONGEST:
                raise _BadAnswer(f'more than {_LONGEST} bytes without an end')
        line, _, rest = bytes(received).partition(b'\n')
        if rest:
            raise _BadAnswer('it sent more than one line')
        return line

    def _end_and_say(self, closed: bool) -> str | None:
        """Kill the process.

        :param closed: whether its socket has closed. That of a dying process
            closes a moment before it ends, and this waits for the end; on a
            busy machine the moment is long
        :returns: how it had ended before it was killed; None: it had not
        """
        for _ in range(200 if closed else 10):
            if (how := _exit_of(self._process)) is not None:
                break
            time.sleep(0.01)
        self.end()
        return how

    def _error(self, reason: str) -> exception.HelperError:
        return exception.HelperError(python=self._python, reason=reason)


class Helpers:
    """Starts helper processes as they are needed, one for each running call.

    A call that is killed therefore ends no other call. One idle process is
    kept for the next call.

    :param python: path of the interpreter; empty: that of this process
    """

    def __init__(
        self, python: str, drivers: Sequence[str], config_files: Sequence[str]
    ) -> None:
        self._python = python or sys.executable
        self._setup = {
            'drivers': list(drivers),
            'config_files': list(config_files),
        }
        self._idle: Process | None = None
        self._lock = threading.Lock()

    def call(
        self, method: str, seconds: float, what: str, **params: Any
    ) -> Any:
        """Do what Process.call does; start a process if none is idle.

        :param seconds: time limit for the start and the call together
        """
        deadline = Deadline(seconds, time.monotonic() + seconds)
        with self._helper(deadline) as helper:
            return helper.call(method, params, deadline, what)

    @contextlib.contextmanager
    def _helper(self, deadline: Deadline) -> Iterator[Process]:
        with self._lock:
            kept, self._idle = self._idle, None
        helper = kept if kept and kept.answers() else self._start(deadline)
        try:
            yield helper
        finally:
            with self._lock:
                keep = self._idle is None and helper.usable
                if keep:
                    self._idle = helper
            if not keep:
                helper.end()

    def _start(self, deadline: Deadline) -> Process:
        helper = Process(self._python)
        try:
            version = helper.call(
                'setup', self._setup, deadline, 'load its drivers'
            )
        except BaseException:
            helper.end()
            raise
        LOG.info('Cyborg %s runs in a separate process', version)
        return helper


def _read_answer(line: bytes, number: int) -> dict[str, Any]:
    """Read an answer, as helper.__main__ describes it."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise _BadAnswer(f'not JSON: {line[:100]!r}') from err
    if not isinstance(answer, dict) or answer.get('id') != number:
        raise _BadAnswer(f'expected the id {number}: {line[:100]!r}')
    error = answer.get('error', {})
    if ('result' in answer) == ('error' in answer) or (
        not isinstance(error, dict)
    ):
        raise _BadAnswer(f'neither a result nor an error: {line[:100]!r}')
    return answer


def _exit_of(process: subprocess.Popen[bytes]) -> str | None:
    """Say how a process has ended; None: it runs.

    The process is not reaped: its number must not be reused for another
    process before its group is killed.
    """
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        found = os.waitid(os.P_PID, process.pid, flags)
    except ChildProcessError:
        return 'ended'
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return f'ended with exit code {found.si_status}'
    return f'was killed by signal {found.si_status}'


def _end(
    process: subprocess.Popen[bytes], channel: socket.socket, owner: int
) -> None:
    """Kill a helper process and all processes that it has started."""
    channel.close()
    if owner != os.getpid():
        # This is a forked child; the helper belongs to its parent.
        return
    # The helper's children may outlive it; they are in its process group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Do not wait longer for a process that is blocked in the kernel.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
