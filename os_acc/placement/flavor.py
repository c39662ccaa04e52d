# SPDX-License-Identifier: Apache-2.0

"""The accelerators that a flavor of Nova requests, without Cyborg.

The extra specs of a flavor form groups, as in Nova (ResourceRequest in
nova/scheduler/utils.py): ``resources1:CUSTOM_FPGA=1`` and
``trait1:CUSTOM_FPGA_AES=required`` are of group ``1``, and keys without a
suffix are of one more group.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import re
import uuid

from os_acc import exception
from os_acc.placement import inventory
from os_acc.texts import ways

_KEY = re.compile(r'(resources|trait|os_acc)([a-zA-Z0-9_-]{1,64})?:(.*)')

#: The keys of a group that say what to program, without ``os_acc`` and the
#: suffix of the group.
FUNCTION = 'function_id'
BITSTREAM = 'bitstream'
#: The extra spec that says in which way an instance may move while it runs.
MIGRATION = 'os_acc:migration'


@dataclasses.dataclass
class Group:
    """One group of a flavor's extra specs.

    :ivar suffix: its suffix; empty for the group without one
    :ivar resources: the amounts by custom resource class
    :ivar traits: the required traits
    :ivar programs: what to program: FUNCTION and BITSTREAM
    """

    suffix: str
    resources: dict[str, int] = dataclasses.field(default_factory=dict)
    traits: set[str] = dataclasses.field(default_factory=set)
    programs: dict[str, str] = dataclasses.field(default_factory=dict)


def groups(
    extra_specs: Mapping[str, str], image_traits: Iterable[str] = ()
) -> list[Group]:
    """Read the extra specs of a flavor.

    :param image_traits: the traits that the image requires (its property
        traits_required); they are of the group without a suffix
    """
    way(extra_specs)
    found: dict[str, Group] = {'': Group('', traits=set(image_traits))}
    for key, value in extra_specs.items():
        match = _KEY.fullmatch(key)
        if match is None or key == MIGRATION:
            continue
        prefix, suffix, name = match[1], match[2] or '', match[3]
        group = found.setdefault(suffix, Group(suffix))
        if prefix == 'trait':
            if value == 'required':
                group.traits.add(name)
        elif prefix == 'os_acc':
            if name not in (FUNCTION, BITSTREAM):
                raise exception.InvalidRequest(
                    subject='flavor',
                    field=key,
                    # Not the value: it may be a URL with a password.
                    value='(given)',
                    expected=f'os_acc{suffix}:{FUNCTION} or '
                    f'os_acc{suffix}:{BITSTREAM}, or {MIGRATION}',
                )
            group.programs[name] = value
        elif inventory.CUSTOM.fullmatch(name) and (amount := _amount(value)):
            group.resources[name] = amount
    return [found[suffix] for suffix in sorted(found)]


def way(extra_specs: Mapping[str, str]) -> str | None:
    """Read in which way the instances of a flavor move while they run.

    :returns: one of ways.WAYS; None: the flavor does not say
    """
    found = extra_specs.get(MIGRATION)
    if found is not None and found not in ways.WAYS:
        raise exception.InvalidRequest(
            subject='flavor',
            field=MIGRATION,
            value=found,
            expected=' or '.join(ways.WAYS),
        )
    return found


def _amount(value: str) -> int:
    """An amount; 0 if it is not one. Nova does not request such a value."""
    return int(value) if re.fullmatch('[0-9]+', str(value)) else 0


def amounts(asked: Iterable[Group]) -> collections.Counter[str]:
    """Add up what groups request, by custom resource class."""
    total: collections.Counter[str] = collections.Counter()
    for group in asked:
        total.update(group.resources)
    return total


def request_uuids(instance_uuid: str, number: int) -> list[str]:
    """List the UUIDs that the first requests of an instance have."""
    namespace = uuid.UUID(instance_uuid)
    return [
        str(uuid.uuid5(namespace, f'accelerator {position}'))
        for position in range(number)
    ]


def is_of_flavor(van_uuid: str) -> bool:
    """Whether a VAN of Nova's was requested by a flavor, and not by an ARQ.

    Cyborg makes random UUIDs for ARQs: see request_uuids().
    """
    return uuid.UUID(van_uuid).version == 5
