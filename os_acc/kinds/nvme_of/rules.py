# SPDX-License-Identifier: Apache-2.0

"""Whether a namespace of an NVMe-oF target may be taken now; if not, why.

Discovery, selection, admission and os-acc doctor all ask obstacles(). A
namespace that is not connected can be taken as far as this host
knows; once it is connected, the privileged half asks again.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.claims import vans
from os_acc.kinds.nvme_of import refusals as nvme_of_refusals
from os_acc.kinds.nvme_of import use
from os_acc.refusals import reasons
from os_acc.spec import device_spec

Obstacle = availability.Obstacle
Reason = reasons.Reason


def obstacles(
    wwn: str,
    spec: device_spec.Spec | None,
    holders: vans.Vans | None = None,
    snapshot: host_use.Snapshot | None = None,
) -> Iterator[Obstacle]:
    """Say why a namespace cannot be taken.

    :param wwn: its world wide name
    :param spec: the entry of device_spec for it; None if there is none
    :param holders: the VANs of the journal, and who wants the namespace
    :param snapshot: pass one when asking about many namespaces
    :returns: all obstacles, the most important one first
    """
    if holders is None:
        holders = vans.Vans()
    holder = holders.of_handle(f'block/{wwn}')
    # A VAN that already has it keeps it, whatever device_spec says.
    has = (
        holder is not None
        and holder.van_uuid == holders.taker.van_uuid
        and holder.device is not None
    )
    for reason in _reasons(wwn, spec, holders, has):
        yield Obstacle.of(use.label(wwn), reason)
    target = None if spec is None else spec.nvme_of
    yield from use.on_host(wwn, target, snapshot)


def _reasons(
    wwn: str,
    spec: device_spec.Spec | None,
    holders: vans.Vans,
    has: bool,
) -> Iterator[Reason]:
    if spec is None and not has:
        yield nvme_of_refusals.NOT_NAMED.reason()
    for each in holders.in_the_way(f'block/{wwn}', wwn):
        yield each.reason
    if not has and (why := holders.unhealthy.of_device(wwn)) is not None:
        yield why
