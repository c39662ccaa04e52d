# SPDX-License-Identifier: Apache-2.0

"""Finds the VANs because of which a device cannot be given out.

Most VANs have other devices than the wanted one. So the claims are found out
only of VANs that may be in the way, by the names of their devices.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import functools
from typing import NamedTuple

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import meeting
from os_acc.claims import nodes
from os_acc.claims import of_handle
from os_acc.claims import reader
from os_acc.claims import resource
from os_acc.claims import words
from os_acc.kernel import pci

#: The prefixes of the identities of handles that claim devices which the
#: identity does not name.
_ANYWHERE = ('file/', 'drc/')

#: Stands for what no name tells: see nodes.is_named().
_UNNAMED = '*'


class Taken:
    """The VANs of a host at one moment, for many questions.

    :param rows: gives the VANs with their handles; called once, if needed
    :param known: gives the facts of the host; called once, if needed
    :param many: whether many devices will be asked for. Then the claims of all
        VANs are found out, and not those of a device that no VAN comes near to
    """

    def __init__(
        self,
        rows: Callable[[], Sequence[facts.Row]],
        known: Callable[[], reader.Reader],
        many: bool = False,
    ) -> None:
        self._read_rows, self._read_known = rows, known
        self._many = many
        self._holdings: dict[int, conflict.Holding] = {}

    @functools.cached_property
    def _rows(self) -> Sequence[facts.Row]:
        return self._read_rows()

    @functools.cached_property
    def _known(self) -> reader.Reader:
        return self._read_known()

    def against(self, wanted: facts.Row) -> list[meeting.Meeting]:
        """Say which VANs are in the way of a VAN, each once, and why.

        :param wanted: the VAN; what it has itself is no obstacle
        :returns: those first whose devices are closest to the wanted one
        """
        numbers = sorted(self._near(wanted))
        if not numbers:
            return []
        own = of_handle.holding(wanted, self._known)
        found: dict[str, list[conflict.Conflict]] = {}
        for each in conflict.conflicts(own, map(self._holding, numbers)):
            found.setdefault(each.holding.van_uuid, []).append(each)
        met = [
            meeting.Meeting(wanted, row, found[row.van_uuid], words.why)
            for row in map(self._rows.__getitem__, numbers)
            if row.van_uuid in found
        ]
        return sorted(met, key=lambda each: each.relation)

    def _holding(self, number: int) -> conflict.Holding:
        if number not in self._holdings:
            self._holdings[number] = of_handle.holding(
                self._rows[number], self._known
            )
        return self._holdings[number]

    def _near(self, wanted: facts.Row) -> set[int]:
        """The rows that may be in the way."""
        if self._many and not wanted.handle.startswith(_ANYWHERE):
            return self._reaching.near(_named(wanted))
        own = of_handle.holding(wanted, self._known)
        return self._having.near(self._reach(own))

    @functools.cached_property
    def _having(self) -> _Rows:
        """The rows by what their handles and devices name."""
        return _Rows(map(_named, self._rows))

    @functools.cached_property
    def _reaching(self) -> _Rows:
        """The rows by all that their claims reach."""
        return _Rows(
            self._reach(self._holding(number))
            for number in range(len(self._rows))
        )

    def _reach(self, holding: conflict.Holding) -> _Names:
        """The names of all devices by which others may be in the way."""
        found = _Names({''}, set())
        for claim in holding.claims:
            node, names = claim.node, [claim.node.name]
            if not nodes.is_named(node):
                found.whole.add(_UNNAMED)
            if nodes.is_in_fpga(node):
                there = self._known.function(node.name)
                names += there.chip if there is not None else ()
            if claim.mode == resource.PART:
                found.part.update(names)
                continue
            found.whole.update(names)
            if nodes.is_group(node):
                found.whole.update(pci.group_members(node.name))
            elif not nodes.is_handle(node):
                found.whole.update(*map(self._known.below, names))
        return found


class _Names(NamedTuple):
    """Names of devices that are claimed.

    Two claims meet where one of them is for the whole of a node: see conflict.

    :ivar whole: those that are claimed as a whole
    :ivar part: those of which a part is claimed
    """

    whole: set[str]
    part: set[str]


def _named(row: facts.Row) -> _Names:
    """What handle and device name, without a look at the host."""
    if row.handle.startswith(_ANYWHERE):
        return _Names({''}, set())
    own = row.handle.partition('/')[2]
    return _Names({row.handle, own}, {row.device or own, _UNNAMED})


class _Rows:
    """Rows, as numbers, by names."""

    def __init__(self, rows: Iterable[_Names]) -> None:
        self._whole: dict[str, list[int]] = {}
        self._part: dict[str, list[int]] = {}
        for number, names in enumerate(rows):
            for found, those in zip(
                (self._whole, self._part), names, strict=True
            ):
                for name in those:
                    found.setdefault(name, []).append(number)

    def near(self, names: _Names) -> set[int]:
        """The rows that something with names may meet."""
        found = set[int]()
        for name in names.whole:
            found.update(self._whole.get(name, ()), self._part.get(name, ()))
        for name in names.part:
            found.update(self._whole.get(name, ()))
        return found
