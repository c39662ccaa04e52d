# SPDX-License-Identifier: Apache-2.0

"""What a flavor that no host could serve needs to have programmed.

A flavor names a function by ``os_acc:function_id``, or requires its trait.
Another device can serve it once it is programmed with the function. So the
trait of the function is left out where such a device is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
import urllib.parse
import uuid

from os_acc import host as host_module
from os_acc.desired import documents
from os_acc.journal import demand
from os_acc.journal import events
from os_acc.placement import flavor
from os_acc.placement import functions

# Both have the same order for every host that asks.
_EMPTY, _EMPTY_WITHOUT_INVENTORY, _OTHER = range(3)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A group of a flavor that wants a function.

    :ivar suffix: of the group
    :ivar resources: the amounts by resource class
    :ivar traits: the required traits, without that of the function
    :ivar function: the trait of the function
    """

    suffix: str
    resources: Mapping[str, int]
    traits: frozenset[str]
    function: str


def read(extra_specs: Mapping[str, str]) -> list[Wanted]:
    """Read which functions a flavor wants."""
    found = []
    for group in flavor.groups(extra_specs):
        named = {each for each in group.traits if functions.is_own(each)}
        wanted = named - {functions.EMPTY}
        if flavor.FUNCTION in group.programs:
            wanted.add(functions.trait(group.programs[flavor.FUNCTION]))
        if group.resources and len(wanted) == 1:
            found.append(
                Wanted(
                    group.suffix,
                    group.resources,
                    frozenset(group.traits - named),
                    wanted.pop(),
                )
            )
    return found


def candidates_path(wanted: Sequence[Wanted], memory_mb: int | None) -> str:
    """Ask Placement for devices that could serve, if they had the function.

    :param memory_mb: of the flavor; None: any
    :returns: the path of a GET, of the microversion 1.33
    """
    unnumbered = {} if memory_mb is None else {'MEMORY_MB': memory_mb}
    query: dict[str, str] = {}
    for each in wanted:
        amounts = {**each.resources, **({} if each.suffix else unnumbered)}
        if not each.suffix:
            unnumbered = {}
        query[f'resources{each.suffix}'] = _amounts(amounts)
        if each.traits:
            query[f'required{each.suffix}'] = ','.join(sorted(each.traits))
    if unnumbered:
        query['resources'] = _amounts(unnumbered)
    if sum(bool(each.suffix) for each in wanted) > 1:
        query['group_policy'] = 'none'
    return _path('/allocation_candidates', query)


def empty_path(wanted: Sequence[Wanted]) -> str:
    """Ask Placement for devices without a function.

    Those that are programmed ahead of time only have no inventory, so they
    are no candidates.

    :returns: the path of a GET, of the microversion 1.18
    """
    traits = sorted({functions.EMPTY, *wanted[0].traits})
    return _path('/resource_providers', {'required': ','.join(traits)})


def choose(
    wanted: Sequence[Wanted],
    candidates: Mapping[str, Any],
    empty: Mapping[str, Any],
) -> str | None:
    """Choose the host that programs the functions of a flavor.

    A host with an empty device goes first. Among equals, the function decides,
    so that each host that asks chooses the same one, and the failures of
    several boots lead to one programming.

    :param candidates: the answer to candidates_path()
    :param empty: the answer to empty_path()
    :returns: the UUID of its root provider; None: no host can
    """
    classes = {name for each in wanted for name in each.resources}
    ranks: dict[str, int] = {
        each['root_provider_uuid']: _EMPTY_WITHOUT_INVENTORY
        for each in empty['resource_providers']
    }
    summaries = candidates['provider_summaries']
    for request in candidates['allocation_requests']:
        for name, allocation in request['allocations'].items():
            if classes.isdisjoint(allocation['resources']):
                continue
            summary = summaries[name]
            is_empty = functions.EMPTY in summary['traits']
            root = summary['root_provider_uuid']
            rank = _EMPTY if is_empty else _OTHER
            ranks[root] = min(rank, ranks.get(root, rank))

    def key(root: str) -> tuple[int, uuid.UUID]:
        return ranks[root], uuid.uuid5(uuid.UUID(root), wanted[0].function)

    return min(ranks, key=key, default=None)


def note(
    host: host_module.Host, wanted: Sequence[Wanted], instance_uuid: str
) -> list[str]:
    """Record the functions that a flavor wants as demand of this host.

    :param instance_uuid: the instance that could not be started
    :returns: the functions. One for which this host has no pool is left out,
        because nothing would program it
    """
    pools = documents.stored(host.journal.desired()).pools
    ids = {functions.trait(each.function): each.function for each in pools}
    now = events.now()
    made = [
        demand.Demand(
            name,
            tuple(sorted(each.traits)),
            ids[each.function],
            amount,
            now,
            now,
        )
        for each in wanted
        if each.function in ids
        for name, amount in each.resources.items()
    ]
    new_events = [
        events.Event(
            at=now,
            operation=events.DEMAND,
            step=None,
            result=events.FAILED,
            instance_uuid=instance_uuid,
            reason=each.text(),
        )
        for each in made
    ]
    if made:
        host.journal.note_demand(made, new_events)
    return [str(each.function_id) for each in made]


def _amounts(resources: Mapping[str, int]) -> str:
    return ','.join(f'{name}:{n}' for name, n in sorted(resources.items()))


def _path(path: str, query: Mapping[str, str]) -> str:
    return f'{path}?{urllib.parse.urlencode(query, safe=":,")}'
