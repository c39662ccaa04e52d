# SPDX-License-Identifier: Apache-2.0

"""The one rule by which VANs exclude each other.

Two claims of different owners exclude each other where they meet on a node,
unless both are PART, or both share it and there is room. A claim on a node
includes a claim PART on the nodes in which it is, see resource.claims_of(). So
a node and what is in it exclude each other, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses

from os_acc.claims import resource


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What one VAN claims."""

    van_uuid: str
    claims: tuple[resource.Claim, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """Another VAN is in the way.

    :ivar node: where the claims meet
    :ivar holding: of the other VAN
    :ivar wanted: how the node is wanted
    :ivar mode: how the other VAN claims it
    :ivar shares: how many VANs share the node, if those are too many
    """

    node: resource.Resource
    holding: Holding
    wanted: resource.Mode
    mode: resource.Mode
    shares: int = 0


class Held:
    """What VANs have, by the nodes: for many questions.

    :param held: what each has
    """

    def __init__(self, held: Iterable[Holding]) -> None:
        self._by_node: dict[
            resource.Resource, list[tuple[Holding, resource.Claim]]
        ] = {}
        for each in held:
            for claim in each.claims:
                self._by_node.setdefault(claim.node, []).append((each, claim))

    def conflicts(self, wanted: Holding) -> Iterator[Conflict]:
        """Say which VANs exclude a VAN, and on which node.

        :param wanted: what the VAN would claim. What it has itself is no
            obstacle
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
    """Ask Held once."""
    return Held(held).conflicts(wanted)


def _exclude(one: resource.Mode, other: resource.Mode) -> bool:
    """Whether two modes exclude each other on one node."""
    if resource.EXCLUSIVE in (one, other):
        return True
    return (one == resource.PART) != (other == resource.PART)
