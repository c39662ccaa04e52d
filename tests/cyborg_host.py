# SPDX-License-Identifier: Apache-2.0

"""Helpers of the tests of the driver cyborg: a host for Cyborg's drivers."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import threading
import time

from os_acc.testing.kernel import Kernel


@contextlib.contextmanager
def creating(kernel: Kernel, parent: str) -> Iterator[None]:
    """Let another process create mediated devices, as in the kernel.

    The files ``create`` of a parent become FIFOs. This process reads them and
    creates the mediated devices.
    """
    types = kernel.sys / 'class/mdev_bus' / parent / 'mdev_supported_types'
    ended = threading.Event()
    threads = {}
    for directory in types.resolve().iterdir():
        (directory / 'create').unlink()
        os.mkfifo(directory / 'create')
        threads[directory] = threading.Thread(
            target=_serve, args=(kernel, directory, ended), daemon=True
        )
        threads[directory].start()
    yield
    ended.set()
    for directory, thread in threads.items():
        while thread.is_alive():
            # Wake up the thread, which waits for a writer. If it does not
            # wait yet, or has ended, open() fails as there is no reader.
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK
                os.close(os.open(directory / 'create', flags))
            thread.join(0.02)


def _serve(
    kernel: Kernel, directory: pathlib.Path, ended: threading.Event
) -> None:
    while not ended.is_set():
        text = (directory / 'create').read_text()
        if text:
            with contextlib.suppress(OSError):
                kernel.write(str(directory / 'create'), text)


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        text = pathlib.Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return False
    return text.rpartition(')')[2].split()[0] != 'Z'


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Wait until a process has ended."""
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def wait_for(path: pathlib.Path, seconds: float = 300.0) -> str:
    """Wait for a file. Returns its text."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f'{path} did not come'
        time.sleep(0.02)
    return path.read_text()
