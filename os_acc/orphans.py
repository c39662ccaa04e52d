# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""Releases the VANs of instances that no longer exist.

If the domain of an instance is gone already, nova-compute may never call
destroy for the instance, so nobody unplugs its VANs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import logging
import math
import threading
from typing import Any

from oslo_utils import timeutils

from os_acc import exception
from os_acc import host as host_module
from os_acc import journal
from os_acc import log
from os_acc import objects
from os_acc.attach import parallel
from os_acc.attach import plan
from os_acc.attach import release as release_module
from os_acc.attach import steps
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)


def find(
    host: host_module.Host,
    known: Iterable[Any],
    minimum_age: float,
    owner: str | None,
) -> objects.VANList:
    """List the orphans. This changes nothing and takes no lock.

    :param known: the UUIDs of the instances that exist
    :param minimum_age: see os_acc.release_orphans
    :param owner: only VANs of this owner; None: VANs of all owners
    :returns: copies. If it is unknown whether a guest exists, the VAN's error
        says why
    :raises InvalidRequest: if an argument is wrong
    """
    found: list[objects.VAN] = []
    for uuid in _candidates(host, known, minimum_age):
        entries = _orphans(host, uuid, minimum_age, owner)
        try:
            if not _has_guest(host, entries):
                found += [entry.van for entry in entries]
        except Exception as err:
            found += _failed(entries, exception.describe(err))
    return objects.VANList(objects=found)


def release(
    host: host_module.Host,
    known: Iterable[Any],
    minimum_age: float,
    owner: str,
) -> objects.VANList:
    """See os_acc.release_orphans."""
    candidates = _candidates(host, known, minimum_age)
    found: dict[str, list[objects.VAN]] = {}

    def one(uuid: str) -> None:
        found[uuid] = _release_instance(host, uuid, minimum_age, owner)

    stop = threading.Event()
    parallel.run(one, candidates, host.conf.os_acc.max_workers, stop)
    vans = [van for uuid in candidates for van in found.get(uuid, [])]
    if vans:
        LOG.info(
            'Orphans: %d VANs released, %d not released',
            sum(van.error is None for van in vans),
            sum(van.error is not None for van in vans),
        )
    return objects.VANList(objects=vans)


def _release_instance(
    host: host_module.Host, uuid: str, minimum_age: float, owner: str
) -> list[objects.VAN]:
    """Release the orphans of one instance. Errors go into the VANs."""
    entries: list[journal.Entry] = []
    logger = log.about(LOG, uuid)
    try:
        entries = _orphans(host, uuid, minimum_age, owner)
        if not entries:
            return []
        with host.locks.instance(uuid, wait=False):
            # They may have changed before this thread had the lock.
            entries = _orphans(host, uuid, minimum_age, owner)
            if not entries or _has_guest(host, entries):
                return []
            logger.warning(
                'the instance does not exist any more: releasing %d VANs',
                len(entries),
            )
            result = release_module.release(host, entries, steps.Steps(host))
    except exception.Timeout:
        text = 'another thread or process is working on the instance'
        return _failed(entries, text)
    except Exception as err:
        logger.exception('orphans were not released')
        return _failed(entries, exception.describe(err))
    for entry in entries:
        entry.van.error = result.error_of(entry.van)
        if entry.van.error is not None:
            entry.van.state = states.ERROR
    return [entry.van for entry in entries]


def _candidates(
    host: host_module.Host, known: Iterable[Any], minimum_age: float
) -> list[str]:
    """The UUIDs of the instances in the journal that are not known.

    :raises InvalidRequest: if an argument is wrong
    """
    expected = 'a list of UUIDs'
    if isinstance(known, str | bytes):
        _refuse('known_instance_uuids', known, expected)
    uuids = {
        plan.van_uuid(value, 'known_instance_uuids', expected)
        for value in known
    }
    if (
        not isinstance(minimum_age, int | float)
        or not math.isfinite(minimum_age)
        or minimum_age < 0
    ):
        _refuse('minimum_age', minimum_age, 'seconds, 0 or more')
    there = dict.fromkeys(van.instance_uuid for van in host.journal.vans())
    return [uuid for uuid in there if uuid not in uuids]


def _refuse(field: str, value: Any, expected: str) -> None:
    raise exception.InvalidRequest(
        subject='os_acc.release_orphans',
        field=field,
        value=value,
        expected=expected,
    )


def _orphans(
    host: host_module.Host, uuid: str, minimum_age: float, owner: str | None
) -> list[journal.Entry]:
    """The VANs of an owner, unless one of the instance is too young."""
    entries = host.journal.entries(uuid)
    now = timeutils.utcnow(with_timezone=True)
    for entry in entries:
        changed = entry.van.updated_at or now
        if (now - changed).total_seconds() < minimum_age:
            return []
    return [e for e in entries if owner in (None, e.van.owner)]


def _has_guest(
    host: host_module.Host, entries: Sequence[journal.Entry]
) -> bool:
    """Whether a plugin says that the guest exists."""
    plugins = {entry.van.plugin: entry.instance_info for entry in entries}
    return any(
        host.extensions.plugin(name).has_guest(info)
        for name, info in plugins.items()
    )


def _failed(entries: Sequence[journal.Entry], text: str) -> list[objects.VAN]:
    for entry in entries:
        entry.van.error = text
    return [entry.van for entry in entries]
