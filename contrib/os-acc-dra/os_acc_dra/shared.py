# SPDX-License-Identifier: Apache-2.0

"""One discovery of the node's devices for all claims that need it now."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
import threading
from typing import Generic
from typing import TypeVar

T = TypeVar('T')


class Shared(Generic[T]):
    """A function whose concurrent callers share one result.

    Each caller gets the result of a run that began after its call: what has
    changed before the call is in it. Callers who come while a run goes on
    share the next one.

    :param function: called by one thread at a time
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._running, self._guard = threading.Lock(), threading.Lock()
        # The run that has not begun yet.
        self._next: futures.Future[T] | None = None

    def __call__(self) -> T:
        """Return what the function returns.

        :raises: what the function raises
        """
        with self._guard:
            is_first = self._next is None
            if self._next is None:
                self._next = futures.Future()
            run = self._next
        if is_first:
            self._run(run)
        return run.result()

    def _run(self, run: futures.Future[T]) -> None:
        with self._running:
            with self._guard:
                self._next = None
            try:
                run.set_result(self._function())
            except BaseException as err:
                run.set_exception(err)
