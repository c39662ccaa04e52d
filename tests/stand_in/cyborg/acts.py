# SPDX-License-Identifier: Apache-2.0

"""What a test has told the stand-in to do, and what it did.

Both are files of the directory STAND_IN.
"""

from collections.abc import Callable
import contextlib
import functools
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import time
from typing import Any

DIRECTORY = pathlib.Path(os.environ['STAND_IN'])

# Made when a test asks for one: the long text takes time.
ERRORS: dict[str, Callable[[], BaseException]] = {
    'raise': lambda: RuntimeError('the device is broken'),
    'exit': lambda: SystemExit(3),
    'long error': lambda: RuntimeError('first' + 'x' * 10**7 + 'last'),
}
# What a tool prints: bytes in lines, and in one line. Each is several times
# what os-acc's process may take more memory for: see test_cyborg_process.py.
FLOOD = 2**28
PRINTED = {
    'flood': f'yes no end | head -c {FLOOD}; echo; echo the end',
    'long line': f'head -c {2**27} /dev/zero | tr "\\0" x',
}


def told(step: str) -> str:
    path = DIRECTORY / step
    return path.read_text() if path.exists() else ''


def note(what: Any) -> None:
    with open(DIRECTORY / 'calls', 'a') as file:
        file.write(json.dumps(what) + '\n')


def act(step: str) -> None:
    """Misbehave, if told to."""
    what = told(step)
    if what.startswith('errno '):
        number = int(what.split()[1])
        raise OSError(number, os.strerror(number))
    if what in ERRORS:
        raise ERRORS[what]()
    if what in PRINTED:
        subprocess.run(PRINTED[what], shell=True, check=True)
    if what in ACTS:
        ACTS[what]()


def print_both() -> None:
    sys.stdout.write('{"result": "this is no answer"}\n')
    sys.stdout.flush()
    subprocess.run(['echo', 'from the tool'], check=True)


def keep_output() -> None:
    """Keep more output than Cyborg's process may have memory."""
    tool = ['head', '-c', str(2**31), '/dev/zero']
    subprocess.run(tool, capture_output=True)


def hang() -> None:
    child = subprocess.Popen(['sleep', '600'])
    (DIRECTORY / 'child.new').write_text(f'{os.getpid()} {child.pid}')
    (DIRECTORY / 'child.new').rename(DIRECTORY / 'child')
    time.sleep(600)


def fork(failure: BaseException | None = None) -> None:
    """Fork a child that comes back from the driver, before its parent.

    :param failure: what the child raises; None: it returns
    """
    child = os.fork()
    if child == 0:
        note(['sockets of the child', len(sockets())])
        if failure is not None:
            raise failure
        return
    _, status = os.waitpid(child, 0)
    note(['the child ended', os.waitstatus_to_exitcode(status)])
    # The parent fails, so that an answer of the child would be noticed.
    raise RuntimeError('the parent fails')


def sockets() -> list[int]:
    """The descriptors of this process that are sockets."""
    found = []
    for name in os.listdir('/proc/self/fd'):
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(f'/proc/self/fd/{name}').st_mode
            if stat.S_ISSOCK(mode):
                found.append(int(name))
    return found


def wait() -> None:
    """Take as long as the test wants."""
    (DIRECTORY / 'waits').touch()
    while not (DIRECTORY / 'go').exists():
        time.sleep(0.02)


def answer_later() -> None:
    """Have an answer sent after this call, as a child that C code forks."""
    (number,) = sockets()
    answer = '{"id": 0, "result": null}'
    subprocess.Popen(
        f"sleep 0.3; echo '{answer}' >&{number}; touch answered",
        shell=True,
        cwd=DIRECTORY,
        pass_fds=[number],
    )


ACTS: dict[str, Callable[[], None]] = {
    'die': functools.partial(os.kill, os.getpid(), signal.SIGKILL),
    'leave': functools.partial(os._exit, 4),
    'print': print_both,
    'keep output': keep_output,
    'hang': hang,
    'wait': wait,
    'fork': fork,
    'fork and raise': functools.partial(fork, RuntimeError('the child')),
    'fork and exit': functools.partial(fork, SystemExit(7)),
    'answer later': answer_later,
}
