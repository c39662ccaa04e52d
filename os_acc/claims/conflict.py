# SPDX-License-Identifier: Apache-2.0

"""The one rule by which VANs exclude each other.

Two claims of different owners exclude each other where they meet on a node,
unless both are PART, or both share it and there is room. A claim on a node
includes a claim PART on the nodes in which it is, see claims_of(). So a node
and what is in it exclude each other, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What one VAN claims."""

    van_uuid: str
    claims: tuple[Claim, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """Another VAN is in the way."""

    node: Resource
    holding: Holding  # of the other VAN
    wanted: Mode  # how the node is wanted
    mode: Mode  # how the other VAN claims it
    shares: int = 0  # how many VANs share the node, if those are too many


class Held:
    """What VANs have, by the nodes: for many questions."""

    def __init__(self, held: Iterable[Holding]) -> None:
        self._by_node: dict[Resource, list[tuple[Holding, Claim]]] = {}
        for each in held:
            for claim in each.claims:
                self._by_node.setdefault(claim.node, []).append((each, claim))

    def conflicts(self, wanted: Holding) -> Iterator[Conflict]:
        """Say which VANs exclude a VAN, and on which node.

        What the VAN has itself is no obstacle.
        """
        for mine in wanted.claims:
            shares: list[Conflict] = []
            for other, theirs in self._by_node.get(mine.node, ()):
                if (
                    other.van_uuid == wanted.van_uuid
                    or mine.owner == theirs.owner
                ):
                    continue
                found = Conflict(mine.node, other, mine.mode, theirs.mode)
                if _exclude(mine.mode, theirs.mode):
                    yield found
                else:
                    shares.append(found)
            if mine.mode.most and len(shares) >= mine.mode.most:
                for found in shares:
                    yield dataclasses.replace(found, shares=len(shares))


def conflicts(wanted: Holding, held: Iterable[Holding]) -> Iterator[Conflict]:
    """See Held.conflicts(), for one question."""
    return Held(held).conflicts(wanted)


def _exclude(one: Mode, other: Mode) -> bool:
    """Whether two modes exclude each other on one node."""
    if EXCLUSIVE in (one, other):
        return True
    return (one == PART) != (other == PART)


# The resources that VANs claim, and how they claim them.
#
# The resources of a host form a tree: a PCI function behind which there are
# others, a PF, its VFs, and on each function its mediated devices and work
# queues. IOMMU groups and chips are nodes beside that tree. What is in them
# belongs to one instance, so the instance is the owner of claims on them.


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """A node of the tree."""

    kind: str  # distinguishes names of one kind from those of another
    name: str
    # the node in which it is; None: no other one
    within: Resource | None = dataclasses.field(default=None, compare=False)

    def above(self) -> Iterator[Resource]:
        """The nodes in which it is, the nearest one first."""
        found = self.within
        while found is not None:
            yield found
            found = found.within

    def __str__(self) -> str:
        return f'{self.kind} {self.name}'


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """How a node is claimed.

    As locks of a database: EXCLUSIVE is X, shared() is S, PART is IX.
    """

    name: str
    most: int = 0  # how many VANs may share the node; 0: any number


#: Nobody else may have the node or anything in it.
EXCLUSIVE = Mode('exclusive')
#: Something in the node is claimed.
PART = Mode('part')


def shared(most: int = 0) -> Mode:
    """The mode of a node that several VANs have as a whole; 0: any number."""
    return Mode('shared', most)


#: The mode of a node that any number of VANs have as a whole.
SHARED = shared()


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a VAN on a node."""

    node: Resource
    mode: Mode
    # claims of one owner never exclude each other. It is the VAN, or what it
    # belongs to: its instance, or the accelerator whose device files it has
    owner: str


def claims_of(node: Resource, mode: Mode, owner: str) -> Iterator[Claim]:
    """Claim a node, and a part of each node in which it is."""
    yield Claim(node, mode, owner)
    for each in node.above():
        yield Claim(each, PART, owner)
