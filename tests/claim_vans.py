# SPDX-License-Identifier: Apache-2.0

"""Who has what on a generated host, and what the older rules say of it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses

import older_rules

from os_acc.claims import allocated
from os_acc.claims import facts
from os_acc.claims import meeting
from os_acc.kernel import device_files
from os_acc.kernel import pci
from os_acc.kinds.devfile import groups as file_groups
from os_acc.refusals import reasons
from os_acc.spec import device_spec

#: The refusals that name a VAN. All others are the device's or the host's.
OF_VANS = (reasons.Category.ALLOCATED, reasons.Category.GROUP_ALLOCATED)

Reasons = Iterator[reasons.Reason]
Numbers = dict[device_files.Number, list[older_rules.Given]]


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
    :ivar companions: the addresses of its companions
    """

    kind: str
    handle: str
    device: str
    refused: Callable[[Asked], Reasons]
    numbers: tuple[str, ...] = ()
    most: int = 0
    note: str = ''
    found: file_groups.Accelerator | None = None
    companions: Sequence[str] = ()


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
    def called(self) -> str:
        return self.instance_uuid

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
            number = device_files.parse(rest, kind)
            name = allocated.file_in(each.handle) or ''
            numbers.setdefault(number, []).append(
                older_rules.Given(
                    each.van_uuid, each.instance_uuid, name, f'/dev/{rest}'
                )
            )
    return Asked(
        allocated.Taker(van.van_uuid, van.instance_uuid),
        allocated.Holders(vans),
        numbers,
    )


def words(
    van: Van, vans: Sequence[Van], specs: device_spec.Specs, many: bool
) -> list[reasons.Reason]:
    """What the one rule says of a VAN that wants something.

    :param many: see allocated.Holders
    """
    holders = allocated.Holders(
        vans,
        files=lambda: {
            each.van_uuid: tuple(
                (text, f'/dev/{text[2:]}', '') for text in each.numbers
            )
            for each in vans
        },
        specs=lambda: specs,
        many=many,
    ).asked_by(allocated.Taker(van.van_uuid, van.instance_uuid))
    handle = van.handle
    if van.option.found and '/' in handle.removeprefix('file/'):
        handle = f'{handle.rpartition("/")[0]}/any'
    found = holders.in_the_way(
        handle, _device(van), van.option.numbers, van.option.most
    )
    close = [each for each in found if each.relation < meeting.Relation.GROUP]
    return [
        *(each.reason for each in close),
        *(
            each.taken(f'its companion {address}')
            for address in van.option.companions
            for each in holders.in_the_way(f'pci/{address}', None)
        ),
        *(each.reason for each in found if each not in close),
    ]


def _device(van: Van) -> str:
    """The PF of a function, also if Cyborg reports it below another one."""
    address = allocated.function_in(van.handle)
    if address is None or not van.handle.startswith('pci/'):
        return van.option.device
    return pci.get(address).parent


def old(van: Van, vans: Sequence[Van]) -> bool:
    """Whether the older rules refuse a VAN because of other VANs."""
    given = asked(van, vans)
    # The unique index of the journal
    same = given.holders.of_handle(van.handle)
    if same is not None and same.van_uuid != van.van_uuid:
        return True
    return any(each.category in OF_VANS for each in van.option.refused(given))
