# SPDX-License-Identifier: Apache-2.0
"""Running the same step for several VANs at once."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
import logging
import threading
from typing import Generic
from typing import TypeVar

LOG = logging.getLogger(__name__)

_T = TypeVar('_T')


class _Queue(Generic[_T]):
    """The items that wait, and the number of those that are being done."""

    def __init__(self, act: Callable[[_T], None], items: Iterable[_T]) -> None:
        self._act = act
        self._items = collections.deque(items)
        self._running = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def work(self) -> None:
        """Do items until none waits."""
        while True:
            with self._changed:
                if not self._items:
                    return
                item = self._items.popleft()
                self._running += 1
            try:
                self._act(item)
            except BaseException:
                LOG.exception('A step in a thread of its own failed')
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all items are done."""
        with self._changed:
            while self._items or self._running:
                self._changed.wait()


def run(
    act: Callable[[_T], None],
    items: Iterable[_T],
    workers: int,
    stop: threading.Event | None = None,
) -> None:
    """Call act for every item, in threads, and wait for all of them.

    It waits even if the calling thread is interrupted, because a step that
    works on a device must end before the caller goes on. If no thread can be
    started, the calling thread does the work.

    :param act: must not raise
    :param workers: the maximum number of threads
    :param stop: set when the calling thread is interrupted
    :raises BaseException: the interruption (KeyboardInterrupt,
        eventlet.Timeout), after every call has ended
    """
    queue = _Queue(act, items)
    interrupt: BaseException | None = None
    helpers = 0
    try:
        # The first threads may have done all before the last would start.
        while len(queue) and helpers < workers:
            threading.Thread(
                target=queue.work, name=f'os-acc-{helpers}'
            ).start()
            helpers += 1
    except Exception as err:
        LOG.warning('Only %d threads could be started: %s', helpers, err)
    except BaseException as err:
        interrupt = err
    while True:
        try:
            if stop is not None and interrupt is not None:
                stop.set()
            if not helpers or interrupt is not None:
                # Perhaps no thread works on the queue.
                queue.work()
            queue.wait()
            break
        except BaseException as err:
            interrupt = interrupt or err
    if interrupt is not None:
        raise interrupt
