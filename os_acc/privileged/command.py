# SPDX-License-Identifier: Apache-2.0

"""Runs an operator's command as root: its input, its output and its end.

Input. The standard input is a pipe that never delivers anything and never
ends. With an empty input such as /dev/null, some tools take the end of the
input for "yes" (can_proceed() of XRT's tools does, in core/tools/common/
XBUtilitiesCore.cpp), and others ask again forever. With this pipe, a tool that
asks waits until its deadline and is killed: no question is answered.

Output. Only its end is kept, in memory. A child that outlives the command may
keep the pipe open, so the command's exit counts, not the end of the output.

Both pipes are opened for reading and writing, and the command inherits them
so. If this process is killed, the command sees no end of its input and gets no
SIGPIPE: it goes on, as long as it writes less than the pipe holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import fcntl
import os
import re
import signal
import subprocess
import time

from os_acc import exception

#: Bytes of the output that are kept.
KEPT = 1 << 16

# Characters of the output that an error contains.
_SHOWN = 300
# The pipe's size in bytes: the kernel's default for /proc/sys/fs/
# pipe-max-size, the largest that needs no capability.
_PIPE = 1 << 20
_CHUNK = 1 << 16
# Seconds between two looks at the output and at whether the command has
# ended: the first while there is output.
_SHORTEST, _LONG = 0.001, 0.05
#: Seconds for a killed process to end; after that it is left alone.
GRACE = 5.0

# The messages of tools whose image becomes active at the next start of the
# host, such as "Cold reboot machine to load the new image on device." and
# "Warm reboot is required to recognize new SC image on the device." of XRT's
# xbmgmt (core/tools/xbmgmt2/OO_UpdateBase.cpp).
_REBOOT = b' reboot'
_REBOOTS = (b'cold reboot', b'warm reboot')
_LONGEST = len(b'cold reboot')

# The end of a line that asks: '?', ':' or '[Y/n]'.
_QUESTION = re.compile(r'([?:]|[\[(]y(es)?/n(o)?[\])])\s*\Z', re.I)


class Output:
    """What a command has written until now.

    One thread adds to it. Other threads may read it meanwhile.

    :ivar asks_for_reboot: whether it says that the host must be rebooted
    """

    def __init__(self) -> None:
        self._kept = b''
        self._carried = b''
        self.asks_for_reboot = False

    def add(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-KEPT:]
        text = self._carried + data.lower()
        # One search, because a tool can write gigabytes.
        if _REBOOT in text and any(each in text for each in _REBOOTS):
            self.asks_for_reboot = True
        self._carried = text[-_LONGEST:]

    @property
    def text(self) -> str:
        """The end of the output, at most KEPT bytes of it."""
        return self._kept.decode(errors='replace')

    @property
    def end(self) -> str:
        """The end of the output, for an error."""
        return self.text.strip()[-_SHOWN:]

    @property
    def asks(self) -> bool:
        """Whether the unfinished last line looks like a question."""
        line = self.text[-_SHOWN:].rpartition('\n')[2]
        return _QUESTION.search(line) is not None


def run(
    device: str,
    command: Sequence[str],
    seconds: float,
    held: Sequence[int],
    output: Output | None = None,
) -> Output:
    """Run a command; at its deadline kill it and its process group.

    :param held: locked files that the command inherits. They stay locked as
        long as the command or a child of it runs, even if this process ends
    :param output: gets the output while the command runs
    :raises DeviceError: if the command cannot be started, fails, or does not
        end in time. Its kwargs have the exit code as ``code``, or None
    """
    output = Output() if output is None else output

    def failed(reason: str, code: int | None = None) -> exception.DeviceError:
        return exception.DeviceError(
            device=device, reason=f'{command[0]}: {reason}', code=code
        )

    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(_pipe())[1]
        reader, writer = stack.enter_context(_pipe())
        try:
            process = subprocess.Popen(
                command,
                stdin=silent,
                stdout=writer,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd='/',
                pass_fds=held,
            )
        except OSError as err:
            raise failed(err.strerror or str(err)) from err
        if not _wait(process, reader, time.monotonic() + seconds, output):
            raise failed(_kill(process, seconds, output))
    if process.returncode:
        code = process.returncode
        how = f'signal {-code}' if code < 0 else f'exit code {code}'
        raise failed(f'{how}: {output.end or "no output"}', code)
    return output


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Make a pipe.

    :returns: an end for reading that never blocks, and one for both reading
        and writing
    """
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reader)
        with contextlib.closing(os.fdopen(writer, 'wb', buffering=0)):
            os.set_blocking(reader, False)
            # A pipe that is opened by this path can be opened for both.
            both = os.open(f'/proc/self/fd/{reader}', os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, both)
        with contextlib.suppress(OSError):  # the user has too many pipes
            fcntl.fcntl(both, fcntl.F_SETPIPE_SZ, _PIPE)
        yield reader, both


def _wait(
    process: subprocess.Popen[bytes],
    reader: int,
    deadline: float,
    output: Output,
) -> bool:
    """Read the output until the command has ended or the time is over.

    :returns: whether the command has ended
    """
    # Not select.poll(): eventlet removes it from a service that runs as root
    # and calls the privileged half in its own process.
    pause = _SHORTEST
    while process.poll() is None:
        if time.monotonic() >= deadline:
            _read(reader, output)
            return False
        pause = _SHORTEST if _read(reader, output) else min(2 * pause, _LONG)
        time.sleep(pause)
    _read(reader, output)
    return True


def _read(reader: int, output: Output) -> bool:
    """Read what is in the pipe now, and no more than the pipe can hold.

    A child that never stops writing must not keep this from returning.

    :returns: whether there was anything
    """
    left = _PIPE
    while left > 0:
        try:
            data = os.read(reader, _CHUNK)
        except BlockingIOError:
            break
        output.add(data)
        left -= len(data)
    return left < _PIPE


def _kill(
    process: subprocess.Popen[bytes], seconds: float, output: Output
) -> str:
    """Kill a command and its process group.

    :returns: what has happened, for an error
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    text = f'not done after {seconds:g} s, killed'
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        text = (
            f'not done after {seconds:g} s, and process {process.pid} cannot '
            'be killed, because it is blocked in the kernel'
        )
    if output.asks:
        text += '. It probably waited for input, which os-acc never gives'
    if output.end:
        text += f'. The end of its output: {output.end}'
    return text
