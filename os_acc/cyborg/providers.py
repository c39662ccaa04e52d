# SPDX-License-Identifier: Apache-2.0
"""Compares Placement with what os-acc's agent driver reports on this host."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from os_acc import journal
from os_acc import objects
from os_acc.cyborg import api as api_module
from os_acc.cyborg import differences
from os_acc.cyborg import names
from os_acc.cyborg import present
from os_acc.cyborg import report
from os_acc.placement import client
from os_acc.placement import inventory

#: A deployable has no resource provider.
PROVIDER_MISSING = 'provider-missing'
#: A deployable that os-acc does not report still has an inventory.
PROVIDER_STALE = 'provider-stale'
#: The total of the inventory differs.
INVENTORY = 'inventory'
#: The traits of the resource provider differ.
TRAITS = 'traits'

_ADVICE = (
    "Wait for the next report of Cyborg's agent. If it remains, restart the "
    'agent and check the log of cyborg-conductor'
)


def reported(
    api: api_module.API, hosts: Collection[str], host_name: str
) -> dict[str, Mapping[str, Any]]:
    """List what os-acc's agent driver has reported about this host to Cyborg.

    :param hosts: the names that this host may have in Cyborg's devices
    """
    starts = [
        f'{names.deployable(host_name, address)}_'
        for each in api.devices()
        if each.get('hostname') in hosts
        and (address := report.address_in(each.get('vendor_board_info')))
    ]
    return {
        str(each['name']): each
        for each in api.deployables()
        if each.get('driver_name') == names.DRIVER
        and any(f'{each.get("name")}_'.startswith(start) for start in starts)
    }


def compare(
    placement: client.Client,
    there: Iterable[str],
    devices: Sequence[objects.Device],
    entries: Sequence[journal.Entry],
    arqs: Sequence[Mapping[str, Any]],
    host_name: str,
) -> Iterator[differences.Difference]:
    """List the differences of the resource providers of this host's devices.

    :param there: the names of the deployables that Cyborg has: see reported()
    :param entries: the VANs that this host had while the devices were listed
    :param arqs: the ARQs of all hosts. The agent keeps a handle that is bound
        in its report, even if it is gone
    :param host_name: see names.host()
    """
    of_arqs = {e.van.uuid for e in entries if differences.is_of_arq(e)}
    expected = present.Lister(host_name).offered(devices, of_arqs)
    found = {each.name: each for _, each in report.deployables(expected)}
    for name in sorted(set(there) - found.keys()):
        yield from _stale(placement, name, arqs)
    for deployable in found.values():
        yield from _provider(placement, deployable, arqs)


def _stale(
    placement: client.Client, name: str, arqs: Iterable[Mapping[str, Any]]
) -> Iterator[differences.Difference]:
    """Look at a deployable that has nothing to give out."""
    uuid = names.provider_uuid(name)
    inventories = placement.inventories(uuid)
    if inventories and not any(_bound_to(uuid, arqs)):
        yield differences.Difference(
            PROVIDER_STALE,
            f'Placement offers {_listed(_totals(inventories))}, but os-acc '
            'has nothing there that Cyborg may assign',
            _ADVICE,
            device=name,
        )


def _provider(
    placement: client.Client,
    deployable: report.Deployable,
    arqs: Iterable[Mapping[str, Any]],
) -> Iterator[differences.Difference]:
    """Look at the resource provider of a deployable."""
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
        return
    totals = _totals(inventories)
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


def _bound_to(
    uuid: str, arqs: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Choose the ARQs that are bound to a resource provider."""
    return (
        arq
        for arq in arqs
        if arq.get('state') == differences.BOUND
        and arq.get('device_rp_uuid') == uuid
    )


def _total(
    deployable: report.Deployable,
    uuid: str,
    arqs: Iterable[Mapping[str, Any]],
) -> int:
    """Count what the agent reports: what is there, and what is bound."""
    keys = set()
    for arq in _bound_to(uuid, arqs):
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


def _totals(
    inventories: Mapping[str, inventory.Inventory],
) -> dict[str, int]:
    return {name: each.total for name, each in inventories.items()}


def _listed(totals: Mapping[str, int]) -> str:
    return (
        ', '.join(f'{n} {name}' for name, n in sorted(totals.items()))
        or 'empty'
    )
