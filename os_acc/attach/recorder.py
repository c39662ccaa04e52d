# SPDX-License-Identifier: Apache-2.0

"""Records what a call does, for the events in the journal.

The events wait in memory until a commit of the call takes them, usually the
commit that ends it. So they cost no commit of their own. Only a call that
takes long writes them earlier, for those who follow it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import threading
import time
from typing import Any

from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc.journal import events

#: Seconds between two writes of a call that takes long.
LONG_CALL = 1.0


class Recorder:
    """What one call does to one instance.

    Steps run in several threads, which may all add events.
    """

    def __init__(
        self, operation: str, instance: objects.InstanceInfo | str
    ) -> None:
        self._operation = operation
        self._instance: dict[str, Any] = {}
        if isinstance(instance, objects.InstanceInfo):
            self._instance['instance_uuid'] = instance.uuid
            self._instance['instance_name'] = instance.name
        else:
            self._instance['instance_uuid'] = instance
        self._started = time.monotonic()
        self._taken_at = self._started
        self._mutex = threading.Lock()
        self._found: list[events.Event] = []
        self._cause: BaseException | None = None
        self._ended = False

    def step(
        self,
        van: objects.VAN,
        name: str,
        extension: str,
        seconds: float,
        err: BaseException | None = None,
    ) -> None:
        """Record a step of a VAN."""
        self._add(
            step=name,
            seconds=seconds,
            err=err,
            extension=extension,
            **_van(van),
        )

    def fail(self, cause: BaseException) -> None:
        """Record that the call as a whole fails."""
        self._cause = self._cause or cause

    def taken(self) -> list[events.Event]:
        """Hand over what happened since the last time, for a commit."""
        with self._mutex:
            found, self._found = self._found, []
            self._taken_at = time.monotonic()
        return found

    def due(self) -> list[events.Event]:
        """Hand over what happened if the last time was long ago; else nothing.

        A commit is short beside the steps of a call that takes so long.
        """
        if time.monotonic() - self._taken_at < LONG_CALL:
            return []
        return self.taken()

    def ended(self) -> list[events.Event]:
        """Hand over what happened, and the end of the call as a whole."""
        self._ended = True
        seconds = time.monotonic() - self._started
        self._add(seconds=seconds, err=self._cause)
        return self.taken()

    def released(
        self,
        released: Iterable[objects.VAN],
        vans: Iterable[objects.VAN],
        failed: Mapping[str, exception.ExceptionBase],
    ) -> list[events.Event]:
        """Hand over what happened, after VANs were released."""
        if self._operation != events.RECOVER:
            for err in failed.values():
                self.fail(err)
            return self.ended()
        return self._each(released, vans, failed, events.RELEASED)

    def restored(
        self,
        restored: Iterable[objects.VAN],
        vans: Iterable[objects.VAN],
        failed: Mapping[str, exception.ExceptionBase],
    ) -> list[events.Event]:
        """Hand over what happened, after VANs were prepared again."""
        if self._operation != events.RECOVER:
            return self.taken()
        return self._each(restored, vans, failed, events.RESTORED)

    def _each(
        self,
        done: Iterable[objects.VAN],
        vans: Iterable[objects.VAN],
        failed: Mapping[str, exception.ExceptionBase],
        result: str,
    ) -> list[events.Event]:
        """Record for each VAN how its recovery ended."""
        for van in done:
            self._add(result=result, **_van(van))
        for van in vans:
            if van.uuid in failed:
                self._add(err=failed[van.uuid], **_van(van))
        return self.taken()

    def settled(self, vans: Iterable[objects.VAN]) -> list[events.Event]:
        """Hand over what happened, after VANs were given to the instance."""
        if self._operation != events.RECOVER:
            return self.ended()
        return self._each(vans, (), {}, events.RESTORED)

    def leave(self, err: BaseException) -> list[events.Event]:
        """Hand over what no commit has taken, because the call failed."""
        if self._ended or self._operation == events.RECOVER:
            return self.taken()
        self.fail(err)
        return self.ended()

    def _add(
        self,
        step: str | None = None,
        result: str = events.DONE,
        seconds: float | None = None,
        err: BaseException | None = None,
        **fields: Any,
    ) -> None:
        if err is not None:
            result = events.FAILED
            fields |= events.failure(err)
        made = events.Event(
            at=events.now(),
            operation=self._operation,
            step=step,
            result=result,
            seconds=seconds and round(seconds, 6),
            **self._instance,
            **fields,
        )
        with self._mutex:
            self._found.append(made)


def _van(van: objects.VAN) -> dict[str, Any]:
    return {
        'van_uuid': van.uuid,
        'device': van.device,
        'handle': van.handle.identity if van.handle is not None else None,
    }


@contextlib.contextmanager
def recorded(
    host: host_module.Host,
    operation: str,
    instance: objects.InstanceInfo | str,
) -> Iterator[Recorder]:
    """Record a call; write what no commit has taken when the call fails.

    A failure of the journal itself is not written to the journal.
    """
    made = Recorder(operation, instance)
    try:
        yield made
    except BaseException as err:
        left = made.leave(err)
        if left and not isinstance(err, exception.JournalError):
            host.journal.note(left)
        raise
