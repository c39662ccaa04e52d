# SPDX-License-Identifier: Apache-2.0

"""A VAN that is in the way of another: how their devices are related."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import enum
import functools

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import nodes
from os_acc.claims import vans
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.refusals import reasons
from os_acc.refusals import report_refusals


class Relation(enum.IntEnum):
    """How the device of a VAN is related to the wanted one, closest first."""

    #: the wanted device itself
    SAME = enum.auto()
    #: a part of the wanted device
    PART = enum.auto()
    #: a function that the wanted device is behind
    ABOVE = enum.auto()
    #: a function that is behind the wanted device
    BEHIND = enum.auto()
    #: the device of which the wanted one is a part
    IN = enum.auto()
    #: another function of the same FPGA
    CHIP = enum.auto()
    #: another device to which the kernel gave the same device number
    NUMBER = enum.auto()
    #: a device with the same data, such as a partition of the wanted disk
    MEDIUM = enum.auto()
    #: another function of the same IOMMU group
    GROUP = enum.auto()
    #: a device that shares something else with the wanted one
    OTHER = enum.auto()


# How VANs are related that claim the same node, by the kind of the node.
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
    """A VAN that keeps another VAN from the device that it wants.

    :ivar other: the VAN that is in the way, and what it has
    :ivar conflicts: the nodes that both claim
    :param why: says why the wanted device cannot be given out
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
        """The conflict by which both are related most closely."""
        return min(self.conflicts, key=self._relation)

    @property
    def relation(self) -> Relation:
        """How both devices are related."""
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
        own = vans.function_in(self.wanted.handle)
        named = vans.function_in(other.handle)
        if other.handle == self.wanted.handle or named == node.name == own:
            return Relation.SAME
        if (
            node == nodes.whole(own or '')
            and found.mode == conflict.PART
            and named
        ):
            return Relation.BEHIND
        if node.name == other.device and found.wanted != conflict.PART:
            return Relation.PART
        if named != node.name:
            return Relation.OTHER
        is_in = self.wanted.device == node.name
        return Relation.IN if is_in else Relation.ABOVE

    @property
    def reason(self) -> reasons.Reason:
        """Why the wanted device cannot be given out."""
        return self._why(self)

    @property
    def said(self) -> dict[str, str]:
        """The VAN that is in the way, as the texts of refusals name it."""
        other = self.other
        return {
            'instance': other.called or other.instance_uuid,
            'what': other.handle,
            'van': other.van_uuid,
        }

    def taken(self, what: str | None = None) -> reasons.Reason:
        """Say that another instance has something.

        :param what: None: the handle says that
        """
        return report_refusals.TAKEN.reason(
            **{**self.said, 'what': what or self.other.handle}
        )

    def number(self) -> reasons.Reason:
        """Say who was given a device number."""
        other, number = self.other, self.where.node.name
        paths = dict(zip(other.numbers, other.paths, strict=False))
        return file_refusals.FILE_NUMBER.reason(
            instance=self.said['instance'],
            number=number.partition(' ')[2],
            path=paths.get(number, other.handle),
            van=other.van_uuid,
        )

    def common(self) -> reasons.Reason:
        """Say what both have in common, where they meet most closely."""
        return self._common(self.where)

    @property
    def in_common(self) -> reasons.Reason:
        """What both have in common, for callers that do not know the kinds."""
        return self._common(self.conflicts[0])

    def _common(self, found: conflict.Conflict) -> reasons.Reason:
        node, said = found.node, self.said
        if nodes.is_in_fpga(node):
            return report_refusals.CHIP_TAKEN.reason(**said)
        if nodes.is_group(node):
            return report_refusals.GROUP_TAKEN.reason(
                member=said.pop('what'), group=node.name, **said
            )
        return report_refusals.PART_TAKEN.reason(of=nodes.text(node), **said)
