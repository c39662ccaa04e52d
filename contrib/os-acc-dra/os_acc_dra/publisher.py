# SPDX-License-Identifier: Apache-2.0

"""Keeps the ResourceSlices of this node up to date with its devices.

The kubelet deletes the slices at its start, and some time after the driver is
gone. So they are watched, and written again.
"""

from __future__ import annotations

from collections.abc import Callable
import copy
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING
from typing import Any

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.objects import van as states
import os_acc_dra
from os_acc_dra import errors
from os_acc_dra import health
from os_acc_dra import offers
from os_acc_dra import slices as slices_module

if TYPE_CHECKING:
    from os_acc_dra import cluster

LOG = logging.getLogger(__name__)

_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_INVALID = 422
_COUNTERS = frozenset({'sharedCounters', 'consumesCounters'})
_CONDITIONS = frozenset(
    {'bindsToNode', 'bindingConditions', 'bindingFailureConditions'}
)


class Publisher:
    """Publishes the devices of this node.

    :param period: seconds between two looks at the devices
    :param publishes: says whether this process is the one that writes slices;
        another one only looks at the devices
    :param features: what it publishes if the API server keeps it
    """

    def __init__(
        self,
        server: cluster.Cluster,
        driver: str,
        node: str,
        period: float,
        publishes: Callable[[], bool] = lambda: True,
        features: slices_module.Features | None = None,
    ) -> None:
        self._server, self._driver, self._node = server, driver, node
        self._period, self._publishes = period, publishes
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._wanted = features or slices_module.Features()
        # Without those that the API server is known not to keep.
        self._features = self._wanted
        # What the last whole discovery has found.
        self._observed: health.Observed | None = None

    def start(self) -> None:
        """Publish in threads of its own."""
        for work in (self._publish, self._watch):
            threading.Thread(
                target=work, name=f'slices {work.__name__}', daemon=True
            ).start()

    def stop(self) -> None:
        """Stop publishing. The slices stay: the kubelet deletes them."""
        self._ended.set()
        self._changed.set()

    def observed(self) -> health.Observed | None:
        """What the last whole discovery has found; None: there was none."""
        return self._observed

    def _publish(self) -> None:
        self._repeat(self.publish, self._period)

    def _watch(self) -> None:
        self._repeat(
            lambda: self._server.watch_slices(
                self._driver, self._node, self._changed.set
            ),
            0.0,
        )

    def _repeat(self, work: Callable[[], None], period: float) -> None:
        """Do work again and again, with growing pauses while it fails."""
        pause = _PAUSE
        while not self._ended.is_set():
            try:
                work()
            except Exception as err:
                LOG.warning('ResourceSlices: %s', errors.text_of(err))
                self._ended.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause = _PAUSE
            # Always pause, even if the server changes a slice each time.
            self._ended.wait(_PAUSE)
            if period:
                self._changed.wait(period)
                self._changed.clear()

    def publish(self) -> None:
        """Bring the slices up to date with the devices.

        :raises ServerError: if the API server refuses, or does not answer
        :raises OSError: if it is unknown whether this process publishes
        """
        if not self._publishes():
            self._discover(is_published=True)
            return
        there = self._server.slices(self._driver, self._node)
        inventory = self._inventory(bool(there))
        if inventory is None:
            return
        if not there:
            # The API server may be another one now.
            self._features = self._wanted
        known = self._features
        try:
            self._bring(inventory, there)
        except errors.ServerError:
            # It is unknown whether a feature was the cause.
            self._features = known
            raise

    def _bring(
        self, inventory: slices_module.Inventory, there: list[dict[str, Any]]
    ) -> None:
        """Write what differs, with the features that the server keeps."""
        while True:
            specs = slices_module.specs(
                inventory, self._driver, self._node, self._features
            )
            before = self._features
            try:
                self._write(specs, there)
            except errors.ServerError as err:
                if err.status != _INVALID or not before.counters:
                    raise
                # Not every version accepts counters in their present form.
                LOG.warning('Without shared counters: %s', err)
                self._features = dataclasses.replace(before, counters=False)
            if self._features == before:
                return
            there = self._server.slices(self._driver, self._node)

    def _inventory(self, is_published: bool) -> slices_module.Inventory | None:
        """What this node has; None: unknown, so that nothing may change."""
        found = self._discover(is_published)
        if found is None:
            return None
        # The scheduler knows these, but not what a claim that is gone left.
        held = {
            van.handle.identity
            for van in os_acc.get_vans()
            if van.owner == os_acc_dra.OWNER
            and van.handle is not None
            and van.state != states.ERROR
        }
        exclusions = os_acc.get_exclusions(_devices(found))
        return slices_module.Inventory.of(found, exclusions, held)

    def _discover(self, is_published: bool) -> dict[str, offers.Offer] | None:
        """List what this node can offer; None: it is not known.

        Nothing is withdrawn because a driver of os-acc has failed.
        """
        try:
            devices = os_acc.get_devices()
        except exception.DiscoveryFailed as err:
            LOG.warning('%s', err)
            if self._observed is None and is_published:
                return None
            before = self._observed.offers if self._observed else {}
            return {**before, **offers.by_name(err.devices)}
        found = offers.by_name(devices)
        self._observed = health.Observed(found, time.time())
        return found

    def _write(
        self, specs: list[dict[str, Any]], there: list[dict[str, Any]]
    ) -> None:
        """Create, replace and delete slices, if they differ."""
        by_name = {each['metadata']['name']: each for each in there}
        wanted = {
            f'{self._driver}-{self._node}-{number}': spec
            for number, spec in enumerate(specs)
        }
        differ = [
            name
            for name, spec in wanted.items()
            if name not in by_name or _differs(by_name[name]['spec'], spec)
        ]
        gone = by_name.keys() - wanted.keys()
        generations = {each['spec']['pool']['generation'] for each in there}
        generation = max(generations, default=0)
        whole = not gone and len(generations) == 1
        if whole and not differ:
            return
        if not whole or len(differ) != 1 or differ[0] not in by_name:
            # A reader takes the slices of one generation only.
            generation += 1
            differ = list(wanted)
        owner = self._owner()
        for name in differ:
            spec = copy.deepcopy(wanted[name])
            spec['pool']['generation'] = generation
            self._put(name, spec, owner, by_name.get(name))
        for name in gone:
            self._server.delete_slice(name)

    def _owner(self) -> dict[str, Any]:
        return {
            'apiVersion': 'v1',
            'kind': 'Node',
            'name': self._node,
            'uid': self._server.node_uid(self._node),
            'controller': True,
        }

    def _put(
        self,
        name: str,
        spec: dict[str, Any],
        owner: dict[str, Any],
        old: dict[str, Any] | None,
    ) -> None:
        body: dict[str, Any] = {
            'apiVersion': 'resource.k8s.io/v1',
            'kind': 'ResourceSlice',
            'metadata': {'name': name, 'ownerReferences': [owner]},
            'spec': spec,
        }
        if old is None:
            answer = self._server.create_slice(body)
        else:
            version = old['metadata']['resourceVersion']
            body['metadata']['resourceVersion'] = version
            answer = self._server.replace_slice(body)
        self._notice(spec, answer['spec'])

    def _notice(self, sent: dict[str, Any], kept: dict[str, Any]) -> None:
        """Notice what the server has dropped without an error."""
        lost = _fields(sent) - _fields(kept)
        if lost:
            LOG.warning(
                'The API server drops %s: the feature is off. Devices that '
                'cannot be offered without it are not offered',
                ', '.join(sorted(lost)),
            )
            before = self._features
            self._features = slices_module.Features(
                before.counters and not lost & _COUNTERS,
                before.taints and 'taints' not in lost,
                before.conditions and not lost & _CONDITIONS,
            )


