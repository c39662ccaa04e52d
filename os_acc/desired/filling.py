# SPDX-License-Identifier: Apache-2.0

"""Which region a pool programs next. This module touches nothing.

Each programming reduces the shortage of one pool, and never causes one in
another pool. So without a change from outside, it comes to an end.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from os_acc.desired import documents
from os_acc.texts import forms


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a device is to those who request one."""

    resource_class: str | None = None
    traits: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Region:
    """What is programmed on its own: a region, or a whole device.

    :ivar name: its name in the document, in messages and in the model
    :ivar function: what it holds; None: nothing, or it is unknown
    :ivar used: somebody has a handle of it
    :ivar free: it has a handle that can be given out now
    :ivar fixed: it must not be programmed by a pool now, whoever uses it
    :ivar kinds: of each device that gives access to it: the PFs of a chip
    :ivar only: the functions for which a document reserves it
    """

    name: str
    device: str
    region: str
    function: str | None
    used: bool
    free: bool
    fixed: bool = False
    kinds: tuple[Kind, ...] = (Kind(),)
    only: tuple[str, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether a pool may program it."""
        return self.free and not self.used and not self.fixed


@dataclasses.dataclass(frozen=True)
class State:
    """A pool and what it has.

    :ivar wanted: how many regions with a free handle shall hold the function
    :ivar acts: whether it may program now
    :ivar held: the regions that hold the function
    :ivar failed: how many regions its programming has left without a function
    """

    pool: documents.Pool
    wanted: int
    acts: bool
    held: Sequence[Region]
    failed: int = 0

    @property
    def free(self) -> int:
        return sum(each.free for each in self.held)

    @property
    def is_short(self) -> bool:
        return self.free < self.wanted

    @property
    def is_full(self) -> bool:
        return self.pool.max is not None and len(self.held) >= self.pool.max


def serves(pool: documents.Pool, region: Region) -> bool:
    """Whether a pool may use a region."""
    return any(
        pool.resource_class in (None, kind.resource_class)
        and frozenset(pool.traits) <= kind.traits
        for kind in region.kinds
    ) and all(forms.same_function(pool.function, f) for f in region.only)


def state_of(
    pool: documents.Pool,
    wanted: int,
    acts: bool,
    regions: Sequence[Region],
) -> State:
    """Find what a pool has."""
    held = [
        each
        for each in regions
        if serves(pool, each)
        and forms.same_function(each.function, pool.function)
    ]
    return State(pool, wanted, acts, held)


def find(
    states: Sequence[State], regions: Sequence[Region]
) -> tuple[documents.Pool, Region] | None:
    """Say which region is to be programmed next, and for which pool.

    A pool comes before those after it in the document. It takes an empty
    region first, then one whose function no pool keeps, then one that another
    pool does not need. Of these, it takes one that few pools can use.

    :returns: None: nothing is to be done, or nothing can be done now
    """
    kept = [each.pool for each in states]

    def rank(region: Region) -> tuple[int, int]:
        holds = region.function is not None
        same = any(
            forms.same_function(region.function, each.function)
            for each in kept
        )
        return holds + (holds and same), sum(serves(p, region) for p in kept)

    for each in states:
        if not each.acts or not each.is_short or each.is_full:
            continue
        found = [
            region
            for region in regions
            if region.idle
            and serves(each.pool, region)
            and region not in each.held
            and not _is_needed(region, states)
        ]
        if found:
            return each.pool, min(found, key=rank)
    return None


def _is_needed(region: Region, states: Sequence[State]) -> bool:
    """Whether a pool would lack a region that holds its function."""
    return any(
        region in each.held and each.free <= each.wanted for each in states
    )
