# SPDX-License-Identifier: Apache-2.0

"""What Nova is doing in this thread with an instance.

Nova's methods call each other: spawn and hard reboot both call
_get_guest_config(), and a hard reboot calls cleanup(). So the overridden
methods must know by which operation they were called.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import contextvars
import dataclasses
from typing import Any

from os_acc import objects
from os_acc_nova import allocations as placed
from os_acc_nova import arqs


@dataclasses.dataclass(frozen=True)
class Operation:
    """What Nova is doing now: it defines the domain of an instance again.

    :ivar arqs_from_nova: the ARQs that Nova gave; None: Nova gave none, and
        what the instance has is in the journal
    :ivar undo: what is undone if a spawn fails; None: it is not a spawn, and
        the accelerators stay plugged
    :ivar allocated: makes the requests of a spawn that are not ARQs
    """

    context: Any
    instance_uuid: str
    arqs_from_nova: Sequence[arqs.ARQ] | None
    undo: contextlib.ExitStack | None = None
    allocated: Callable[[], list[objects.AcceleratorRequest]] = list


# _hard_reboot() calls destroy() and thereby cleanup(), which Nova also calls
# to delete an instance. An attribute of the driver could not tell the two
# apart, because a delete may run in another thread at the same time.
_operation: contextvars.ContextVar[Operation | None] = contextvars.ContextVar(
    'os_acc_nova_operation', default=None
)


@contextlib.contextmanager
def doing(operation: Operation) -> Iterator[None]:
    """Make an operation the current one of this thread for a block."""
    token = _operation.set(operation)
    try:
        yield
    finally:
        _operation.reset(token)


@contextlib.contextmanager
def building(
    context: Any,
    instance: Any,
    image_meta: Any,
    allocations: Any,
    nodes: Collection[str],
    arqs_from_nova: Sequence[arqs.ARQ] | None = None,
) -> Iterator[None]:
    """Plug for a guest that is built in the block; unplug if it fails.

    :param image_meta: see allocations.to_requests()
    :param allocations: see allocations.to_requests()
    :param nodes: see allocations.to_requests()
    :param arqs_from_nova: the ARQs that Nova gave
    """
    with contextlib.ExitStack() as undo:
        operation = Operation(
            context,
            instance.uuid,
            arqs_from_nova,
            undo,
            lambda: placed.to_requests(
                context, instance, image_meta, allocations, nodes
            ),
        )
        with doing(operation):
            yield


def current(instance: Any) -> Operation | None:
    """Return this driver's operation on an instance; None: there is none."""
    operation = _operation.get()
    if operation is None or operation.instance_uuid != instance.uuid:
        return None
    return operation
