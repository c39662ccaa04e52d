# SPDX-License-Identifier: Apache-2.0

"""One worker for each claim, which a repeated call of the kubelet joins.

Some work takes longer than the kubelet waits, such as programming an FPGA. So
it is done in a thread of its own. A call waits for it as long as the kubelet
does, and is then answered with what is going on. The work goes on.

The work of one claim is done in the order in which it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
import logging
import threading
import time
from typing import Any

from os_acc_dra import errors

LOG = logging.getLogger(__name__)

#: Seconds between two looks whether a caller still waits.
_LOOK = 0.5

#: Says whether a caller still waits for its answer.
Alive = Callable[[], bool]


class Worker:
    """One piece of work for one claim.

    :ivar kind: 'prepare' or 'unprepare'
    """

    def __init__(
        self,
        kind: str,
        work: Callable[[Worker], Any],
        before: Worker | None,
        failed: str,
    ) -> None:
        self.kind = kind
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._work, self._before, self._failed = work, before, failed
        self._text, self._since = 'begins', time.monotonic()
        self._callers: list[Alive] = []
        self._overtaken = False

    def say(self, text: str) -> None:
        """Say what is being done now."""
        self._text = text

    def join(self, alive: Alive) -> None:
        self._callers.append(alive)

    def leave(self, alive: Alive) -> None:
        self._callers.remove(alive)

    def overtake(self) -> None:
        """Say that the claim has been given up meanwhile."""
        self._overtaken = True

    def check_wanted(self) -> None:
        """Check that somebody still wants what is about to be done.

        :raises ClaimRefused: if no caller waits for it any more, or the
            kubelet has given the claim up after it had asked for this
        """
        if self._overtaken:
            raise errors.ClaimRefused(
                f'{self.kind}: the claim was unprepared meanwhile'
            )
        if not any(alive() for alive in list(self._callers)):
            raise errors.ClaimRefused(
                f'{self.kind}: nobody waits for it any more; the kubelet asks '
                'again if it is still needed'
            )

    def run(self) -> None:
        """Do the work, after that which was asked for before it."""
        if self._before is not None:
            self._before.done.wait()
            self._before, self._since = None, time.monotonic()
        try:
            self.result = self._work(self)
        except BaseException as err:
            self.error = err
        finally:
            self.done.set()

    def state(self) -> str:
        """What is being done, for how long, and what failed before."""
        before, text = self._before, self._text
        if before is not None:
            text = f'waits for the end of {before.kind} ({before.state()})'
        seconds = time.monotonic() - self._since
        failed = f'; previous attempt: {self._failed}' if self._failed else ''
        return f'{text}, {seconds:.0f} s{failed}'


class Workers:
    """The workers of all claims."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, Worker] = {}
        # What failed last, by the UID of the claim and the kind of the work.
        self._failed: dict[tuple[str, str], str] = {}

    def start(
        self,
        uid: str,
        kind: str,
        work: Callable[[Worker], Any],
        alive: Alive,
    ) -> Worker:
        """Start work for a claim, or join what does the same already.

        :param alive: says whether the caller still waits
        :raises RuntimeError: if the process may have no more threads
        """
        with self._lock:
            last = self._last.get(uid)
            if last is not None and last.kind == kind:
                last.join(alive)
                return last
            if last is not None and kind == 'unprepare':
                last.overtake()
            failed = self._failed.get((uid, kind), '')
            made = Worker(kind, work, last, failed)
            made.join(alive)
            # Without a thread, the calls to come would join it forever.
            threading.Thread(
                target=self._run,
                args=(uid, made),
                name=f'{kind} {uid}',
                daemon=True,
            ).start()
            self._last[uid] = made
        return made

    def _run(self, uid: str, worker: Worker) -> None:
        worker.run()
        error = worker.error
        with self._lock:
            if self._last.get(uid) is worker:
                del self._last[uid]
            if error is not None:
                self._failed[uid, worker.kind] = errors.text_of(error)
            else:
                self._failed.pop((uid, worker.kind), None)
                if worker.kind == 'unprepare':
                    self._failed.pop((uid, 'prepare'), None)
        if error is not None:
            LOG.error('%s of %s failed: %s', worker.kind, uid, error)
            if not isinstance(error, Exception):
                raise error

    def answer(self, worker: Worker, alive: Alive, end: float) -> Any:
        """Wait for the result of a worker.

        :param alive: as for start()
        :param end: by time.monotonic()
        :raises StillWorking: if there is none in time
        :raises: what the work has raised
        """
        left = end - time.monotonic()
        while left > 0 and alive() and not worker.done.wait(min(_LOOK, left)):
            left = end - time.monotonic()
        with self._lock:
            worker.leave(alive)
        if not worker.done.is_set():
            raise errors.StillWorking(
                f'{worker.kind} goes on: {worker.state()}'
            )
        if worker.error is not None:
            raise worker.error
        return worker.result

    def wait(self, end: float) -> list[str]:
        """Wait until all work is done.

        :param end: by time.monotonic()
        :returns: what still goes on
        """
        with self._lock:
            there = dict(self._last)
        for worker in there.values():
            worker.done.wait(max(0.0, end - time.monotonic()))
        return [
            f'{worker.kind} of {uid}: {worker.state()}'
            for uid, worker in there.items()
            if not worker.done.is_set()
        ]
