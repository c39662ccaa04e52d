# SPDX-License-Identifier: Apache-2.0
"""What Ctrl-C does while a plug or an unplug runs, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import signal
import sys
import threading
from types import FrameType
from types import TracebackType
from typing import Self

from os_acc import progress

_PREPARE, _UNPREPARE, _UNPLUG = 'prepareVAN', 'unprepareVAN', 'unplug'


class _Watched:
    """Handles Ctrl-C while it is entered, and counts what was done.

    It is the callback for the progress of the call that runs meanwhile. If
    Ctrl-C is ignored, as in a script's background job, it stays ignored.
    """

    def __init__(
        self, say: Callable[[str], object], callback: progress.Callback
    ) -> None:
        self._say = say
        self._callback = callback
        self._pressed = 0
        self._begun: set[str] = set()
        self._undone: set[str] = set()
        self._taken = False

    def __call__(self, event: progress.Progress) -> None:
        """Take note of a step."""
        if (event.step, event.status) == (_PREPARE, progress.STARTED):
            self._begun.add(event.van_uuid)
            self._undone.discard(event.van_uuid)
        elif event.step in (_UNPLUG, _UNPREPARE):
            self._begun.add(event.van_uuid)
            if (event.step, event.status) == (_UNPREPARE, progress.DONE):
                self._undone.add(event.van_uuid)
        self._callback(event)

    def __enter__(self) -> Self:
        self._taken = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._taken:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._taken:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(error, KeyboardInterrupt):
            self._say(self._result())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pressed += 1
        if sys.stderr.isatty():
            # The terminal has just shown ^C; a message begins below it.
            with contextlib.suppress(RuntimeError):
                print(file=sys.stderr, flush=True)
        self._interrupt()

    def _tell(self, text: str) -> None:
        """Say something in the handler of a signal."""
        # The signal may have come within another write to the stream.
        with contextlib.suppress(RuntimeError):
            self._say(text)

    def _interrupt(self) -> None:
        raise NotImplementedError

    def _result(self) -> str:
        raise NotImplementedError


class Plugging(_Watched):
    """The first Ctrl-C undoes the plug. Further ones do not stop the undo."""

    def _interrupt(self) -> None:
        if self._pressed > 1:
            self._tell(
                'The undo continues. If this process is killed, os-acc '
                'recover finishes it'
            )
            return
        if not self._begun <= self._undone:
            self._tell(
                'Interrupted: the running steps finish first, then this plug '
                'is undone'
            )
        raise KeyboardInterrupt

    def _result(self) -> str:
        left = self._begun - self._undone
        if not left:
            return (
                f'Undone: {len(self._undone)} VANs were released; nothing of '
                'this plug is left'
                if self._undone
                else 'Interrupted: nothing was plugged'
            )
        if not self._undone:
            return (
                f'Not undone: {len(left)} VANs are in the journal (see os-acc '
                'van list); release them by os-acc unplug'
            )
        return (
            f'Undone: {len(self._undone)} VANs were released. Not undone: '
            f'{len(left)}, which os-acc recover tries again'
        )


class Unplugging(_Watched):
    """The first Ctrl-C lets the unplug go on, the second stops it."""

    def _interrupt(self) -> None:
        if self._pressed > 1 or not self._begun:
            raise KeyboardInterrupt
        self._tell(
            'The unplug continues: nobody can use a half-released device. '
            'Ctrl-C again stops it'
        )

    def _result(self) -> str:
        left = len(self._begun - self._undone)
        return (
            f'Interrupted: {len(self._undone)} VANs were released'
            + (f', {left} are half released' if left else '')
            + '. os-acc unplug or os-acc recover releases what is left'
        )


class Moving(_Watched):
    """Ctrl-C ends a move at its next step, which is then undone."""

    requested = False

    def is_requested(self) -> bool:
        """Whether the move shall end."""
        return self.requested

    def _interrupt(self) -> None:
        if not self.requested:
            self._tell(
                'Interrupted: the running step ends first, then the move is '
                'undone, unless the target has switched'
            )
        self.requested = True

    def _result(self) -> str:
        return 'Undone: the instance is on this host as before'
