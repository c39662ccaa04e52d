# SPDX-License-Identifier: Apache-2.0

"""How many mediated devices fit into a card."""

from __future__ import annotations

import collections
from collections.abc import Iterable

from os_acc.kernel import mdev
from os_acc.kernel import mdev_types
from os_acc.kernel import pci


class Room:
    """How many more mediated devices of each type fit into each card.

    The VFs of a card may be parents that share its capacity. Each of them
    shows that one more can be made, until the card is full. So the report
    counts no more of them than fit, from the first VF on.
    """

    def __init__(self, made: Iterable[mdev.Mdev]) -> None:
        self._taken = collections.Counter(
            (_card_of(each.parent), each.type) for each in made
        )

    def left(
        self,
        function: pci.Function | None,
        kind: mdev_types.Type,
        limit: int | None,
    ) -> int | None:
        """How many more of a type fit into a card; None if that is unknown.

        :param function: the parent, if it is a PCI function
        :param limit: max_instances of device_spec; None: as the driver says
        """
        is_vf = function is not None and function.is_vf
        most = limit or (kind.maximum if is_vf else None)
        if most is None:
            return None
        card = function.parent if function is not None else kind.parent
        return max(0, most - self._taken[card, kind.name])

    def take(
        self,
        function: pci.Function | None,
        kind: mdev_types.Type,
        limit: int | None,
    ) -> int:
        """How many more of a type to report for a parent. See left()."""
        left = self.left(function, kind, limit)
        if left is None:
            return kind.available
        number = min(kind.available, left)
        card = function.parent if function is not None else kind.parent
        self._taken[card, kind.name] += number
        return number


def check(wanted: mdev.Mdev, limit: int | None) -> None:
    """Check that a card may have one more mediated device of a type.

    :param limit: max_instances of its entry of device_spec
    :raises DeviceNotFound: if the parent lacks the type
    :raises DeviceBusy: if the card has no room for it, or has max_instances of
        it already
    """
    kind = mdev_types.type_of(wanted.parent, wanted.type)
    is_pci = pci.is_address(wanted.parent)
    function = pci.find(wanted.parent) if is_pci else None
    left = Room(mdev.devices()).left(function, kind, limit)
    if not kind.available or (left is not None and left < 1):
        raise mdev.exhausted(wanted)


def _card_of(parent: str) -> str:
    function = pci.find(parent) if pci.is_address(parent) else None
    return function.parent if function is not None else parent
