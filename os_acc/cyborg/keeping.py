# SPDX-License-Identifier: Apache-2.0
"""A report that drops nothing that is bound.

If a bound attach handle were missing in a report, Cyborg would delete it, and
then answer every GET of accelerator requests with an error. If its resource
provider were to be deleted, Placement would refuse that, and Cyborg would not
read the rest of the report.

Cyborg 17 deletes the newest handle of a deployable in place of the one that is
missing in a report: attach_handle_get_by_filters() in cyborg/db/sqlalchemy/
api.py ignores attach_info. So no handle of a deployable is dropped while any
of its handles is bound. When none is, the whole deployable is left out until
Cyborg has deleted it, and reported again.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import dataclasses

from os_acc.cyborg import bound as bound_module
from os_acc.cyborg import report


def doubts(
    previous: report.Report,
    present: report.Report,
    bound: bound_module.Bound,
) -> Iterator[bound_module.ARQ | None]:
    """List what has to be asked before previous can be replaced by present.

    :param bound: what was bound when Cyborg was last asked
    :returns: ARQs that keep something in the report. If they are still bound,
        the report needs nothing else. None: it is unknown what is bound
    """
    for _, old, new in _pairs(previous, present):
        arqs = bound.of(old.name)
        for key in old.handles if new is None or not new.shared else ():
            if new is None or new.handles.get(key) != old.handles[key]:
                # Any bound ARQ of the deployable keeps all of its handles.
                anyone = arqs[0] if arqs else None
                yield bound.arqs.get((old.name, key), anyone)
        if new is None:
            continue
        if new.resource_class != old.resource_class:
            yield arqs[0] if arqs else None
        if new.shared and new.count < len(arqs):
            yield from arqs


def joined(last: report.Report, recorded: report.Report) -> report.Report:
    """Add what Cyborg has recorded as bound to what was reported last.

    The last report may have left it out without reaching Cyborg.
    """
    made = dict(last)
    for device, part in report.deployables(recorded):
        now = made.get(device.address)
        own = now.deployables.get(part.name) if now else None
        if own is not None:
            part = dataclasses.replace(
                part,
                handles={**own.handles, **part.handles},
                shared=own.shared,
            )
        _put(made, device, part)
    return made


def drops(previous: report.Report, made: report.Report) -> bool:
    """Say whether a report lacks anything of the previous one."""
    return any(
        new is None or new.handles.get(key) != handle
        for _, old, new in _pairs(previous, made)
        for key, handle in old.handles.items()
    )


def shrunk(previous: report.Report, made: report.Report) -> set[str]:
    """Name the deployables of a report that lack handles they had."""
    return {
        old.name
        for _, old, new in _pairs(previous, made)
        if new is not None and not old.handles.items() <= new.handles.items()
    }


def without(made: report.Report, left_out: Collection[str]) -> report.Report:
    """Leave deployables out of a report, by their names."""
    result = {}
    for address, device in made.items():
        parts = {
            name: part
            for name, part in device.deployables.items()
            if name not in left_out
        }
        if parts:
            result[address] = dataclasses.replace(device, deployables=parts)
    return result


def merged(
    previous: report.Report,
    present: report.Report,
    bound: bound_module.Bound,
) -> report.Report:
    """Make the report: present, and what of previous is bound."""
    made = dict(present)
    for device, old, new in _pairs(previous, present):
        if new is not None:
            _put(made, device, _joined(old, new, bound))
        elif bound.uses(old.name):
            _put(
                made,
                device,
                dataclasses.replace(old, count=len(_bound(old, bound))),
            )
        _take_from_others(made, old.name, _bound(old, bound))
    return made


def kept(
    made: report.Report, present: report.Report, bound: bound_module.Bound
) -> Iterator[tuple[report.Device, report.Deployable, bound_module.ARQ]]:
    """List what is in a report only because an ARQ is bound to it."""
    there = {
        (deployable.name, key)
        for _, deployable in report.deployables(present)
        for key in deployable.handles
    }
    for device, deployable in report.deployables(made):
        for key in deployable.handles:
            arq = bound.arqs.get((deployable.name, key))
            if arq is not None and (deployable.name, key) not in there:
                yield device, deployable, arq


def _pairs(
    previous: report.Report, present: report.Report
) -> Iterator[
    tuple[report.Device, report.Deployable, report.Deployable | None]
]:
    """Each deployable of previous, with its device and what it is now."""
    for device, old in report.deployables(previous):
        now = present.get(device.address)
        yield device, old, now.deployables.get(old.name) if now else None


def _joined(
    old: report.Deployable,
    new: report.Deployable,
    bound: bound_module.Bound,
) -> report.Deployable:
    """Add the handles of a deployable, if one is bound, to what it has now.

    The count is that of the handles that are there or bound. A handle that is
    neither may be bound all the same, in place of one that is there.
    """
    keeps = new.shared or bound.uses(old.name)
    handles = {**new.handles, **(old.handles if keeps else {})}
    count = len(new.handles.keys() | _bound(old, bound))
    if new.shared:
        count = new.count
    return dataclasses.replace(
        new,
        handles=handles,
        count=max(count, len(bound.of(old.name))),
        # Placement refuses another class while there are allocations.
        resource_class=old.resource_class
        if bound.uses(old.name)
        else new.resource_class,
    )


def _bound(old: report.Deployable, bound: bound_module.Bound) -> set[str]:
    """Return the keys of the handles that are bound, or may be."""
    return {key for key in old.handles if bound.keeps(old.name, key)}


def _put(
    made: report.Report, device: report.Device, part: report.Deployable
) -> None:
    own = made.get(device.address)
    if own is None:
        own = dataclasses.replace(device, deployables={})
    made[device.address] = dataclasses.replace(
        own, deployables={**own.deployables, part.name: part}
    )


def _take_from_others(
    made: report.Report, name: str, keys: Collection[str]
) -> None:
    """Leave bound handles to the deployable that they are bound in.

    A handle is in another one if device_spec was changed.
    """
    if not keys:
        return
    for device, other in list(report.deployables(made)):
        if other.name == name or other.handles.keys().isdisjoint(keys):
            continue
        left = {k: v for k, v in other.handles.items() if k not in keys}
        parts = dict(device.deployables)
        parts[other.name] = dataclasses.replace(
            other, handles=left, count=min(other.count, len(left))
        )
        if not left:
            del parts[other.name]
        made[device.address] = dataclasses.replace(device, deployables=parts)
        if not parts:
            del made[device.address]
