# SPDX-License-Identifier: Apache-2.0

"""Who has what on a generated host, and what the older rules say of it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses

from os_acc.availability import device_numbers
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.claims import facts
from os_acc.kernel import device_file
from os_acc.kinds.devfile import groups as file_groups
from os_acc.refusals import reasons

#: The refusals that name a VAN. All others are the device's or the host's.
OF_VANS = (reasons.Kind.ALLOCATED, reasons.Kind.GROUP_ALLOCATED)

Numbers = dict[device_file.Number, list[device_numbers.Given]]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the older rules are asked with."""

    taker: allocated.Taker
    holders: allocated.Holders
    numbers: Numbers


@dataclasses.dataclass(frozen=True)
class Option:
    """Something that a VAN can have or want.

    :ivar kind: for counting, such as 'pci VF'
    :ivar refused: the older rules
    :ivar note: what tells it from others of its kind
    :ivar found: the accelerator of device files that it is
    """

    kind: str
    handle: str
    device: str
    refused: Callable[[Asked], bool]
    numbers: tuple[str, ...] = ()
    most: int = 0
    note: str = ''
    found: file_groups.Accelerator | None = None


@dataclasses.dataclass(frozen=True)
class Van:
    """A VAN that has an option, or requests it. It is a Holder, too.

    :ivar requested: it has not got it yet
    :ivar earlier: it has got it before the last boot of the host
    """

    van_uuid: str
    instance_uuid: str
    option: Option
    requested: bool = False
    earlier: bool = False

    @property
    def handle(self) -> str:
        return self.option.handle

    @property
    def device(self) -> str | None:
        return None if self.requested else self.option.device

    @property
    def row(self) -> facts.Row:
        """What the new rule gets."""
        return facts.Row(
            self.handle,
            self.device,
            self.van_uuid,
            self.instance_uuid,
            self.numbers,
            self.option.most,
        )

    @property
    def numbers(self) -> tuple[str, ...]:
        """The device numbers that it was given in this boot."""
        known = not self.requested and not self.earlier
        return self.option.numbers if known else ()


def asked(van: Van, vans: Sequence[Van]) -> Asked:
    """What the older rules get of the VANs that have devices."""
    numbers: Numbers = {}
    for each in vans:
        for text in each.numbers:
            kind, _, rest = text.partition(' ')
            number = device_file.parse(rest, kind)
            name = allocated.file_in(each.handle) or ''
            numbers.setdefault(number, []).append(
                device_numbers.Given(
                    each.van_uuid, each.instance_uuid, name, f'/dev/{rest}'
                )
            )
    return Asked(
        allocated.Taker(van.van_uuid, van.instance_uuid),
        allocated.Holders(vans),
        numbers,
    )


def old(van: Van, vans: Sequence[Van]) -> bool:
    """Whether the older rules refuse a VAN because of other VANs."""
    given = asked(van, vans)
    # The unique index of the journal
    same = given.holders.of_handle(van.handle)
    if same is not None and same.van_uuid != van.van_uuid:
        return True
    return van.option.refused(given)


def of_vans(found: Iterable[availability.Obstacle]) -> bool:
    """Whether one of some refusals names a VAN."""
    return any(each.kind in OF_VANS for each in found)
