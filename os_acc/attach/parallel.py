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

from os_acc import log

LOG = logging.getLogger(__name__)

_T = TypeVar('_T')

# Seconds that the first thread works alone. Starting the others, and waiting
# for each other, costs more than steps that take only that long together.
_HEAD_START = 0.01


class _Queue(Generic[_T]):
    """The items that wait, and the number of those that are being done."""

    def __init__(self, act: Callable[[_T], None], items: Iterable[_T]) -> None:
        self._act = act
        self._items = collections.deque(items)
        self._running = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def work(self, is_caller: bool = False) -> None:
        """Do items until none waits.

        :param is_caller: the thread has called run()
        """
        while True:
            with self._changed:
                if not self._items:
                    return
                item = self._items.popleft()
                self._running += 1
            try:
                self._act(item)
            except BaseException as err:
                if is_caller and not isinstance(err, Exception):
                    raise
                log.error(LOG, err, 'A step in a separate thread failed')
            finally:
                with self._changed:
                    self._running -= 1
                    if self._is_done():
                        self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until all items are done."""
        with self._changed:
            self._changed.wait_for(self._is_done, seconds)

    def _is_done(self) -> bool:
        return not self._items and not self._running


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
    :raises BaseException: the interruption (KeyboardInterrupt,
        eventlet.Timeout), after every call has ended
    """
    queue = _Queue(act, items)
    interrupt: BaseException | None = None
    helpers = 0
    try:
        while len(queue) and helpers < workers:
            threading.Thread(
                target=queue.work, name=f'os-acc-{helpers}'
            ).start()
            helpers += 1
            if helpers == 1:
                queue.wait(_HEAD_START)
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
                queue.work(is_caller=True)
            queue.wait()
            break
        except BaseException as err:
            interrupt = interrupt or err
    if interrupt is not None:
        raise interrupt
