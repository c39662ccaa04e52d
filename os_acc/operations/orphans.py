# SPDX-License-Identifier: Apache-2.0
"""Releases the VANs of instances that no longer exist.

If the domain of an instance is gone already, nova-compute may never call
destroy for the instance, so nobody unplugs its VANs.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
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
from os_acc.attach import guests
from os_acc.attach import parallel
from os_acc.attach import plan
from os_acc.attach import recorder
from os_acc.attach import release as release_module
from os_acc.attach import steps
from os_acc.journal import events
from os_acc.objects import van as states

LOG = logging.getLogger(__name__)

_GUEST = 'the hypervisor still has the guest of the instance'
_UNKNOWN = 'the plugin cannot tell whether the guest of the instance exists'


def find(
    host: host_module.Host,
    known: Iterable[Any],
    minimum_age: float,
    owner: str | None,
) -> objects.VANList:
    """List the orphans. This changes nothing and takes no lock.

    :param owner: only VANs of this owner; None: VANs of all owners
    :returns: copies. If it is unknown whether a guest exists, the VAN's error
        says why
    """
    chosen = _Chosen(host, minimum_age, _by_owner(owner))
    # In parallel: each waits some seconds for a hypervisor that is down.
    return _for_each(host, _candidates(host, known, minimum_age), chosen.find)


def release(
    host: host_module.Host,
    known: Iterable[Any],
    minimum_age: float,
    owner: str,
) -> objects.VANList:
    """See os_acc.release_orphans."""
    chosen = _Chosen(host, minimum_age, _by_owner(owner))
    instances = _candidates(host, known, minimum_age)
    vans = _for_each(host, instances, chosen.release)
    if vans:
        LOG.info(
            'Orphans: %d VANs released, %d not released',
            sum(van.error is None for van in vans),
            sum(van.error is not None for van in vans),
        )
    return vans


def release_vans(
    host: host_module.Host,
    vans: Mapping[str, str],
    minimum_age: float,
) -> objects.VANList:
    """Release given VANs, of any owner, if their instances have no guest.

    The caller knows that nobody needs the VANs. As in release(), a VAN stays
    if a VAN of the instance was changed within the minimum age, or if another
    thread or process is working on the instance. Unlike there, it also stays
    if the plugin cannot tell whether the guest exists.

    :param vans: the UUIDs of the VANs; for each, that of its instance
    :returns: those of the VANs that are in the journal. A VAN without error
        was released. Any other keeps its device, and its error says why
    """
    _check_age(minimum_age)
    chosen = _Chosen(
        host, minimum_age, lambda entry: entry.van.uuid in vans, certain=True
    )
    found: list[objects.VAN] = []
    for uuid in dict.fromkeys(vans.values()):
        found += chosen.release(uuid)
    return objects.VANList(objects=found)


def _for_each(
    host: host_module.Host,
    instances: Sequence[str],
    act: Callable[[str], list[objects.VAN]],
) -> objects.VANList:
    """Act on several instances at a time, and put their VANs in order."""
    found: dict[str, list[objects.VAN]] = {}

    def one(uuid: str) -> None:
        found[uuid] = act(uuid)

    workers = host.conf.os_acc.max_workers
    parallel.run(one, instances, workers, threading.Event())
    return objects.VANList(
        objects=[van for uuid in instances for van in found.get(uuid, [])]
    )


def _by_owner(owner: str | None) -> Callable[[journal.Entry], bool]:
    """Choose the VANs of an owner; None: of all owners."""
    return lambda entry: owner in (None, entry.van.owner)


class _Chosen:
    """The VANs of instances that no longer exist.

    :param chosen: says which of the VANs of an instance
    :param certain: True: only if the plugin is certain that there is no
        guest; what stays is in the result too, with the reason
    """

    def __init__(
        self,
        host: host_module.Host,
        minimum_age: float,
        chosen: Callable[[journal.Entry], bool],
        certain: bool = False,
    ) -> None:
        self._host, self._minimum_age = host, minimum_age
        self._chosen, self._certain = chosen, certain

    def find(self, uuid: str) -> list[objects.VAN]:
        """The orphans of one instance."""
        entries = self._orphans(uuid)
        try:
            if guests.exists(self._host, entries):
                return []
        except Exception as err:
            return _failed(entries, exception.describe(err))
        return [entry.van for entry in entries]

    def release(self, uuid: str) -> list[objects.VAN]:
        """Release the orphans of one instance. Errors go into the VANs."""
        host, certain = self._host, self._certain
        entries: list[journal.Entry] = []
        logger = log.about(LOG, uuid)
        try:
            entries = self._orphans(uuid)
            if not entries:
                return self._young(uuid) if certain else []
            with host.locks.instance(uuid, wait=False):
                # They may have changed before this thread had the lock.
                entries = self._orphans(uuid)
                if not entries:
                    return []
                guest = guests.exists(host, entries)
                if certain and guest is not False:
                    return _failed(entries, _GUEST if guest else _UNKNOWN)
                if guest:
                    return []
                logger.warning(
                    'the instance no longer exists: releasing %d VANs',
                    len(entries),
                )
                record = recorder.Recorder(
                    events.ORPHANS, entries[0].instance_info
                )
                result = release_module.release(
                    host, entries, steps.Steps(host, record)
                )
        except exception.Timeout:
            text = 'another thread or process is working on the instance'
            return _failed(entries, text)
        except Exception as err:
            log.error(logger, err, 'orphans were not released')
            return _failed(entries, exception.describe(err))
        result.show(entries)
        return [entry.van for entry in entries]

    def _orphans(self, uuid: str) -> list[journal.Entry]:
        """The chosen VANs, unless a VAN of the instance is too young.

        An instance that is being moved is known to one host, and has VANs on
        two. A service of the host itself is known to no hypervisor.
        """
        entries = self._host.journal.entries(uuid)
        now = timeutils.utcnow(with_timezone=True)
        for entry in entries:
            if entry.instance_info.host_service is not None:
                return []
            if entry.van.state in states.MOVING:
                return []
            changed = entry.van.updated_at or now
            if (now - changed).total_seconds() < self._minimum_age:
                return []
        return [entry for entry in entries if self._chosen(entry)]

    def _young(self, uuid: str) -> list[objects.VAN]:
        """The chosen VANs of an instance with a VAN that is too young."""
        entries = self._host.journal.entries(uuid)
        return _failed(
            [entry for entry in entries if self._chosen(entry)],
            'a VAN of the instance was changed within the last '
            f'{self._minimum_age:g} seconds',
        )


def _candidates(
    host: host_module.Host, known: Iterable[Any], minimum_age: float
) -> list[str]:
    """The UUIDs of the instances in the journal that are not known."""
    expected = 'a list of UUIDs'
    if isinstance(known, str | bytes) or not isinstance(known, Iterable):
        _refuse('known_instance_uuids', known, expected)
    uuids = {
        plan.van_uuid(value, 'known_instance_uuids', expected)
        for value in known
    }
    _check_age(minimum_age)
    return [uuid for uuid in host.journal.instances() if uuid not in uuids]


def _check_age(minimum_age: Any) -> None:
    if (
        not isinstance(minimum_age, int | float)
        or not math.isfinite(minimum_age)
        or minimum_age < 0
    ):
        _refuse('minimum_age', minimum_age, 'seconds, 0 or more')


def _refuse(field: str, value: Any, expected: str) -> None:
    raise exception.InvalidRequest(
        subject='os_acc.release_orphans',
        field=field,
        value=value,
        expected=expected,
    )


def _failed(entries: Sequence[journal.Entry], text: str) -> list[objects.VAN]:
    for entry in entries:
        entry.van.error = text
    return [entry.van for entry in entries]