def _fields(spec: dict[str, Any]) -> set[str]:
    """The optional fields that a slice has."""
    optional = {*_COUNTERS, *_CONDITIONS, 'taints'}
    found = optional & {name for name, value in spec.items() if value}
    for device in spec.get('devices') or ():
        found |= optional & {name for name, value in device.items() if value}
    return found


def _differs(there: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a slice says something else, whatever its generation."""
    return _said(there) != _said(wanted)


def _said(spec: dict[str, Any]) -> dict[str, Any]:
    """What this driver says in a slice, without what the server adds."""
    pool = spec['pool']
    return {
        'pool': (pool['name'], pool['resourceSliceCount']),
        'counters': spec.get('sharedCounters') or [],
        'devices': [
            {
                'name': each['name'],
                'attributes': each.get('attributes') or {},
                'counters': each.get('consumesCounters') or [],
                'conditions': each.get('bindingConditions') or [],
                'taints': [
                    (taint['key'], taint.get('value'), taint['effect'])
                    for taint in each.get('taints') or ()
                ],
            }
            for each in spec.get('devices') or ()
        ],
    }


def _devices(found: dict[str, offers.Offer]) -> list[objects.Device]:
    """The devices of offers, each once."""
    return list(
        {id(each.device): each.device for each in found.values()}.values()
    )
