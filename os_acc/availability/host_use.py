# SPDX-License-Identifier: Apache-2.0

"""What the host itself uses a PCI function for.

The signs of a use are in host_signs.table. They are visible without privilege.
open_files finds the processes that have a device open.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

from os_acc import exception
from os_acc.availability.host_signs import snapshot as snapshots
from os_acc.availability.host_signs import table
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.refusals import offer_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals

Reason = reasons.Reason

# Drivers that do no DMA for the host, and so leave an IOMMU group viable: they
# set driver_managed_dma (drivers/pci/pcie/portdrv.c, drivers/pci/pci-stub.c).
# shpchp does not set it (drivers/pci/hotplug/shpchp_core.c). Kernels before
# 5.19 tolerate it nevertheless, but a distribution's version number does not
# tell whether its kernel does.
_HARMLESS = frozenset({'pcieport', 'pci-stub'})


Snapshot = snapshots.Snapshot


def check_unused(functions: Iterable[pci.Function]) -> None:
    """Check that the host itself uses none of some functions.

    :raises DeviceInUseByHost: if it uses one
    """
    snapshot = Snapshot.read()
    for each in functions:
        use = by_host(each, snapshot)
        if use is not None:
            raise exception.DeviceInUseByHost(
                device=f'PCI function {each.address}', by=use.text
            )


def by_host(
    function: pci.Function, snapshot: Snapshot | None = None
) -> Reason | None:
    """What the host uses a function for.

    A mediated device or vGPU on it counts too, because a guest may have it.

    :param snapshot: pass one when asking about many functions; None: it is
        read here
    :returns: a reason such as 'interface eth0 is up'; None if it is unused
    """
    return next(table.uses(function, snapshot or Snapshot.read()), None)


def of_block(name: str, snapshot: Snapshot) -> Reason | None:
    """What the host uses a block device for; None if for nothing.

    :param name: a key of snapshot.paths
    """
    return next(table.block_uses(name, snapshot), None)


def in_group(
    function: pci.Function, snapshot: Snapshot | None = None
) -> list[tuple[pci.Function | str, Reason]]:
    """The members of a function's IOMMU group that the host uses.

    VFIO gives a group to one guest as a whole. While another member is bound
    to a driver of the host, the group is not viable (vfio_group_viable() in
    drivers/vfio/group.c).

    :returns: each such member with what it is used for; a member that is no
        PCI function is given by its name
    """
    group = function.iommu_group
    if group is None:
        return []
    found: list[tuple[pci.Function | str, Reason]] = []
    for name in pci.group_members(group):
        if name == function.address:
            continue
        member = pci.find(name) if pci.is_address(name) else None
        if member is None:
            other = refusals.IN_GROUP_OTHER.reason(group=group, name=name)
            found.append((name, other))
        elif not _leaves_viable(member):
            if (use := by_host(member, snapshot)) is not None:
                reason = refusals.IN_GROUP_USED.reason(
                    group=group, name=name, use=use.text
                )
            else:
                reason = refusals.IN_GROUP_BOUND.reason(
                    group=group, name=name, driver=member.driver
                )
            found.append((member, reason))
    return found


def _leaves_viable(member: pci.Function) -> bool:
    return (
        member.driver is None
        or member.driver in _HARMLESS
        or vfio.is_bound(member)
    )


# Who uses the other functions of an IOMMU group.
#
# VFIO gives an IOMMU group to one guest as a whole.


def group_obstacles(
    function: pci.Function,
    own: Collection[str],
    snapshot: Snapshot | None,
) -> Iterator[Reason]:
    """Say why the host's use of its IOMMU group keeps a function from guests.

    :param own: the addresses of those that the instance has or gets
    """
    group = function.iommu_group
    if group is None:
        yield refusals.NO_IOMMU_GROUP.reason()
        return
    for member, use in in_group(function, snapshot):
        if isinstance(member, str) or member.address not in own:
            yield use
    pf = _pf_in(function, group)
    if pf is not None and vfio.is_bound(pf):
        yield offer_refusals.PF_IN_GROUP.reason(
            group=group, pf=pf.address, driver=pf.driver
        )


def _pf_in(function: pci.Function, group: str) -> pci.Function | None:
    """The PF of a VF, if it is in the IOMMU group of the VF."""
    pf = function.physfn
    if pf is None or pf not in pci.group_members(group):
        return None
    return pci.find(pf)
