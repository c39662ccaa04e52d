# SPDX-License-Identifier: Apache-2.0

"""What this driver needs from a ResourceClaim, as the API server gives it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
import uuid

from os_acc_dra import errors


@dataclasses.dataclass(frozen=True)
class Reference:
    """A claim, as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f'claim {self.namespace}/{self.name} ({self.uid})'


@dataclasses.dataclass(frozen=True)
class Result:
    """A device that the scheduler has allocated to a request of a claim.

    :ivar request: MAIN or MAIN/SUB, as in the claim
    """

    request: str
    pool: str
    device: str

    @property
    def main_request(self) -> str:
        """The request without its subrequest, as the kubelet is told."""
        return self.request.partition('/')[0]

    def van_uuid(self, claim_uid: str) -> str:
        """The UUID of its VAN: always the same for one claim."""
        name = f'{self.request}/{self.pool}/{self.device}'
        return str(uuid.uuid5(uuid.UUID(claim_uid), name))


def reference(claim: Mapping[str, Any]) -> Reference:
    """A claim of the API server, as the kubelet names it."""
    found = claim['metadata']
    return Reference(found['namespace'], found['name'], found['uid'])


def allocated(
    claim: Mapping[str, Any], wanted: Reference, driver: str, node: str
) -> list[Result]:
    """The devices of this driver that a claim has.

    :param claim: as the API server has it now
    :param wanted: the claim that the kubelet has named
    :raises ClaimRefused: if it is another claim of the same name, or must not
        be prepared: it is not allocated, or no Pod has it reserved
    """
    uid = claim['metadata']['uid']
    if uid != wanted.uid:
        raise errors.ClaimRefused(
            f'{wanted}: the claim of this name has the UID {uid} now'
        )
    status = claim.get('status') or {}
    if not status.get('allocation'):
        raise errors.ClaimRefused(f'{wanted} is not allocated')
    if not status.get('reservedFor'):
        raise errors.ClaimRefused(f'{wanted} is not reserved for a Pod')
    own = [each for each in results(claim) if each['driver'] == driver]
    if not own:
        raise errors.ClaimRefused(f'{wanted} has no device of {driver}')
    for each in own:
        _check(each, wanted, node)
    return [
        Result(each['request'], each['pool'], each['device']) for each in own
    ]


def _check(result: Mapping[str, Any], wanted: Reference, node: str) -> None:
    """Refuse what this driver does not offer."""
    device = f'{wanted}: device {result["device"]}'
    if result['pool'] != node:
        raise errors.ClaimRefused(
            f'{device} is in the pool {result["pool"]}, expected {node}, the '
            'name of this node'
        )
    if result.get('adminAccess'):
        raise errors.ClaimRefused(
            f'{device} has adminAccess, which this driver does not offer: '
            'while a monitor has a file of the device open, the claim that '
            'owns it could not be released'
        )
    if result.get('shareID'):
        raise errors.ClaimRefused(
            f'{device} is shared (shareID), which this driver does not offer'
        )


def uids_on(
    claims: Sequence[Mapping[str, Any]], driver: str, node: str
) -> set[str]:
    """The UIDs of the claims that have devices of this driver on a node."""
    return {
        claim['metadata']['uid']
        for claim in claims
        for each in results(claim)
        if (each['driver'], each['pool']) == (driver, node)
    }


def results(claim: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What is allocated to a claim; nothing, if it is not allocated."""
    allocation = (claim.get('status') or {}).get('allocation') or {}
    return (allocation.get('devices') or {}).get('results') or ()
