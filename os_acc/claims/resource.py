# SPDX-License-Identifier: Apache-2.0

"""The resources that VANs claim, and how they claim them.

The resources of a host form a tree: a PCI function behind which there are
others, a PF, its VFs, and on each function its mediated devices and work
queues. IOMMU groups and chips are nodes beside that tree. What stands on them
belongs to one instance, so the instance is the owner of claims on them.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """A node of the tree.

    :ivar kind: tells names of one kind from those of another
    :ivar within: the node in which it is; None: no other one
    """

    kind: str
    name: str
    within: Resource | None = dataclasses.field(default=None, compare=False)

    def above(self) -> Iterator[Resource]:
        """The nodes in which it is, the next one first."""
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

    :ivar most: how many VANs may share the node; 0: any number
    """

    name: str
    most: int = 0


#: Nobody else may have the node or anything in it.
EXCLUSIVE = Mode('exclusive')
#: Something in the node is claimed.
PART = Mode('part')


def shared(most: int = 0) -> Mode:
    """The mode of a node that several VANs have as a whole.

    :param most: how many; 0: any number
    """
    return Mode('shared', most)


#: The mode of a node that any number of VANs have as a whole.
SHARED = shared()


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a VAN on a node.

    :ivar owner: claims of one owner never exclude each other. It is the VAN,
        or what it belongs to: its instance, or the accelerator whose device
        files it has
    """

    node: Resource
    mode: Mode
    owner: str


def claims_of(node: Resource, mode: Mode, owner: str) -> Iterator[Claim]:
    """Claim a node, and a part of each node in which it is."""
    yield Claim(node, mode, owner)
    for each in node.above():
        yield Claim(each, PART, owner)
