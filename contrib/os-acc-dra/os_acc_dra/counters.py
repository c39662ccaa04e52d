# SPDX-License-Identifier: Apache-2.0

"""Devices that exclude each other, as Kubernetes' shared counters.

os-acc says which handles exclude each other. A counter says that for a device
and all those that it excludes: the device takes the whole counter, each of the
others a part of one. So the others do not exclude each other by this counter.
Of devices that all exclude each other, each takes the whole counter.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import hashlib

#: How many counters a set may have.
MOST = 32

Exclusions = Mapping[str, frozenset[str]]


@dataclasses.dataclass
class CounterSet:
    """Counters of devices that exclude each other, directly or through others.

    :ivar counters: the value of each
    :ivar consumed: for each device the counters that it takes, and how much
    """

    name: str
    counters: dict[str, int]
    consumed: dict[str, dict[str, int]]


def components(exclusions: Exclusions) -> list[list[str]]:
    """The devices that exclude others, in connected groups."""
    found, seen = [], set[str]()
    for first in sorted(exclusions):
        if first in seen or not exclusions[first]:
            continue
        group, todo = set[str](), {first}
        while todo:
            group.add(each := todo.pop())
            todo |= exclusions[each] - group
        seen |= group
        found.append(sorted(group))
    return found


def of(exclusions: Exclusions) -> tuple[list[CounterSet], set[str]]:
    """Make the counter sets of devices, by their names.

    :param exclusions: for each device those that it excludes; symmetric
    :returns: the sets, and the devices that need more counters than a set has
    """
    sets, too_many = [], set[str]()
    for group in components(exclusions):
        made = _set(_name(group[0]), group, exclusions)
        if len(made.counters) > MOST:
            too_many.update(group)
        else:
            sets.append(made)
    return sets, too_many


def _name(first: str) -> str:
    """The name of a set. It stays while its first device is there."""
    return f'set-{hashlib.sha256(first.encode()).hexdigest()[:10]}'


def _set(
    name: str, group: Collection[str], exclusions: Exclusions
) -> CounterSet:
    """Cover each exclusion of a group by a counter, with few counters."""
    made = CounterSet(name, {}, {each: {} for each in group})
    left = {each: set(exclusions[each]) for each in group}
    while any(left.values()):
        # The one with most exclusions, such as a PF.
        center = max(sorted(left), key=lambda each: len(left[each]))
        counter = f'counter-{len(made.counters)}'
        clique = _clique(center, left)
        # Devices that all exclude each other need only one counter.
        if len(clique) > 2:
            made.counters[counter] = 1
            for each in clique:
                made.consumed[each][counter] = 1
                left[each] -= clique
            continue
        others = left[center]
        made.counters[counter] = len(others)
        made.consumed[center][counter] = len(others)
        for each in others:
            made.consumed[each][counter] = 1
            left[each].discard(center)
        left[center] = set()
    return made


def _clique(center: str, left: Mapping[str, set[str]]) -> set[str]:
    """Devices that all exclude each other, one of them the center."""
    found = {center}
    for each in sorted(left[center]):
        if found <= left[each]:
            found.add(each)
    return found


def apart(exclusions: Exclusions, kept: Iterable[str] = ()) -> set[str]:
    """Choose devices of which none excludes another, as many as it can.

    For a cluster without counters.

    :param kept: devices that claims have: they come first
    """
    first = set(kept)
    chosen = set[str]()
    for each in sorted(
        exclusions,
        key=lambda name: (name not in first, len(exclusions[name]), name),
    ):
        if not exclusions[each] & chosen:
            chosen.add(each)
    return chosen
