# SPDX-License-Identifier: Apache-2.0

"""A clock whose pauses take no time, for the commands that wait.

A short ``--wait`` could end before the first attempt on a busy machine, and a
long one would delay the tests.
"""

from __future__ import annotations

import time

import pytest

from os_acc.cli import waiting


class Clock:
    """The real clock, plus all pauses, which end at once."""

    def __init__(self) -> None:
        self._paused = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._paused

    def sleep(self, seconds: float) -> None:
        self._paused += seconds


def pass_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pauses of ``--wait`` end at once."""
    monkeypatch.setattr(waiting, 'time', Clock())
