# SPDX-License-Identifier: Apache-2.0

"""A progress bar on a terminal, for long steps."""

from __future__ import annotations

from typing import TextIO

from os_acc import progress
from os_acc.cli import tables

# The width of a bar, and the least on a narrow terminal.
_WIDTH = 30
_LEAST = 10


class Bar:
    """Draws a bar for each step that reports a fraction.

    :param stream: where to draw; nothing is drawn unless it is a terminal
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = False

    def __call__(self, event: progress.Progress) -> None:
        limit = tables.width(self._stream)
        if limit is None or not self._stream.isatty():
            return
        if event.status == progress.RUNNING and event.fraction is not None:
            self._stream.write('\r' + draw(event, limit))
            self._drawn = True
        elif self._drawn and event.status in (progress.DONE, progress.FAILED):
            self._stream.write('\n')
            self._drawn = False
        self._stream.flush()


def draw(event: progress.Progress, limit: int) -> str:
    """Return a line: bar, percentage, what it is about, and the message.

    It fills the terminal up to the last place, and so covers an earlier line.

    :param limit: the width of the terminal
    """
    fraction = min(max(event.fraction or 0.0, 0.0), 1.0)
    places = min(_WIDTH, max(_LEAST, limit // 3))
    full = round(fraction * places)
    bar = '#' * full + '.' * (places - full)
    what = event.device or f'instance {(event.instance_uuid or "")[:8]}'
    if event.van_uuid:
        what = f'VAN {event.van_uuid[:8]}'
    line = f'[{bar}] {fraction:4.0%} {what} {event.message or ""}'.rstrip()
    return tables.cut(line, limit - 1).ljust(limit - 1)
