# SPDX-License-Identifier: Apache-2.0

"""Asks the new rule and the older ones the same, on generated hosts.

A walk begins on an empty host. In each step, each option of the host is wanted
for each instance: each of these is a situation. Then a VAN gets something that
both let it have, or one gives back what it has.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import itertools
import random

import claim_hosts
import claim_vans

from os_acc.claims import conflict
from os_acc.claims import of_handle
from os_acc.refusals import reasons

Host = claim_hosts.Host
Option = claim_vans.Option
Van = claim_vans.Van

INSTANCES = ('first', 'second', 'third')
STEPS = 10
# One of so many situations is asked twice.
EACH = 7
FPGA = 'of the same FPGA'
WITHOUT_WORDS = ('slot', 'fake')
OF_MDEVS = ('mdev', 'file of an mdev')


@dataclasses.dataclass
class Count:
    """What a walk has found.

    :ivar situations: how many there were
    :ivar refused: in how many the new rule has refused
    :ivar known: the differences that are known, by name
    :ivar unknown: all other differences
    :ivar words: where both refuse, in other words, or one says two things
    """

    situations: int = 0
    refused: int = 0
    known: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )
    unknown: list[str] = dataclasses.field(default_factory=list)
    words: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Count) -> None:
        self.situations += other.situations
        self.refused += other.refused
        self.known.update(other.known)
        self.unknown += other.unknown
        self.words += other.words


class Walk:
    """A walk over one host."""

    def __init__(self, host: Host, draw: random.Random, count: Count) -> None:
        self._host, self._draw, self._count = host, draw, count
        self._holdings: dict[tuple[object, ...], conflict.Holding] = {}
        self._names = map(str, itertools.count())
        self._vans: list[Van] = []

    def run(self) -> None:
        for _ in range(STEPS):
            free = list(self._situations())
            if self._vans and self._draw.random() < 0.3:
                self._vans.remove(self._draw.choice(self._vans))
            if free:
                instance, option = self._draw.choice(free)
                self._vans.append(
                    Van(
                        next(self._names),
                        instance,
                        option,
                        requested=self._draw.random() < 0.15,
                        earlier=self._draw.random() < 0.15,
                    )
                )

    def _situations(self) -> Iterator[tuple[str, Option]]:
        """Compare all that a VAN could want. Give what it may have."""
        for option in self._host.options:
            for instance in INSTANCES:
                if not self._differ(Van('new', instance, option)):
                    yield instance, option
        # After a reboot, each gets again what it has.
        for van in self._vans:
            again = dataclasses.replace(van, requested=False, earlier=False)
            self._differ(again)

    def _differ(self, wanted: Van) -> bool:
        """Compare one situation. Say whether either of the rules refuses."""
        self._count.situations += 1
        found = list(
            conflict.conflicts(
                self._holding(wanted), map(self._holding, self._vans)
            )
        )
        self._count.refused += bool(found)
        refused = claim_vans.old(wanted, self._vans)
        if wanted.option.kind not in WITHOUT_WORDS:
            if refused and found:
                self._compare(wanted)
            if self._count.situations % EACH == 0:
                self._ask_many(wanted)
        if refused != bool(found):
            self._explain(wanted, found)
        return refused or bool(found)

    def _compare(self, wanted: Van) -> None:
        """Compare the words: the first reason decides the error."""
        before = claim_vans.asked(wanted, self._vans)
        old = next(wanted.option.refused(before), None)
        new = self._words(wanted)
        if old is None or (old in new and new[0].category is old.category):
            return
        if (
            old.category is reasons.Category.GROUP_ALLOCATED
            and FPGA in new[0].text
        ):
            # They see only one of its PFs as an FPGA.
            self._count.known['FPGA in one group'] += 1
            return
        for each in self._vans:
            alone = claim_vans.asked(wanted, [each])
            if next(wanted.option.refused(alone), None) == new[0]:
                # See stricter(): beside the others, they do not see this VAN.
                self._count.known['hidden by another file'] += 1
                return
        self._count.words.append(
            f'{wanted}\nwith {self._vans}\nold: {old}\nnew: {new}'
        )

    def _ask_many(self, wanted: Van) -> None:
        """Compare the answers to one of few, and to one of many questions."""
        one, many = self._words(wanted), self._words(wanted, many=True)
        if one != many:
            self._count.words.append(
                f'{wanted}\nwith {self._vans}\none: {one}\nmany: {many}'
            )

    def _words(self, wanted: Van, many: bool = False) -> list[reasons.Reason]:
        return claim_vans.words(wanted, self._vans, self._host.specs, many)

    def _holding(self, van: Van) -> conflict.Holding:
        key = (
            van.van_uuid,
            van.instance_uuid,
            van.handle,
            van.requested,
            van.earlier,
        )
        if key not in self._holdings:
            self._holdings[key] = of_handle.holding(van.row, self._host.facts)
        return self._holdings[key]

    def _explain(
        self, wanted: Van, found: Sequence[conflict.Conflict]
    ) -> None:
        """Find the name of a difference."""
        reasons = (
            {stricter(wanted, each, self._vans) for each in found}
            if found
            else {laxer(wanted, each) for each in self._in_the_way(wanted)}
        )
        if '' in reasons or not reasons:
            nodes = ', '.join(
                f'{each.node} of VAN {each.holding.van_uuid}' for each in found
            )
            self._count.unknown.append(
                f'{wanted}\nwith {self._vans}\nnew: {nodes or "may"}'
            )
        self._count.known.update(reasons)

    def _in_the_way(self, wanted: Van) -> list[Van]:
        return [each for each in self._vans if claim_vans.old(wanted, [each])]


def stricter(
    wanted: Van, found: conflict.Conflict, vans: Sequence[Van]
) -> str:
    """Name a difference if only the new rule refuses. '': unknown."""
    (other,) = (
        each for each in vans if each.van_uuid == found.holding.van_uuid
    )
    kinds = {wanted.option.kind, other.option.kind}
    if claim_vans.old(wanted, [other]):
        # allocated.Holders knows only one of the VANs with files of a
        # function.
        return 'hidden by another file'
    if claim_vans.old(other, [dataclasses.replace(wanted, van_uuid='new')]):
        return f'other order: {found.node.kind}'
    if found.node.kind == 'IOMMU group' and 'vgpu' in kinds:
        return 'IOMMU group of a vGPU'
    if found.node.kind == 'PCI function' and not kinds.isdisjoint(OF_MDEVS):
        if 'mdev of a VF' in {each.option.note for each in (wanted, other)}:
            return 'mdev of a VF, and its PF'
        if 'file of an mdev' in kinds and 'file of a function' in kinds:
            return 'file of an mdev, and of its parent'
    if found.node.kind == 'place in an FPGA' and not kinds.isdisjoint(
        OF_MDEVS
    ):
        return 'mdev on a PF of an FPGA'
    if found.node.kind == 'place in an FPGA' and (
        wanted.option.device[:-1] != other.option.device[:-1]
    ):
        # A PF of another class does not show that it is of the same FPGA.
        return 'FPGA in two slots'
    return ''


def laxer(wanted: Van, other: Van) -> str:
    """Name a difference if only the older rules refuse. '': unknown."""
    if other.requested and wanted.option.kind == 'gpu':
        # Its IOMMU group refuses the second one that gets it.
        return 'companion that is only requested'
    return ''
