# SPDX-License-Identifier: Apache-2.0

"""Calls os-acc on the target host, through the command ``migration target``.

One process there answers all of the calls, so that no call in which the guest
stands still waits for a program to start. Each call is a line of JSON on its
standard input, and each answer is one on its standard output.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import io
import json
import os
import select
import selectors
import subprocess
import tempfile
import time
from typing import IO
from typing import Any

from os_acc import exception
from os_acc.moving import answers

#: The version of the calls and answers.
PROTOCOL = 1
#: The arguments of the command on the target.
ARGUMENTS = ('migration', 'target')
#: The longest line, in bytes.
LONGEST = 16 * 1024 * 1024

# Seconds that the process may take to end.
_END = 10.0


class Remote:
    """os-acc on the target host.

    A process that has ended is started again for the next call: the journal
    there has all that counts.

    :param called: what errors call the host
    """

    def __init__(
        self, command: Sequence[str], called: str, seconds: float
    ) -> None:
        self._command, self._called = list(command), called
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._read = b''

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Make a call, and wait for its answer.

        :param arguments: what JSON can hold
        :raises TargetError: if the call has failed there, or the target does
            not answer; in the latter case nobody knows whether it was done
        """
        asked = {'protocol': PROTOCOL, 'call': name, **arguments}
        try:
            line = self._answer(json.dumps(asked).encode() + b'\n')
        except OSError as err:
            raise self._lost(f'{self._command[0]}: {err.strerror}') from err
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._lost(
                f'it has answered {line[:200]!r}, expected an answer of os-acc'
            )
        if (error := answer.get('error')) is not None:
            raise answers.error(error, self._called)
        return answer

    def close(self) -> None:
        """End the process. A call that it still does is done to its end."""
        with self._taken_errors():
            self._end()

    def _taken_errors(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        """What the process has written to its standard error."""
        errors, self._errors = self._errors, None
        return errors or io.BytesIO()

    def _end(self) -> None:
        process, self._process, self._read = self._process, None, b''
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            # It lives as long as the process: close() closes it.
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            # A session of its own: Ctrl-C is for this process, which aborts.
            self._process = subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        return self._process

    def _answer(self, asked: bytes) -> bytes:
        """Write a call, and read the next line of the process."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + self._seconds
        left_over = memoryview(asked)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not self._read and selector.select(0):
                self._read_on(process.stdout.fileno())
            if self._read:
                # It would be taken for the answer to this call.
                raise self._lost(
                    f'it has answered {self._read[:200]!r}, which was not '
                    'asked'
                )
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while left_over or b'\n' not in self._read:
                left = deadline - time.monotonic()
                if left <= 0 or len(self._read) > LONGEST:
                    raise self._lost(f'no answer for {self._seconds:g} s')
                for key, _ in selector.select(min(left, 1.0)):
                    if key.fileobj is process.stdout:
                        self._read_on(key.fd)
                        continue
                    # A process that reads nothing lets a pipe take no more.
                    written = os.write(key.fd, left_over[: select.PIPE_BUF])
                    left_over = left_over[written:]
                    if not left_over:
                        selector.unregister(process.stdin)
        line, _, self._read = self._read.partition(b'\n')
        return line

    def _read_on(self, descriptor: int) -> None:
        read = os.read(descriptor, 65536)
        if not read:
            raise self._lost('its os-acc has ended')
        self._read += read

    def _lost(self, reason: str) -> exception.TargetError:
        """Give the process up. The error has the last that it has said."""
        with self._taken_errors() as errors:
            self._end()
            errors.seek(0)
            lines = errors.read().decode(errors='replace').split('\n')
        said = ' / '.join(filter(None, map(str.strip, lines)))[-500:]
        said = answers.printable(said)
        return exception.TargetError(
            target=self._called,
            reason=f'{reason}{said and f" ({said})"}',
        )
