# SPDX-License-Identifier: Apache-2.0

"""A VAN that excludes what is wanted: how both are related, and in words."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import enum
import functools

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import identities
from os_acc.claims import nodes
from os_acc.claims import resource
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.refusals import reasons
from os_acc.refusals import report_refusals


class Relation(enum.IntEnum):
    """What a VAN has, beside what is wanted. The closest one counts."""

    #: what is wanted itself
    SAME = enum.auto()
    #: a part of it
    PART = enum.auto()
    #: what it is behind
    ABOVE = enum.auto()
    #: something that is behind it
    BEHIND = enum.auto()
    #: what it is a part of
    IN = enum.auto()
    #: another function of its FPGA
    CHIP = enum.auto()
    #: another device, by a number that the kernel gave to both
    NUMBER = enum.auto()
    #: the same medium, such as a partition of a disk
    MEDIUM = enum.auto()
    #: another function of its IOMMU group
    GROUP = enum.auto()
    #: a device that has something in common with it
    OTHER = enum.auto()


# Of nodes that tell by their kind how VANs are related that meet there.
_RELATIONS = {
    'mdev': Relation.SAME,
    'work queue': Relation.SAME,
    'device file': Relation.SAME,
    'device number': Relation.NUMBER,
    'device': Relation.MEDIUM,
    'namespace': Relation.MEDIUM,
    'place in an FPGA': Relation.CHIP,
    'IOMMU group': Relation.GROUP,
}


class Meeting:
    """A VAN that excludes what is wanted.

    :ivar wanted: what is wanted
    :ivar other: what the VAN has
    :ivar conflicts: where both meet
    :param why: says why what is wanted cannot be given out
    """

    def __init__(
        self,
        wanted: facts.Row,
        other: facts.Row,
        conflicts: Sequence[conflict.Conflict],
        why: Callable[[Meeting], reasons.Reason],
    ) -> None:
        self.wanted, self.other, self.conflicts = wanted, other, conflicts
        self._why = why

    @functools.cached_property
    def where(self) -> conflict.Conflict:
        """Where both are related most closely."""
        return min(self.conflicts, key=self._relation)

    @property
    def relation(self) -> Relation:
        """How both are related."""
        return self._relation(self.where)

    @property
    def is_close(self) -> bool:
        """Whether it is about the device itself, or what it is a part of.

        Otherwise the VAN may have another member of its IOMMU group.
        """
        return self.relation < Relation.GROUP

    def _relation(self, found: conflict.Conflict) -> Relation:
        node, other = found.node, self.other
        if (relation := _RELATIONS.get(node.kind)) is not None:
            return relation
        own = identities.function_in(self.wanted.handle)
        named = identities.function_in(other.handle)
        if other.handle == self.wanted.handle or named == node.name == own:
            return Relation.SAME
        if (
            node == nodes.whole(own or '')
            and found.mode == resource.PART
            and named
        ):
            return Relation.BEHIND
        if node.name == other.device and found.wanted != resource.PART:
            return Relation.PART
        if named != node.name:
            return Relation.OTHER
        is_in = self.wanted.device == node.name
        return Relation.IN if is_in else Relation.ABOVE

    @property
    def reason(self) -> reasons.Reason:
        """Why what is wanted cannot be given out."""
        return self._why(self)

    @property
    def said(self) -> dict[str, str]:
        """The VAN, for a reason."""
        other = self.other
        return {
            'instance': other.instance_uuid,
            'what': other.handle,
            'van': other.van_uuid,
        }

    def taken(self, what: str | None = None) -> reasons.Reason:
        """Say that another instance has something.

        :param what: None: the handle says that
        """
        return report_refusals.TAKEN.say(
            **{**self.said, 'what': what or self.other.handle}
        )

    def number(self) -> reasons.Reason:
        """Say who was given a device number."""
        other, number = self.other, self.where.node.name
        paths = dict(zip(other.numbers, other.paths, strict=False))
        return file_refusals.FILE_NUMBER.say(
            instance=other.instance_uuid,
            number=number.partition(' ')[2],
            path=paths.get(number, other.handle),
            van=other.van_uuid,
        )

    def common(self) -> reasons.Reason:
        """Say what both have in common, where they meet most closely."""
        return self._common(self.where)

    @property
    def in_common(self) -> reasons.Reason:
        """What both have in common, for who does not know the kinds."""
        return self._common(self.conflicts[0])

    def _common(self, found: conflict.Conflict) -> reasons.Reason:
        node, said = found.node, self.said
        if nodes.is_in_fpga(node):
            return report_refusals.CHIP_TAKEN.say(**said)
        if nodes.is_group(node):
            return report_refusals.GROUP_TAKEN.say(
                member=said.pop('what'), group=node.name, **said
            )
        return report_refusals.PART_TAKEN.say(of=nodes.text(node), **said)
