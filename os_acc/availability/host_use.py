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
from os_acc.refusals import refusals
from os_acc.refusals.reasons import Reason

# Drivers that do no DMA for the host, and so leave an IOMMU group viable: they
# set driver_managed_dma (drivers/pci/pcie/portdrv.c, drivers/pci/pci-stub.c).
# shpchp does not set it (drivers/pci/hotplug/shpchp_core.c). Kernels before
# 5.19 tolerate it nevertheless, but a distribution's version number does not
# tell whether its kernel does.
_HARMLESS = frozenset({'pcieport', 'pci-stub'})


Snapshot = snapshots.Snapshot


def check_unused(functions: Iterable[pci.Function]) -> None:
    """Check that the host itself uses none of some functions."""
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
    """What the host uses a function for; None: nothing.

    A mediated device or vGPU on it counts too, because a guest may have it.

    :param snapshot: pass one when asking about many functions
    """
    return next(table.uses(function, snapshot or Snapshot.read()), None)


def of_block(name: str, snapshot: Snapshot) -> Reason | None:
    """What the host uses a block device of snapshot.paths for."""
    return next(table.block_uses(name, snapshot), None)


def of_interface(name: str, snapshot: Snapshot) -> Reason | None:
    """What the host uses a network interface of snapshot.interfaces for."""
    return next(table.interface_uses(name, snapshot), None)


def _leaves_viable(member: pci.Function) -> bool:
    return (
        member.driver is None
        or member.driver in _HARMLESS
        or vfio.is_bound(member)
    )


def group_obstacles(
    function: pci.Function,
    own: Collection[str],
    snapshot: Snapshot | None,
) -> Iterator[Reason]:
    """Say why the host's use of its IOMMU group keeps a function from guests.

    VFIO gives a group to one guest as a whole. While another member is bound
    to a driver of the host, the group is not viable (vfio_group_viable() in
    drivers/vfio/group.c).

    :param own: the addresses of those that the instance has or gets
    """
    group = function.iommu_group
    if group is None:
        yield refusals.NO_IOMMU_GROUP.reason()
        return
    members = pci.group_members(group)
    for name in members:
        if name == function.address:
            continue
        member = pci.find(name) if pci.is_address(name) else None
        if member is None:
            yield refusals.IN_GROUP_OTHER.reason(group=group, name=name)
        elif name in own or _leaves_viable(member):
            continue
        elif (use := by_host(member, snapshot)) is not None:
            yield refusals.IN_GROUP_USED.reason(
                group=group, name=name, use=use.text
            )
        else:
            yield refusals.IN_GROUP_BOUND.reason(
                group=group, name=name, driver=member.driver
            )
    address = function.physfn
    pf = pci.find(address) if address in members else None
    if pf is not None and vfio.is_bound(pf):
        yield offer_refusals.PF_IN_GROUP.reason(
            group=group, pf=address, driver=pf.driver
        )
