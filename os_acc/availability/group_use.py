# SPDX-License-Identifier: Apache-2.0

"""Who has the other functions of an IOMMU group.

VFIO gives an IOMMU group to one guest as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.availability import host_use
from os_acc.claims import allocated
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.refusals import offer_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals

Reason = reasons.Reason


def obstacles(
    function: pci.Function,
    taker: allocated.Taker,
    holders: allocated.Holders,
    snapshot: host_use.Snapshot | None,
) -> Iterator[Reason]:
    """Check the IOMMU group, which VFIO gives to one guest as a whole."""
    group = function.iommu_group
    if group is None:
        yield refusals.NO_IOMMU_GROUP.say()
        return
    for member, use in host_use.in_group(function, snapshot):
        if isinstance(member, str) or member.address not in taker.functions:
            yield use
    pf = _pf_in(function, group)
    if pf is not None and vfio.is_bound(pf):
        yield offer_refusals.PF_IN_GROUP.say(
            group=group, pf=pf.address, driver=pf.driver
        )
    for other in _holders(function, holders):
        if other.instance_uuid != taker.instance_uuid:
            yield refusals.GROUP_TAKEN.say(
                instance=other.instance_uuid,
                member=other.handle,
                group=group,
                van=other.van_uuid,
            )


def _pf_in(function: pci.Function, group: str) -> pci.Function | None:
    """The PF of a VF, if it is in the IOMMU group of the VF."""
    pf = function.physfn
    if pf is None or pf not in pci.group_members(group):
        return None
    return pci.find(pf)


def _holders(
    function: pci.Function, holders: allocated.Holders
) -> Iterator[allocated.Holder]:
    """The VANs that have claimed the other functions of an IOMMU group."""
    for name in pci.group_members(function.iommu_group or ''):
        other = holders.of_function(name)
        if name != function.address and other and other.device is not None:
            yield other


def shares_group(
    function: pci.Function, instance_uuid: str, holders: allocated.Holders
) -> bool:
    """Whether an instance has another function of an IOMMU group."""
    return any(
        other.instance_uuid == instance_uuid
        for other in _holders(function, holders)
    )
