# SPDX-License-Identifier: Apache-2.0

"""Prepares and unprepares claims: each claim is an instance of os-acc."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import logging
import threading
from typing import TYPE_CHECKING

import os_acc
from os_acc import exception
from os_acc import locking
from os_acc import objects
from os_acc import progress
import os_acc_dra
from os_acc_dra import claims
from os_acc_dra import configuration
from os_acc_dra import errors
from os_acc_dra import metadata
from os_acc_dra import offers
from os_acc_dra import shared
from os_acc_dra import workers

if TYPE_CHECKING:
    from os_acc_dra import cluster

LOG = logging.getLogger(__name__)

PLUGIN = 'cdi'
# The state of a VAN whose device can be used.
_PLUGGED = 'plugged'


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A device that is ready for the containers of a Pod.

    :ivar cdi_ids: the qualified CDI names that the runtime is told
    """

    request: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...]


class Node:
    """The claims of this node.

    :param server: where claims are read
    :param driver: the name of this driver
    :param name: of this node
    :param described: the metadata files of the claims
    :param locks: of the claims, between the processes of this driver
    :param most: how many claims it works on at the same time
    """

    def __init__(
        self,
        server: cluster.Cluster,
        driver: str,
        name: str,
        described: metadata.Metadata,
        locks: locking.Locks,
        most: int,
    ) -> None:
        self._server, self._driver, self._name = server, driver, name
        self._described, self._locks = described, locks
        self._turns = threading.BoundedSemaphore(most)
        self._offers = shared.Shared(lambda: offers.by_name(_devices()))

    def prepare(
        self, wanted: claims.Reference, worker: workers.Worker
    ) -> list[Prepared]:
        """Give a claim its devices; it may be repeated.

        Only one worker at a time works on a claim, in all processes of this
        driver. So what is read here stays true until the end.

        :raises ClaimRefused: if the claim must not be prepared now
        :raises LockTimeout: if another process works on the claim too long
        :raises ServerError: if the API server does not give the claim
        :raises OSError: if a metadata file cannot be written
        :raises: as os_acc.plug
        """
        with self._turn(wanted, worker):
            return self._prepare(wanted, worker)

    @contextlib.contextmanager
    def _turn(
        self, wanted: claims.Reference, worker: workers.Worker
    ) -> Iterator[None]:
        """Lock a claim, and wait while too many others are worked on."""
        worker.say(
            'waits for another process of this driver that works on the claim'
        )
        with self._locks.instance(wanted.uid):
            worker.say('waits for its turn: many other claims come first')
            with self._turns:
                yield

    def _prepare(
        self, wanted: claims.Reference, worker: workers.Worker
    ) -> list[Prepared]:
        worker.say('reads the claim')
        found = self._server.claim(wanted.namespace, wanted.name)
        results = claims.allocated(found, wanted, self._driver, self._name)
        configured = configuration.of_claim(
            found, [each.request for each in results], self._driver
        )
        by_van = {each.van_uuid(wanted.uid): each for each in results}
        worker.check_wanted()
        plugged = self._plugged(wanted, by_van, configured, worker)
        if plugged is None:
            plugged = self._plug(wanted, by_van, configured, worker)
        files = self._described.write(
            found,
            (
                (each, plugged[van_uuid].handle)
                for van_uuid, each in by_van.items()
            ),
        )
        return [
            Prepared(
                each.main_request,
                each.pool,
                each.device,
                # The file comes with the first device of its request.
                (
                    plugged[van_uuid].guest_config or '',
                    *filter(None, [files.pop(each.main_request, None)]),
                ),
            )
            for van_uuid, each in by_van.items()
        ]

    def _plugged(
        self,
        wanted: claims.Reference,
        by_van: Mapping[str, claims.Result],
        configured: Mapping[str, configuration.Configuration],
        worker: workers.Worker,
    ) -> dict[str, objects.VAN] | None:
        """The VANs that the claim has already, made intact.

        :returns: None if they have to be plugged, as after a reboot if the
            URL of a bitstream has a password: the journal does not keep it.
            What the claim has in part, or in another state, is released
        """
        there = os_acc.get_vans(wanted.uid)
        if not there:
            return None
        whole = {
            van.uuid for van in there if van.state == _PLUGGED
        } == by_van.keys() and len(there) == len(by_van)
        if whole:
            # From the journal alone: also while the discovery fails.
            try:
                vans = os_acc.replug(wanted.uid, _telling(worker, by_van))
            except exception.PlugException as err:
                if not any(each.bitstream for each in configured.values()):
                    raise
                LOG.info('%s: plugged with its bitstream: %s', wanted, err)
                return None
            return _by_uuid(vans)
        worker.say('releases what an earlier call has left')
        os_acc.unplug(objects.InstanceInfo(uuid=wanted.uid))
        return None

    def _plug(
        self,
        wanted: claims.Reference,
        by_van: Mapping[str, claims.Result],
        configured: Mapping[str, configuration.Configuration],
        worker: workers.Worker,
    ) -> dict[str, objects.VAN]:
        worker.say('looks for the devices')
        offered = self._offers()
        requests = []
        for van_uuid, each in by_van.items():
            offer = offered.get(each.device)
            if offer is None:
                raise errors.ClaimRefused(
                    f'{wanted}: this node has no device {each.device} now'
                )
            requests.append(
                objects.AcceleratorRequest(
                    uuid=van_uuid,
                    handle=offer.handle,
                    driver=offer.driver,
                    **configured[each.request].selectors(),
                )
            )
        instance = objects.InstanceInfo(
            uuid=wanted.uid, name=f'{wanted.namespace}/{wanted.name}'
        )
        worker.check_wanted()
        vans = os_acc.plug(
            instance,
            requests,
            progress=_telling(worker, by_van),
            plugin=PLUGIN,
        )
        return _by_uuid(vans)

    def unprepare(
        self, wanted: claims.Reference, worker: workers.Worker
    ) -> None:
        """Release the devices of a claim. One that is unknown is not an error.

        The API server is not asked: the claim may be gone.

        :raises UnplugException: if a device is not released; the kubelet asks
            again
        :raises LockTimeout: if another process works on the claim too long
        """
        with self._turn(wanted, worker):
            worker.say('releases the devices')
            os_acc.unplug(
                objects.InstanceInfo(uuid=wanted.uid),
                progress=_telling(worker, {}),
            )
            self._described.remove(wanted.uid)

    def restore(self) -> list[str]:
        """Repair what all claims have. See the function restore()."""
        return restore(self._described, self._locks)


