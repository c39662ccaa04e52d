# SPDX-License-Identifier: Apache-2.0

"""Tells from what a guest says whether the guest has stopped.

The guest gives two kinds of signs. The tests say when they begin and end, and
when they fail (says.py). A loop in guest.sh writes the file "alive" every
20 s, from each CPU in turn.

A guest has stopped when it gives no sign for 180 s, whatever its CPUs do. A
slow guest that runs one test for minutes still writes the file. When one CPU
does not go on, the loop cannot move to it and stops too.

A test that waits for ever in a guest that lives fails by pytest's time limit,
and is not repeated: to repeat it could hide a fault of os-acc. The guest has
also stopped when pytest could not end the test at this limit.
"""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import re

# Python is about thirty times slower in the lab, so the project's time limit
# per test would be too short.
PYTEST_SECONDS = 1200
# The guest gives a sign every 20 s.
SIGN_SECONDS = 180.0
# From the start of QEMU to the first line of guest.sh, which takes half a
# minute on a quiet machine. A machine that ran 70 other processes needed more
# than 300 s.
BOOT_SECONDS = 600.0
# From this line to the first test, which was seen to take 215 s on a busy
# machine; between two tests; from the last test until the machine is down.
STEP_SECONDS = 600.0
TEST_SECONDS = PYTEST_SECONDS + 60.0
SAYS = re.compile(r'lab: (boot|begins|failed|ends) (.*)')


class Watch:
    """What a guest has said since it was started.

    :param alive: the file that the guest writes while it lives
    :param clock: it gives the time in seconds
    """

    def __init__(
        self, alive: pathlib.Path, clock: Callable[[], float]
    ) -> None:
        self.failed: list[str] = []
        self._alive = alive
        self._clock = clock
        self._written = self._read()
        self._booted = False
        self._step = 'the boot'
        self._limit = BOOT_SECONDS
        self._since = self._sign = clock()

    def _read(self) -> int:
        try:
            return self._alive.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def line(self, line: str) -> None:
        """Take note of a line that the guest has printed."""
        if (said := SAYS.search(line)) is None:
            return
        what, name = said.groups()
        self._booted = True
        self._since = self._sign = self._clock()
        if what == 'failed':
            self.failed.append(name.strip())
        elif what == 'begins':
            self._step, self._limit = name.strip(), TEST_SECONDS
        else:
            self._step = f'what follows "{said[0].strip()}"'
            self._limit = STEP_SECONDS

    def stopped(self, now: float) -> str | None:
        """Say why the guest counts as stopped; None while it lives.

        :param now: the time before the look for lines, all of which have been
            given to line(). A sign gets the time after it. So no guest counts
            as stopped because this process itself was given no CPU
        """
        if (written := self._read()) != self._written:
            self._written, self._sign = written, self._clock()
        if self._booted and now - self._sign > SIGN_SECONDS:
            silent = f'has given no sign for {now - self._sign:.0f} s'
        elif now - self._since > self._limit:
            silent = f'has not ended it after {now - self._since:.0f} s'
        else:
            return None
        return f'the guest has stopped in {self._step}: it {silent}'
