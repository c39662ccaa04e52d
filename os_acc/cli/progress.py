# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A progress bar on a terminal, for long steps."""

from __future__ import annotations

from typing import TextIO

from os_acc import progress

_WIDTH = 30


class Bar:
    """Draws a bar for each step that reports a fraction.

    :param stream: where to draw; nothing is drawn unless it is a terminal
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = False

    def __call__(self, event: progress.Progress) -> None:
        if not self._stream.isatty():
            return
        if event.status == progress.RUNNING and event.fraction is not None:
            self._stream.write('\r' + draw(event))
            self._drawn = True
        elif self._drawn and event.status in (progress.DONE, progress.FAILED):
            self._stream.write('\n')
            self._drawn = False
        self._stream.flush()


def draw(event: progress.Progress) -> str:
    """Return a line: bar, percentage, what it is about, and the message."""
    fraction = min(max(event.fraction or 0.0, 0.0), 1.0)
    full = round(fraction * _WIDTH)
    bar = '#' * full + '.' * (_WIDTH - full)
    what = event.device or f'instance {event.instance_uuid}'
    if event.van_uuid:
        what = f'VAN {event.van_uuid}'
    return f'[{bar}] {fraction:4.0%} {what} {event.message or ""}'