def restore(described: metadata.Metadata, locks: locking.Locks) -> list[str]:
    """Repair what the claims of this node have, such as CDI specs.

    The kubelet asks only once for a claim, and starts containers with the ids
    that it got then. Files of a claim that has no device are removed.

    :param described: the metadata files of the claims
    :param locks: of the claims; one that another process works on is left out
    :returns: what could not be repaired
    """
    failed = []
    uids = {
        van.instance_uuid
        for van in os_acc.get_vans()
        if van.owner == os_acc_dra.OWNER
    }
    for uid in sorted(uids | described.uids()):
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locks.instance(uid, wait=False))
            except exception.LockTimeout:
                continue
            try:
                _restore(uid, described)
            except (exception.ExceptionBase, OSError, ValueError) as err:
                failed.append(f'claim {uid}: {errors.text_of(err)}')
    return failed


def _restore(uid: str, described: metadata.Metadata) -> None:
    """Repair what a claim has; for one without a device, remove the files."""
    vans = os_acc.get_vans(uid)
    if not vans:
        described.remove(uid)
        return
    try:
        described.restore(uid)
    finally:
        # Also if its metadata are damaged.
        if any(
            van.owner == os_acc_dra.OWNER and van.state == _PLUGGED
            for van in vans
        ):
            os_acc.replug(uid)


def _devices() -> list[objects.Device]:
    """The devices; a driver that fails hides only its own."""
    try:
        return os_acc.get_devices()
    except exception.DiscoveryFailed as err:
        LOG.warning('%s', err)
        return err.devices


def _by_uuid(vans: objects.VANList) -> dict[str, objects.VAN]:
    return {van.uuid: van for van in vans}


def _telling(
    worker: workers.Worker, by_van: Mapping[str, claims.Result]
) -> Callable[[progress.Progress], None]:
    """Let a worker say what os-acc is doing."""

    def tell(now: progress.Progress) -> None:
        result = by_van.get(now.van_uuid)
        name = now.van_uuid if result is None else result.device
        parts = [name, now.step, now.status]
        if now.message:
            parts.append(now.message)
        if now.fraction is not None:
            parts.append(f'{now.fraction:.0%}')
        worker.say(': '.join(parts))

    return tell
