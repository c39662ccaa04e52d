# SPDX-License-Identifier: Apache-2.0

"""Pools: the functions that are programmed before they are requested.

keep() programs idle regions until each pool has the wanted number of them;
filling says which. A service or a timer calls it. A region that was programmed
recently is left alone for a while, so that it does not follow each change of
the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import datetime
import logging

from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc import progress
from os_acc.desired import documents
from os_acc.desired import filling
from os_acc.desired import regions
from os_acc.desired import steps
from os_acc.journal import demand
from os_acc.journal import events
from os_acc.journal import programs
from os_acc.objects import report as results
from os_acc.operations import device_programming
from os_acc.texts import forms

LOG = logging.getLogger(__name__)

PART = 'pools'

#: A pool stops when its programming has failed in this many regions: a
#: bitstream that is wrong would spoil one device after the other. The second
#: failure shows that it is not the device.
MOST_FAILED = 2

#: Seconds for which a demand counts.
DEMAND_AGE = 3600

_HOUR = datetime.timedelta(hours=1)


def keep(
    host: host_module.Host,
    callback: progress.Callback | None = None,
    now: datetime.datetime | None = None,
) -> objects.ApplyReport:
    """Program idle regions until each pool has the wanted number.

    See os_acc.keep_pools.

    :param now: the time, with its zone; None: that of the clock
    """
    made = objects.ApplyReport(steps=[])
    tried: set[str] = set()
    failed: set[str] = set()
    with contextlib.suppress(exception.LockTimeout):
        while _keep_one(host, callback, now, tried, failed, made):
            pass  # Each programming changes what the others need: look again.
    return made


def _keep_one(
    host: host_module.Host,
    callback: progress.Callback | None,
    now: datetime.datetime | None,
    tried: set[str],
    failed: set[str],
    made: objects.ApplyReport,
) -> bool:
    """Program the next region.

    The document stays the same meanwhile: what a later one puts into the
    region comes after this programming.

    :param tried: the names of the regions that this call has programmed
    :param failed: the functions that this call could not program: their pools
        wait for the next call
    :returns: False: there is nothing to do
    """
    with host.locks.document(0):
        found = _next(host, now, tried, failed)
        if found is None:
            return False
        pool, region = found
        tried.add(region.name)
        step = _program(host, pool, region, callback)
        made.steps.append(step)
        if step.result == results.FAILED:
            failed.add(pool.function)
    return True


def states(
    host: host_module.Host, now: datetime.datetime | None = None
) -> list[filling.State]:
    """Say what each pool has and wants. This changes nothing."""
    document = documents.stored(host.journal.desired())
    now = now or datetime.datetime.now(datetime.UTC)
    devices, _ = regions.devices_of(host)
    there = regions.find(host, document, devices, now)
    return _states(host, document, there, now)


def find(
    before: documents.Document, document: documents.Document
) -> Iterator[steps.Step]:
    """A step for each pool of a document, and of the one before.

    The document has the pools: there is nothing to do but to write it.
    """
    known = {each.function: each for each in before.pools}
    wanted = {each.function: each for each in document.pools}
    for name in dict.fromkeys([*known, *wanted]):
        old, new = _text(known.get(name)), _text(wanted.get(name))
        act = None if old == new else steps.nobody
        yield steps.Step(PART, name, old, new, act)


def _text(pool: documents.Pool | None) -> str:
    if pool is None:
        return 'no pool'
    text = f'{pool.least} free'
    if pool.max is not None:
        text += f', at most {pool.max}'
    if pool.on_demand:
        text += ', on demand'
    if pool.hours is not None:
        text += f', from {pool.hours}'
    return text


def _next(
    host: host_module.Host,
    now: datetime.datetime | None,
    tried: set[str],
    failed: set[str],
) -> tuple[documents.Pool, filling.Region] | None:
    """The next programming."""
    document = documents.stored(host.journal.desired())
    if not document.pools:
        return None
    now = now or datetime.datetime.now(datetime.UTC)
    devices, missing = regions.devices_of(host)
    if missing is not None:
        # A device that is not seen may hold what a pool wants.
        LOG.warning('Pools wait until all devices are seen: %s', missing)
        return None
    found = regions.find(host, document, devices, now)
    return filling.find(
        [
            dataclasses.replace(
                each, acts=each.acts and each.pool.function not in failed
            )
            for each in _states(host, document, found, now)
        ],
        [each for each in found if each.name not in tried],
    )


def _states(
    host: host_module.Host,
    document: documents.Document,
    there: Sequence[filling.Region],
    now: datetime.datetime,
) -> list[filling.State]:
    begun = [
        each.reason
        for each in host.journal.events(
            events.Wanted(since=events.written(now - _HOUR))
        )
        if each.operation == events.POOL
        and regions.is_near(each.at, now, _HOUR)
    ]
    age = datetime.timedelta(seconds=DEMAND_AGE)
    demanded = [
        each
        for each in host.journal.demand()
        if each.function_id is not None
        and regions.is_near(each.last_at, now, age)
    ]
    known = host.journal.programs()
    found = []
    for pool in document.pools:
        wanted = pool.least
        if pool.on_demand and any(
            _is_asked_of(pool, each) for each in demanded
        ):
            wanted = max(wanted, 1)
        acts = (
            pool.is_open(now.astimezone().hour)
            and begun.count(_name(pool)) < pool.per_hour
        )
        number = sum(
            each.state == programs.ERROR
            and forms.same_function(each.function_id, pool.function)
            for each in known
        )
        acts = acts and number < MOST_FAILED
        state = filling.state_of(pool, wanted, acts, there)
        found.append(dataclasses.replace(state, failed=number))
    return found


def _is_asked_of(pool: documents.Pool, found: demand.Demand) -> bool:
    """Whether a pool can serve what was requested and not found."""
    return forms.same_function(pool.function, found.function_id) and (
        None in (pool.resource_class, found.resource_class)
        or pool.resource_class == found.resource_class
    )


def _name(pool: documents.Pool) -> str:
    return f'pool {pool.function}'


def _program(
    host: host_module.Host,
    pool: documents.Pool,
    region: filling.Region,
    callback: progress.Callback | None,
) -> objects.ApplyStep:
    # Before the act: a crash must not undo the limit.
    host.journal.note(
        [
            events.Event(
                at=events.now(),
                operation=events.POOL,
                step=None,
                result=events.DONE,
                device=region.device,
                reason=_name(pool),
            )
        ]
    )
    result, reason = results.CHANGED, None
    try:
        device_programming.program_device(
            host,
            region.device,
            pool.bitstream,
            pool.function,
            region.region or None,
            callback,
        )
    except steps.IN_THE_WAY as err:
        # Somebody has taken it since it was looked at.
        result, reason = results.IN_THE_WAY, exception.describe(err)
    except Exception as err:
        result, reason = results.FAILED, exception.describe(err)
    return objects.ApplyStep(
        part=PART,
        name=region.name,
        before=region.function or 'none, or unknown',
        after=pool.function,
        result=result,
        reason=reason,
    )
