# SPDX-License-Identifier: Apache-2.0

"""What a terminal shows of a command that takes long: a bar, or lines."""

from __future__ import annotations

import itertools
import threading
import time
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


# Seconds from the start to each line; then one after each minute.
_TIMES = (2.0, 10.0, 30.0, 60.0)
_FURTHER = 60.0


class Notice:
    """Says what a command is doing, while it is entered.

    Nothing is said to a stream that is not a terminal. An error of the stream
    ends it silently.
    """

    def __init__(
        self,
        stream: TextIO,
        command: str,
        times: tuple[float, ...] = _TIMES,
    ) -> None:
        self._stream = stream
        self._doing = command
        self._times = times
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Notice:
        if self._stream.isatty():
            self._thread = threading.Thread(
                target=self._tell, name='os-acc notice', daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Say nothing more, because something else shows the progress."""
        self._end.set()

    def __call__(self, event: progress.Progress) -> None:
        """Take note of a step that is being done."""
        if event.fraction is not None and event.status == progress.RUNNING:
            self.stop()  # a bar shows it
        elif event.status in (progress.STARTED, progress.RUNNING):
            what = f'VAN {event.van_uuid}' if event.van_uuid else event.device
            self._doing = ' '.join(
                filter(None, (event.step, what and f'of {what}'))
            )
            if event.message:
                self._doing += f', {event.message}'

    def _tell(self) -> None:
        start = time.monotonic()
        further = itertools.count(self._times[-1] + _FURTHER, _FURTHER)
        for at in itertools.chain(self._times, further):
            if self._end.wait(max(start + at - time.monotonic(), 0.0)):
                return
            try:
                line = f'Working for {at:.0f} s: {self._doing}'
                lines = tables.fitted(line, self._stream)
                self._stream.write('\n'.join([*lines, '']))
                self._stream.flush()
            except (OSError, ValueError):
                return
