# SPDX-License-Identifier: Apache-2.0

"""The devices that a document reserves. os_acc.reserved has the rule.

A reservation counts as soon as the document is in the journal. It touches no
device, and takes nothing from an instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc import exception
from os_acc import reserved
from os_acc import schemas
from os_acc.desired import steps
from os_acc.objects import device as device_objects

PART = 'reserved'
_NONE = 'for everybody'


def read(
    items: Sequence[dict[str, Any]],
    place: schemas.Place,
) -> list[reserved.Reserved]:
    """Check and normalise the items of a document."""
    return [
        dataclasses.replace(
            made,
            device=address(made.device, made.function, [PART, number], place),
        )
        for number, made in enumerate(
            reserved.Reserved(**item) for item in items
        )
    ]


def address(
    device: str,
    function: str | None,
    keys: list[str | int],
    place: schemas.Place,
) -> str:
    """Check an address and the name of a function.

    :param keys: of the item that has both
    :returns: the address in its canonical form
    """
    where = 'device'
    try:
        # The fields of an object know both.
        made = device_objects.Device.partial(address=device, driver='any')
        where = 'function'
        made.function_id = function
    except exception.InvalidRequest as err:
        raise schemas.at(err, [*keys, where], place) from err
    return str(made.address)


def written(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Write items of a part as they were read, without what is empty."""
    return [
        {k: v for k, v in dataclasses.asdict(each).items() if v}
        for each in found
    ]


def find(
    before: Sequence[reserved.Reserved], after: Sequence[reserved.Reserved]
) -> Iterator[steps.Step]:
    """A step for each device that is or was reserved.

    The journal has the document by then: nothing else is to be done.
    """
    old = {each.label: each.text for each in before}
    new = {each.label: each.text for each in after}
    for label in sorted(old.keys() | new.keys()):
        now, then = old.get(label, _NONE), new.get(label, _NONE)
        act = None if now == then else steps.nobody
        yield steps.Step(PART, label, now, then, act)
