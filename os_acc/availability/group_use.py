# SPDX-License-Identifier: Apache-2.0

"""Who uses the other functions of an IOMMU group.

VFIO gives an IOMMU group to one guest as a whole.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator

from os_acc.availability import host_use
from os_acc.claims import vans
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.refusals import offer_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals

Reason = reasons.Reason


def obstacles(
    function: pci.Function,
    own: Collection[str],
    snapshot: host_use.Snapshot | None,
) -> Iterator[Reason]:
    """Say why the host's use of its IOMMU group keeps a function from guests.

    :param own: the addresses of those that the instance has or gets
    """
    group = function.iommu_group
    if group is None:
        yield refusals.NO_IOMMU_GROUP.say()
        return
    for member, use in host_use.in_group(function, snapshot):
        if isinstance(member, str) or member.address not in own:
            yield use
    pf = _pf_in(function, group)
    if pf is not None and vfio.is_bound(pf):
        yield offer_refusals.PF_IN_GROUP.say(
            group=group, pf=pf.address, driver=pf.driver
        )


def _pf_in(function: pci.Function, group: str) -> pci.Function | None:
    """The PF of a VF, if it is in the IOMMU group of the VF."""
    pf = function.physfn
    if pf is None or pf not in pci.group_members(group):
        return None
    return pci.find(pf)


def shares_group(
    function: pci.Function, instance_uuid: str, holders: vans.Vans
) -> bool:
    """Whether an instance has another function of an IOMMU group."""
    for name in pci.group_members(function.iommu_group or ''):
        other = holders.of_function(name)
        if (
            name != function.address
            and other is not None
            and other.device is not None
            and other.instance_uuid == instance_uuid
        ):
            return True
    return False
