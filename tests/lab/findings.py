# SPDX-License-Identifier: Apache-2.0

"""What can be found out about a machine that has stopped.

Nothing in here raises an error or takes more than a minute, because the
machine may be stopped in any way.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import re
import socket
import time
from typing import Any

# For each call of QEMU, in seconds.
CALL_SECONDS = 5.0
# How long the kernel may write its answer to the console, and how many lines
# of it are kept. The serial line is slow.
CONSOLE_SECONDS = 20.0
CONSOLE_LINES = 120
# Show all messages; the stacks of the CPUs; the tasks that wait for I/O. See
# Documentation/admin-guide/sysrq.rst of Linux.
SYSRQ = '9lw'


def qemu_options(directory: pathlib.Path) -> list[str]:
    """Options of QEMU for a monitor in a directory."""
    return ['-qmp', f'unix:{directory / "monitor"},server=on,wait=off']


def threads(session: int) -> Iterator[str]:
    """Describe the threads of the QEMU that runs in a session."""
    for process in filter(str.isdigit, os.listdir('/proc')):
        # A process may end at any moment.
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(process)) == session:
                for task in pathlib.Path(f'/proc/{process}/task').iterdir():
                    yield _thread(task)


def _thread(task: pathlib.Path) -> str:
    # The name of the thread, in parentheses, may have spaces.
    head, _, tail = (task / 'stat').read_text().rpartition(')')
    # Fields 3, 14 and 15 of proc_pid_stat(5).
    fields = tail.split()
    ticks = int(fields[11]) + int(fields[12])
    return (
        f'thread {task.name} {head.partition("(")[2]}: state {fields[0]}, '
        f'{ticks / os.sysconf("SC_CLK_TCK"):.1f} s of CPU time, waits in '
        f'{(task / "wchan").read_text()}'
    )


class Monitor:
    """A monitor of QEMU (QMP).

    :raises OSError: QEMU does not answer
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(CALL_SECONDS)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile('r')
        self._lines.readline()
        self._call('qmp_capabilities')

    def _call(self, name: str, **arguments: Any) -> Any:
        call = {'execute': name, 'arguments': arguments}
        self._socket.sendall(json.dumps(call).encode())
        # Events come in between.
        while line := self._lines.readline():
            answer = json.loads(line)
            if 'return' in answer or 'error' in answer:
                return answer.get('return', answer.get('error'))
        raise ConnectionResetError('QEMU has closed its monitor')

    def ask(self, command: str) -> str:
        """Run a command of the human monitor, and return what it prints."""
        return str(self._call('human-monitor-command', **{
            'command-line': command
        }))  # fmt: skip


def _registers(monitor: Monitor) -> str:
    """The instruction pointers and the flag HLT of all CPUs."""
    text = monitor.ask('info registers -a')
    return ' | '.join(re.findall(r'CPU#\d+|[RE]IP=\w+|HLT=\d', text))


def _sysrq(monitor: Monitor, directory: pathlib.Path) -> Iterator[str]:
    """What the kernel writes to its console when it is asked for stacks.

    virtme-ng gives the serial port to a file. For the question and the
    answer, QEMU gives it to a socket.
    """
    path = directory / 'console'
    monitor.ask(
        f'chardev-change console socket,path={path},server=on,wait=off'
    )
    with socket.socket(socket.AF_UNIX) as console:
        console.settimeout(CALL_SECONDS)
        console.connect(str(path))
        for key in SYSRQ:
            monitor.ask('chardev-send-break console')
            console.sendall(key.encode())
            time.sleep(0.5)
        end, data = time.monotonic() + CONSOLE_SECONDS, b''
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < end and (more := console.recv(65536)):
                data += more
    lines = data.decode(errors='replace').splitlines()
    yield f'the console, {len(lines)} lines:'
    yield from lines[:CONSOLE_LINES]


def findings(session: int, directory: pathlib.Path) -> Iterator[str]:
    """Find out what a machine that has stopped does.

    :param session: the id of the session that QEMU runs in
    :param directory: the directory of qemu_options()
    """
    yield from threads(session)
    try:
        monitor = Monitor(directory / 'monitor')
        yield monitor.ask('info status').strip()
        for _ in range(3):
            yield _registers(monitor)
            time.sleep(0.5)
        yield from _sysrq(monitor, directory)
    except (OSError, ValueError) as error:
        yield f'the monitor of QEMU does not answer: {error!r}'
