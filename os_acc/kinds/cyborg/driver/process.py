# SPDX-License-Identifier: Apache-2.0

"""Calls Cyborg's drivers, each call in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from os_acc import exception
from os_acc.kinds.cyborg.driver import helper as cyborg_helper
from os_acc.kinds.cyborg.driver import output as cyborg_output

# Bytes of one answer. Real answers are far shorter; the limit keeps an endless
# one from filling the memory.
_LONGEST = 16 * 2**20
# Characters of an error message in an answer; the helper sends fewer.
_LONGEST_MESSAGE = 4000
# Bytes of one part of an answer.
_PART = 65536
# Seconds for a killed process to end.
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


class Helpers:
    """Runs each call in a process of its own, which is killed at the end.

    A call that is killed therefore ends no other call.

    :param python: path of the interpreter; empty: that of this process
    :param drivers: names of Cyborg's drivers
    :param config_files: Cyborg's configuration files
    """

    def __init__(
        self, python: str, drivers: Sequence[str], config_files: Sequence[str]
    ) -> None:
        self._python = python or sys.executable
        self._setup = {
            'drivers': list(drivers),
            'config_files': list(config_files),
        }

    def call(
        self, method: str, seconds: float, what: str, **params: Any
    ) -> Any:
        """Call a method of helper.__main__.Drivers.

        :param seconds: time limit for the start and the call together
        :param what: what the method does, for error messages: an infinitive
        :returns: the method's result
        :raises CallFailed: if the method raised an error
        :raises HelperError: if the process does not start, Cyborg or one of
            its drivers cannot be loaded, or the process died
        :raises Timeout: at the time limit
        """
        deadline = time.monotonic() + seconds
        request = {**self._setup, 'method': method, 'params': params}
        process, channel, output = self._start()
        try:
            channel.settimeout(seconds)
            channel.sendall(json.dumps(request).encode() + b'\n')
            answer = _read_answer(_line(channel, deadline))
        except TimeoutError as err:
            raise exception.Timeout(
                what=f"Cyborg's drivers to {what}; their process was killed",
                seconds=seconds,
            ) from err
        except (OSError, EOFError, _BadAnswer) as err:
            how = _exit_of(process)
            how = how or f'did not answer in its protocol ({err})'
            raise self._error(
                f'their process {how} when it was called to {what}'
            ) from err
        finally:
            _end(process, channel)
            output.call_ended()
        if (error := answer.get('error')) is None:
            return answer.get('result')
        message = str(error.get('message'))[:_LONGEST_MESSAGE]
        reason = f'could not {what}: {message}'
        if error.get('kind') == 'fatal':
            raise self._error(reason)
        number = error.get('errno')
        raise CallFailed(
            errno=number if isinstance(number, int) else None,
            python=self._python,
            reason=reason,
        )

    def _start(
        self,
    ) -> tuple[subprocess.Popen[bytes], socket.socket, cyborg_output.Output]:
        """Start a process: the leader of a session, and a socket to it."""
        directory = os.path.dirname(cyborg_helper.__file__)
        script = os.path.join(directory, '__main__.py')
        channel, theirs = socket.socketpair()
        reader, writer = os.pipe()
        try:
            process = subprocess.Popen(
                [self._python, script],
                stdin=theirs.fileno(),
                stdout=writer,
                stderr=writer,
                start_new_session=True,
            )
        except OSError as err:
            os.close(reader)
            channel.close()
            raise self._error(f'it does not start: {err.strerror}') from err
        finally:
            theirs.close()
            os.close(writer)
        return process, channel, cyborg_output.Output(reader, process.pid)

    def _error(self, reason: str) -> exception.HelperError:
        return exception.HelperError(python=self._python, reason=reason)


def _line(channel: socket.socket, deadline: float) -> bytes:
    """Receive one line.

    :raises _BadAnswer: if it does not end, or more than it was received
    """
    received = bytearray()
    while b'\n' not in received[-_PART:]:
        if len(received) > _LONGEST:
            raise _BadAnswer(f'more than {_LONGEST} bytes without an end')
        # 0 would make it non-blocking.
        channel.settimeout(max(deadline - time.monotonic(), 0.001))
        part = channel.recv(_PART)
        if not part:
            raise EOFError('it closed its socket')
        received += part
    line, _, rest = bytes(received).partition(b'\n')
    if rest:
        raise _BadAnswer('it sent more than one line')
    return line


def _read_answer(line: bytes) -> dict[str, Any]:
    """Read an answer, as helper.__main__ describes it.

    :raises _BadAnswer: if the line is no answer
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise _BadAnswer(f'no JSON: {line[:100]!r}') from err
    if (
        not isinstance(answer, dict)
        or ('result' in answer) == ('error' in answer)
        or not isinstance(answer.get('error', {}), dict)
    ):
        raise _BadAnswer(f'neither a result nor an error: {line[:100]!r}')
    return answer


def _exit_of(process: subprocess.Popen[bytes]) -> str | None:
    """Say how a process has ended; None: it runs.

    The socket of a dying process closes a moment before it ends.
    The process is not reaped: its number must not be reused for another
    process before its group is killed.
    """
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    for _ in range(10):
        try:
            found = os.waitid(os.P_PID, process.pid, flags)
        except ChildProcessError:
            return 'ended'
        if found is not None:
            break
        time.sleep(0.01)
    else:
        return None
    if found.si_code == os.CLD_EXITED:
        return f'ended with exit code {found.si_status}'
    return f'was killed by signal {found.si_status}'


def _end(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    """Kill a helper process and all processes that it has started."""
    channel.close()
    # The helper's children may outlive it; they are in its process group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Do not wait longer for a process that is blocked in the kernel.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
