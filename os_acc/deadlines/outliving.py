# SPDX-License-Identifier: Apache-2.0

"""Acts that may go on after their caller has given up.

A call to a hypervisor cannot be stopped. If it takes longer than its caller
waits, it goes on, and may attach a device after the caller has begun to undo
the attach. Turns therefore runs one act at a time on each thing, such as a
libvirt domain or an LPAR: the undo waits until the earlier act has ended.

A process that dies forgets its acts. What the hypervisor may still do then
must be in the journal, together with the value of process().
"""

from __future__ import annotations

from collections.abc import Callable
import logging
import os
import threading
import time
from typing import TypeAlias
from typing import TypeVar
import uuid
import weakref

from oslo_concurrency import lockutils

from os_acc import exception
from os_acc.deadlines import waiting

Logger: TypeAlias = logging.Logger | logging.LoggerAdapter[logging.Logger]

LOG = logging.getLogger(__name__)

_T = TypeVar('_T')

_process = uuid.uuid4().hex


def process() -> str:
    """Return an id of this process that no other process has ever had."""
    return _process


class Turns:
    """Runs acts in threads of their own, one at a time on each thing."""

    def __init__(self) -> None:
        # It forgets a thing that no thread uses any more.
        self._turns = lockutils.Semaphores()
        _all.add(self)

    def run(
        self,
        thing: str,
        act: Callable[[threading.Event], _T],
        seconds: float,
        what: str,
        turn_seconds: float | None = None,
        logger: Logger = LOG,
    ) -> _T:
        """Run an act after the earlier acts on the same thing have ended.

        :param thing: what the act changes, such as 'domain <UUID>'
        :param act: gets an event that is set when the caller has given up.
            The act then begins nothing new. It keeps the turn until it
            returns
        :param seconds: how long to wait for the act, the wait for its turn
            included
        :param what: what is waited for, for the error and the log
        :param turn_seconds: how long to wait for the turn; None: seconds
        :param logger: gets a line when an act ends whose caller has given up
        :returns: what the act returned
        :raises Timeout: if an earlier act or this one has not ended in time.
            This act goes on if it has begun; otherwise it never begins
        """
        turn = self._turns.get(thing)
        abandoned, begun = threading.Event(), threading.Event()
        deciding = threading.Lock()
        patience = seconds if turn_seconds is None else turn_seconds

        def in_turn() -> _T:
            if not turn.acquire(timeout=patience):
                raise _not_ended(thing, patience)
            try:
                with deciding:
                    if abandoned.is_set():
                        raise _not_ended(thing, patience)
                    begun.set()
                return _followed(act, abandoned, what, logger)
            finally:
                turn.release()

        try:
            return waiting.at_most(in_turn, seconds, what)
        except BaseException as err:
            with deciding:
                abandoned.set()
            if isinstance(err, exception.Timeout) and not begun.is_set():
                raise _not_ended(thing, patience) from None
            raise

    def wait(self, thing: str, seconds: float) -> None:
        """Wait until no act on a thing is under way; else raise Timeout."""
        turn = self._turns.get(thing)
        if not turn.acquire(timeout=seconds):
            raise _not_ended(thing, seconds)
        turn.release()

    def after_fork(self) -> None:
        """Forget the acts in a forked child: they run in the parent."""
        self._turns = lockutils.Semaphores()


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


def _not_ended(thing: str, seconds: float) -> exception.Timeout:
    return exception.Timeout(
        what=f'an earlier operation on {thing} to end',
        seconds=round(seconds, 1),
    )


def _followed(
    act: Callable[[threading.Event], _T],
    abandoned: threading.Event,
    what: str,
    logger: Logger,
) -> _T:
    """Run an act; log how it has ended if nobody waits for it any more."""
    start = time.monotonic()
    try:
        result = act(abandoned)
    except BaseException as err:
        if abandoned.is_set():
            logger.warning(
                'Stopped waiting for %s. It failed after %.1f s: %s',
                what,
                time.monotonic() - start,
                exception.describe(err),
            )
        raise
    if abandoned.is_set():
        logger.warning(
            'Stopped waiting for %s. It ended after %.1f s',
            what,
            time.monotonic() - start,
        )
    return result


def _after_fork() -> None:
    global _process
    _process = uuid.uuid4().hex
    for each in list(_all):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
