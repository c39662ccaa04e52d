# SPDX-License-Identifier: Apache-2.0

"""Prepares claims before their Pods are bound to this node.

A device that os-acc programs has a binding condition in its ResourceSlice. The
scheduler allocates it to a claim. It binds the Pod after the condition has
become true in the status of the claim (KEP-5007, DRADeviceBindingConditions).
If the failure condition becomes true, it chooses another device. So such a
claim is prepared here, and the kubelet's Prepare finds all of it done.

Claims cannot be selected by their node: all claims of the cluster are read.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import logging
import threading
from typing import TYPE_CHECKING
from typing import Any

from os_acc import exception
from os_acc_dra import claims as claims_module
from os_acc_dra import errors
from os_acc_dra import orphans

if TYPE_CHECKING:
    from os_acc_dra import cluster
    from os_acc_dra import service

LOG = logging.getLogger(__name__)

_LONGEST = 1024
_TRUE = 'True'


def conditions(driver: str) -> tuple[str, str]:
    """The condition that a device is ready, and that it will not be."""
    return f'{driver}/programmed', f'{driver}/failed'


def published(driver: str) -> dict[str, Any]:
    """What the ResourceSlice says about a device that is programmed."""
    done, failed = conditions(driver)
    return {
        'bindsToNode': True,
        'bindingConditions': [done],
        'bindingFailureConditions': [failed],
    }


class Binder:
    """Sets the conditions of the claims whose Pods wait for this node.

    :param driver: the name of this driver
    :param node: the name of this node
    :param directory: the kubelet's directory
    :param work: prepares and unprepares
    :param acts: says whether this process is the one that does it
    """

    def __init__(
        self,
        server: cluster.Cluster,
        driver: str,
        node: str,
        directory: str,
        work: service.Calls,
        acts: Callable[[], bool],
    ) -> None:
        self._server, self._driver, self._node = server, driver, node
        self._directory, self._work, self._acts = directory, work, acts
        self._guard = threading.Lock()
        # The UIDs of the claims that a thread works on now.
        self._busy: set[str] = set()
        # The claims that were prepared before the kubelet asked, by UID.
        self._early: dict[str, claims_module.Reference] = {}

    def repeat(self, ended: threading.Event, period: float) -> None:
        """Call look() again and again, in a thread of its own.

        :param period: seconds between two calls
        """

        def go_on() -> None:
            while not ended.wait(period):
                try:
                    self.look()
                except Exception as err:
                    LOG.warning('Claims to bind: %s', errors.text_of(err))

        threading.Thread(target=go_on, name='binding', daemon=True).start()

    def look(self) -> None:
        """Begin to prepare the claims that wait, and release those given up.

        :raises ServerError: if the API server does not answer
        :raises OSError: if the kubelet's checkpoint cannot be read
        """
        if not self._acts():
            return
        there = self._server.claims()
        for claim in there:
            if waiting(claim, self._driver, self._node):
                self._begin(self._bind, claims_module.reference(claim))
        used = claims_module.uids_on(there, self._driver, self._node)
        for uid, wanted in list(self._early.items()):
            if uid in orphans.checkpoint(self._directory):
                del self._early[uid]  # it is the kubelet's now
            elif uid not in used:
                self._begin(self._release, wanted)

    def _begin(
        self,
        act: Callable[[claims_module.Reference], None],
        wanted: claims_module.Reference,
    ) -> None:
        """Do something for a claim in a thread, unless one already does."""
        with self._guard:
            if wanted.uid in self._busy:
                return
            self._busy.add(wanted.uid)

        def run() -> None:
            try:
                act(wanted)
            except Exception as err:
                LOG.warning('%s: %s', wanted, errors.text_of(err))
            finally:
                with self._guard:
                    self._busy.discard(wanted.uid)

        threading.Thread(
            target=run, name=f'binding {wanted.uid}', daemon=True
        ).start()

    def _bind(self, wanted: claims_module.Reference) -> None:
        """Prepare a claim, and say in its status how it went.

        :raises ServerError: if the API server fails; the next look repeats it
        """
        done, failed = conditions(self._driver)
        self._early[wanted.uid] = wanted
        try:
            self._work.prepare_early(wanted)
        except (exception.ExceptionBase, errors.ClaimRefused) as err:
            LOG.error('%s: %s', wanted, errors.text_of(err))
            said = (failed, 'PrepareFailed', errors.text_of(err)[:_LONGEST])
        else:
            said = (done, 'Prepared', 'os-acc has prepared the device')
        claim = self._server.claim(wanted.namespace, wanted.name)
        own = waiting(claim, self._driver, self._node)
        if own and claim['metadata']['uid'] == wanted.uid:
            _say(claim, own, *said)
            self._server.replace_claim_status(claim)

    def _release(self, wanted: claims_module.Reference) -> None:
        """Release a claim whose Pod was never bound.

        :raises UnplugException: if a device is not released; the next look
            repeats it
        """
        self._work.unprepare_early(wanted)
        self._early.pop(wanted.uid, None)


def waiting(
    claim: Mapping[str, Any], driver: str, node: str
) -> list[Mapping[str, Any]]:
    """The results of a claim whose condition is not known yet."""
    done, failed = conditions(driver)
    return [
        each
        for each in claims_module.results(claim)
        if (each['driver'], each['pool']) == (driver, node)
        and done in (each.get('bindingConditions') or ())
        and not {done, failed} & _true(claim, each)
    ]


def _true(claim: Mapping[str, Any], result: Mapping[str, Any]) -> set[str]:
    """The types of the conditions of a device that are true."""
    return {
        condition['type']
        for device in claim['status'].get('devices') or ()
        if _key(device) == _key(result)
        for condition in device.get('conditions') or ()
        if condition['status'] == _TRUE
    }


def _key(device: Mapping[str, Any]) -> tuple[str, str, str]:
    return device['driver'], device['pool'], device['device']


def _say(
    claim: dict[str, Any],
    results: Sequence[Mapping[str, Any]],
    kind: str,
    reason: str,
    message: str,
) -> None:
    """Add a condition to the devices of a claim; what others say stays."""
    devices = claim['status'].setdefault('devices', [])
    now = datetime.datetime.now(datetime.UTC)
    for result in results:
        device = next((d for d in devices if _key(d) == _key(result)), None)
        if device is None:
            driver, pool, name = _key(result)
            device = {'driver': driver, 'pool': pool, 'device': name}
            devices.append(device)
        before = device.get('conditions') or []
        device['conditions'] = [
            *(each for each in before if each['type'] != kind),
            {
                'type': kind,
                'status': _TRUE,
                'reason': reason,
                'message': message,
                'lastTransitionTime': now.strftime('%Y-%m-%dT%H:%M:%SZ'),
            },
        ]
