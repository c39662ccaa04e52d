# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""Runs the same step for several VANs at once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from concurrent import futures
import threading
from typing import TypeVar

_T = TypeVar('_T')


def run(
    act: Callable[[_T], None],
    items: Iterable[_T],
    workers: int,
    stop: threading.Event | None = None,
) -> None:
    """Call act for every item, in threads, and wait for all of them.

    It waits even if the calling thread is interrupted, because a step that
    works on a device must end before the caller goes on.

    :param act: must not raise
    :param workers: the maximum number of threads
    :param stop: set when the calling thread is interrupted
    :raises BaseException: the interruption (KeyboardInterrupt,
        eventlet.Timeout), after every call has ended
    """
    waiting = list(items)
    with futures.ThreadPoolExecutor(
        max(1, min(len(waiting), workers)), 'os-acc'
    ) as pool:
        running = [pool.submit(act, item) for item in waiting]
        interrupt: BaseException | None = None
        while True:
            try:
                futures.wait(running)
                break
            except BaseException as err:
                interrupt = err
                if stop is not None:
                    stop.set()
    if interrupt is not None:
        raise interrupt
