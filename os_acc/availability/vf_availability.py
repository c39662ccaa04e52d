# SPDX-License-Identifier: Apache-2.0

"""Whether the VFs of a PF can be made, and removed again.

Whether a VF can be taken, availability.functions says.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.availability import vfio_rules
from os_acc.availability.functions import Obstacle
from os_acc.claims import vans
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import vfio
from os_acc.refusals import offer_refusals
from os_acc.refusals import refusals
from os_acc.spec import device_spec


def vfs_obstacles(
    pf: pci.Function,
    holders: vans.Vans | None = None,
    spec: device_spec.Spec | None = None,
) -> Iterator[Obstacle]:
    """Say why a PF without VFs cannot have any, or none can be given out."""
    device = f'PF {pf.address}'
    if spec is not None and spec.num_vfs is not None:
        yield from number_obstacles(pf, spec.num_vfs)
        is_nic = pf.base_class == pci.CLASS_NETWORK
        if spec.vf_settings is not None and not is_nic:
            yield Obstacle.of(device, offer_refusals.NO_PORTS.reason())
    # Without VANs, Holders is false, and still knows what has failed.
    holders = vans.Vans() if holders is None else holders
    yield from availability.unhealthy_obstacles(pf, holders)
    yield from availability.part_obstacles(pf.address, device, holders)
    if vfio.is_bound(pf):
        yield Obstacle.of(device, refusals.PF_ON_VFIO.reason(driver=pf.driver))
    if pf.driver is None:
        yield Obstacle.of(device, refusals.NO_PF_DRIVER.reason())
    group = pf.iommu_group
    if group is None:
        yield Obstacle.of(device, refusals.NO_IOMMU_GROUP.reason())
    elif (bridge := _bridge_in(group)) is not None and not sriov.count(
        pf.address
    ):
        yield Obstacle.of(
            device, refusals.VFS_WITH_BRIDGE.reason(group=group, bridge=bridge)
        )
    product = sriov.vf_product_id(pf.address) or pf.product_id
    # No variant driver is for a VF of the denylist, unless the entry says so.
    driver = (spec and spec.vfio_driver) or modules.VFIO_PCI
    for reason in (
        vfio_rules.denied(f'{pf.vendor_id}:{product}', driver),
        vfio_rules.of_host(),
    ):
        if reason is not None:
            yield Obstacle.of(f'a VF of {device}', reason)


def number_obstacles(pf: pci.Function, wanted: int) -> Iterator[Obstacle]:
    """Say why a function, which may be no PF now, cannot have so many VFs."""
    device, possible = f'PF {pf.address}', sriov.total(pf.address)
    if not pf.is_pf:
        yield Obstacle.of(device, offer_refusals.NO_SRIOV.reason())
    elif wanted > possible:
        yield Obstacle.of(
            device,
            offer_refusals.NUM_VFS.reason(wanted=wanted, possible=possible),
        )
    elif not sriov.future_addresses(pf.address, wanted):
        yield Obstacle.of(device, offer_refusals.VFS_NOT_TOLD.reason())
    elif (other := sriov.in_the_way(pf, wanted)) is not None:
        yield Obstacle.of(
            device, offer_refusals.VF_IN_THE_WAY.reason(other=other)
        )


def _bridge_in(group: str) -> str | None:
    """A PCI bridge in the IOMMU group of a PF; None if there is none.

    pci_device_group() in drivers/iommu/iommu.c goes up from a function to the
    first bridge from which on ACS isolates (pci_acs_path_enabled()), and
    takes the group of the bridge below that one. It does the same for the
    VFs, because their bus is below the same bridges. A PF that is in a group
    with other functions of its card only has VFs with groups of their own.
    """
    for name in pci.group_members(group):
        if not pci.is_address(name):
            continue
        member = pci.find(name)
        if member is not None and (
            member.pci_class >> 8 == pci.CLASS_PCI_BRIDGE
            or 'secondary_bus_number' in member.entries
        ):
            return name
    return None


def vf_users(pf: pci.Function) -> list[str]:
    """Say who uses the VFs of a PF, so that they cannot be removed now.

    The VFs that os-acc created are bound to no driver once they are given
    back. If one is bound, somebody else has bound it.
    """
    snapshot = host_use.Snapshot.read()
    found = []
    for address in pf.vf_addresses:
        vf = pci.find(address)
        if vf is None:
            continue
        used = next(availability.host_obstacles(vf, snapshot), None)
        if used is not None:
            found.append(f'VF {address}: {used.text}')
        elif vf.driver is not None:
            found.append(f'VF {address}: it is bound to {vf.driver}')
    return found
