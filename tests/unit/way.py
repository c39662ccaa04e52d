# SPDX-License-Identifier: Apache-2.0

"""The way of a call through os-acc: which modules it enters."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import pathlib
import sys
import threading
import types

import os_acc

SOURCE = str(pathlib.Path(os_acc.__file__).parent)


class Way:
    """What was entered.

    :ivar modules: their names, without those of the kit
    :ivar changes: how often a thread has gone to another package of os_acc,
        or returned to one
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.changes = 0
        self._last: dict[int, str] = {}

    def enter(self, frame: types.FrameType, event: str, arg: object) -> None:
        """Note a call: see sys.setprofile()."""
        file = frame.f_code.co_filename
        if event != 'call' or not file.startswith(SOURCE):
            return
        parts = pathlib.PurePath(file[len(SOURCE) + 1 : -3]).parts
        if parts[0] == 'testing':
            return
        self.modules.add('.'.join(parts).removesuffix('.__init__'))
        thread = threading.get_ident()
        self.changes += self._last.get(thread, parts[0]) != parts[0]
        self._last[thread] = parts[0]


@contextlib.contextmanager
def followed() -> Iterator[Way]:
    """Note what this thread enters, and each thread that starts meanwhile."""
    way = Way()
    threading.setprofile(way.enter)
    sys.setprofile(way.enter)
    try:
        yield way
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
