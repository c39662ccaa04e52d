# SPDX-License-Identifier: Apache-2.0
"""os-acc cyborg check: do this host, Cyborg and Placement agree?"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc import opts
from os_acc.cyborg import api as api_module
from os_acc.cyborg import differences
from os_acc.cyborg import names
from os_acc.cyborg import providers
from os_acc.operations import discovery
from os_acc.operations import orphans
from os_acc.placement import client

#: Cyborg cannot list ARQs: the attach handle of a bound ARQ is gone from its
#: database.
CANNOT_LIST = 'cyborg-cannot-list'
#: The drivers could not find all devices of this host.
DISCOVERY = 'discovery-failed'

_REPAIR = (
    'Repair the ARQ in Cyborg\'s database: see "os-acc cyborg check" in the '
    'page "With Cyborg" of the documentation'
)


@dataclasses.dataclass
class Result:
    """What a check has found.

    :ivar differences: what differs
    :ivar notes: a sentence for each thing that was not compared
    :ivar arqs: the ARQs of all hosts; None: Cyborg could not list them
    """

    differences: list[differences.Difference]
    notes: list[str]
    arqs: list[dict[str, Any]] | None


def examine(
    host: host_module.Host,
    api: api_module.API,
    placement: client.Client,
) -> Result:
    """Compare the VANs and devices of this host with Cyborg and Placement.

    It changes nothing.
    """
    if not api.sees_all():
        raise exception.InvalidRequest(
            'cyborg check: the user does not have the role admin, so Cyborg '
            'shows only the ARQs of its project: use another cloud of '
            'clouds.yaml, or another user'
        )
    name = opts.host(host.conf)
    result = Result([], [], None)
    # A VAN whose ARQ is missing was there before and after the ARQs were
    # listed: it was neither plugged nor unplugged meanwhile.
    before = {entry.van.uuid: entry for entry in host.journal.entries()}
    arqs = _arqs(host, api, result)
    devices = _devices(host, result)
    after = host.journal.entries()
    entries = [entry for entry in after if entry.van.uuid in before]
    result.notes += [
        f'VAN {row.van_uuid} of instance {row.instance_uuid} was not '
        f'compared: its row in the journal is unreadable: {row.reason}'
        for row in host.journal.unreadable()
    ]
    holders = {
        holder.handle: holder
        for holder in host.journal.handles()
        if holder.handle is not None
    }
    broken = {each.arq for each in result.differences}
    result.differences += differences.compare(
        [entry for entry in entries if entry.van.uuid not in broken],
        holders,
        arqs,
        devices,
        name,
    )
    if devices is None or result.arqs is None:
        result.notes.append(
            'Placement was not compared, because the devices or the ARQs are '
            'not known completely'
        )
        return result
    named = names.host(host.conf)
    there = providers.reported(api, {name, named}, named)
    if not there:
        result.notes.append(
            "Placement was not compared: Cyborg has no deployable of os-acc's "
            f'driver on host {named}'
        )
        return result
    result.differences += providers.compare(
        placement, there, devices, [*before.values(), *after], arqs, named
    )
    return result


def _arqs(
    host: host_module.Host, api: api_module.API, result: Result
) -> list[dict[str, Any]]:
    """List the ARQs; if Cyborg cannot, read those of this host's VANs."""
    try:
        result.arqs = api.arqs()
    except api_module.BoundHandleGone as err:
        result.notes.append(
            'Cyborg cannot list the ARQs. Only the ARQs of the VANs of this '
            'host were compared, one by one'
        )
        found, broken = [], []
        for entry in filter(differences.is_of_arq, host.journal.entries()):
            try:
                arq = api.arq(entry.van.uuid)
            except api_module.BoundHandleGone as own:
                broken.append(_cannot_list(own, entry.van))
            else:
                found += [] if arq is None else [arq]
        result.differences += broken or [_cannot_list(err, None)]
        return found
    return result.arqs


def _cannot_list(
    err: api_module.BoundHandleGone, van: objects.VAN | None
) -> differences.Difference:
    where = 'of another host or of an ARQ that is not plugged'
    if van is not None:
        where = 'of this ARQ'
    return differences.Difference(
        CANNOT_LIST,
        'Cyborg answers HTTP 404 whenever ARQs are listed: the attach handle '
        f'{where} is gone from its database (table attach_handles, id '
        f'{err.handle_id or "unknown"}), but the ARQ is still bound to it',
        _REPAIR,
        van=None if van is None else van.uuid,
        arq=None if van is None else van.uuid,
        instance=None if van is None else van.instance_uuid,
        device=None
        if van is None or van.handle is None
        else van.handle.identity,
    )


def _devices(
    host: host_module.Host, result: Result
) -> list[objects.Device] | None:
    try:
        return discovery.devices(host)
    except exception.DiscoveryFailed as err:
        result.differences.append(
            differences.Difference(
                DISCOVERY,
                f'{err}. Handles of ARQs were not compared with devices',
                'See os-acc doctor',
            )
        )
        return None


def fix(host: host_module.Host, result: Result, minimum_age: float) -> None:
    """Release the VANs whose ARQ and instance are gone.

    That is: Cyborg has no ARQ of the VAN's instance at all, the plugin says
    that the instance has no guest, and no VAN of the instance was changed
    within the minimum age. Everything else stays as it is. The results go into
    the differences.

    :param minimum_age: seconds
    """
    chosen: dict[str, differences.Difference] = {}
    for each in result.differences:
        why = _unsafe(each, result.arqs)
        if why is None and each.van is not None:
            chosen[each.van] = each
        else:
            each.result = f'not fixed: {why}'
    vans = {uuid: str(each.instance) for uuid, each in chosen.items()}
    released = orphans.release_vans(host, vans, minimum_age)
    errors = {van.uuid: van.error for van in released}
    for uuid, each in chosen.items():
        error = errors.get(uuid, 'the VAN was changed in the meantime')
        each.fixed = error is None
        each.result = 'released' if error is None else f'not fixed: {error}'


def _unsafe(
    each: differences.Difference, arqs: Sequence[Mapping[str, Any]] | None
) -> str | None:
    """Say why a difference is not repaired; None: it may be."""
    if each.problem not in (
        differences.ARQ_GONE,
        differences.HANDLE_REBOUND,
    ):
        return 'an operator must decide'
    if arqs is None:
        return 'Cyborg cannot list the ARQs of the instance'
    others = [
        str(arq.get('uuid'))
        for arq in arqs
        if arq.get('instance_uuid') == each.instance
    ]
    if others:
        return f'the instance still has ARQ {others[0]} in Cyborg'
    return None
