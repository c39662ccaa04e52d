# SPDX-License-Identifier: Apache-2.0

"""How much memory this process needs while something runs."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import pathlib
import threading


def resident() -> int:
    """The resident memory of this process, VmRSS, in bytes."""
    for line in pathlib.Path('/proc/self/status').read_text().splitlines():
        if line.startswith('VmRSS:'):
            return int(line.split()[1]) * 1024
    raise AssertionError('no VmRSS')


@contextlib.contextmanager
def grows_by_at_most(most: int) -> Iterator[None]:
    """Fail if the resident memory grows by more bytes meanwhile."""
    before = resident()
    seen = [before]
    done = threading.Event()

    def watch() -> None:
        while True:
            # At least once, even if it is over at once.
            seen.append(resident())
            if done.wait(0.05):
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert len(seen) > 1
    assert max(seen) - before < most
