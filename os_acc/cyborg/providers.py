# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""Compares Placement with what os-acc's agent driver reports of this host."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from os_acc import journal
from os_acc import objects
from os_acc.cyborg import differences
from os_acc.cyborg import names
from os_acc.cyborg import present
from os_acc.cyborg import report
from os_acc.placement import client

#: A deployable has no resource provider.
PROVIDER_MISSING = 'provider-missing'
#: The total of the inventory differs.
INVENTORY = 'inventory'
#: The traits of the resource provider differ.
TRAITS = 'traits'

_ADVICE = (
    "Wait for the next report of Cyborg's agent. If it stays, restart the "
    'agent and see the log of cyborg-conductor'
)


def is_reported(
    deployables: Iterable[Mapping[str, Any]], host_name: str
) -> bool:
    """Say whether Cyborg has a deployable of os-acc's driver on this host.

    :param deployables: those of all hosts
    """
    start = names.deployable(host_name, '')
    return any(
        each.get('driver_name') == names.DRIVER
        and str(each.get('name')).startswith(start)
        for each in deployables
    )


def compare(
    placement: client.Client,
    devices: Sequence[objects.Device],
    entries: Sequence[journal.Entry],
    arqs: Sequence[Mapping[str, Any]],
    host_name: str,
) -> Iterator[differences.Difference]:
    """List the differences of the resource providers of this host's devices.

    :param entries: the VANs of this host
    :param arqs: the ARQs of all hosts. The agent keeps a handle that is bound
        in its report, even if it is gone
    :raises RemoteServiceError: if Placement does not answer
    """
    of_arqs = {e.van.uuid for e in entries if differences.is_of_arq(e)}
    expected = present.Lister(host_name).offered(devices, of_arqs)
    for _, deployable in report.deployables(expected):
        uuid = names.provider_uuid(deployable.name)
        inventories = placement.inventories(uuid)
        traits = placement.traits(uuid)
        if inventories is None or traits is None:
            yield differences.Difference(
                PROVIDER_MISSING,
                f'Placement has no resource provider {uuid} with '
                f'{deployable.count} {deployable.resource_class}',
                _ADVICE,
                device=deployable.name,
            )
            continue
        totals = {name: each.total for name, each in inventories.items()}
        wanted = {deployable.resource_class: _total(deployable, uuid, arqs)}
        if totals != wanted:
            yield differences.Difference(
                INVENTORY,
                f'The inventory in Placement is {_listed(totals)}; expected '
                f'{_listed(wanted)}',
                _ADVICE,
                device=deployable.name,
            )
        yield from _traits(deployable, traits.names)


def _total(
    deployable: report.Deployable,
    uuid: str,
    arqs: Iterable[Mapping[str, Any]],
) -> int:
    """Count what the agent reports: what is there, and what is bound."""
    keys = set()
    for arq in arqs:
        if (
            arq.get('state') == differences.BOUND
            and arq.get('device_rp_uuid') == uuid
        ):
            try:
                keys.add(report.of_arq(arq).key)
            except ValueError:
                keys.add(str(arq.get('uuid')))
    if deployable.shared:
        return max(deployable.count, len(keys))
    return len(keys | deployable.handles.keys())


def _traits(
    deployable: report.Deployable, there: frozenset[str]
) -> Iterator[differences.Difference]:
    wanted = frozenset(deployable.traits)
    parts = [
        f'{what} {", ".join(sorted(found))}'
        for what, found in (
            ('lacks', wanted - there),
            ('has also', there - wanted),
        )
        if found
    ]
    if parts:
        yield differences.Difference(
            TRAITS,
            f'The resource provider in Placement {" and ".join(parts)}',
            _ADVICE,
            device=deployable.name,
        )


def _listed(totals: Mapping[str, int]) -> str:
    return (
        ', '.join(f'{n} {name}' for name, n in sorted(totals.items()))
        or 'empty'
    )
