# SPDX-License-Identifier: Apache-2.0

"""The functions that a VAN keeps on VFIO along with its own.

They are the companions of the function, see availability.companions, and
functions of its IOMMU group that were unplugged from the instance while the
VAN stayed: the kernel lets the host's driver bind such a function only when no
guest uses the group. The VAN's driver_data has for each what its release
needs. Each is given back with the VAN.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import json

from os_acc import driver as driver_base
from os_acc import objects
from os_acc.drivers import allocation
from os_acc.kernel import pci
from os_acc.objects import van as states
from os_acc.refusals import reasons
from os_acc.refusals import report_refusals
from os_acc.spec import device_spec

# The key of VAN.driver_data: JSON, for each address a dict with the keys that
# release.py has for the VAN's own function.
COMPANIONS = 'companions'

# A VAN in another state is being released.
_STAYS = (*states.WHOLE, states.ERROR)


def of(van: objects.VAN) -> dict[str, dict[str, str]]:
    """What the release of each needs, by address."""
    found: dict[str, dict[str, str]] = json.loads(
        van.driver_data.get(COMPANIONS, '{}')
    )
    return found


def addresses_of(van: objects.VAN) -> list[str]:
    """The addresses of the functions that a VAN keeps; none if unreadable."""
    try:
        return [*map(str, of(van))]
    except (ValueError, TypeError):
        return []


def to_data(records: dict[str, dict[str, str]]) -> dict[str, str]:
    """The part of driver_data for records; empty if there are none."""
    if not records:
        return {}
    return {COMPANIONS: json.dumps(records, sort_keys=True)}


def own(
    driver: driver_base.DriverBase, van: objects.VAN
) -> dict[str, dict[str, str]]:
    """The records of a VAN, without functions that another VAN has now."""
    records = of(van)
    if not records:
        return {}
    holders = allocation.holders(driver)
    return {
        address: data
        for address, data in records.items()
        if holders.of_function(address) is None
    }


def record_of(
    driver: driver_base.DriverBase, van: objects.VAN, function: pci.Function
) -> dict[str, str] | None:
    """The record that another VAN of the instance has of a function."""
    for other in _beside(driver, van, function):
        if (data := of(other).get(function.address)) is not None:
            return data
    return None


def staying(
    driver: driver_base.DriverBase, van: objects.VAN, function: pci.Function
) -> objects.VAN | None:
    """A VAN of the same instance that keeps the function's IOMMU group.

    :returns: None if the instance has no other function of the group, or is
        releasing all of them
    """
    for other in _beside(driver, van, function):
        if other.state in _STAYS:
            return other
    return None


def _beside(
    driver: driver_base.DriverBase, van: objects.VAN, function: pci.Function
) -> Iterator[objects.VAN]:
    """The instance's other VANs that have functions of the IOMMU group."""
    members = set(pci.group_members(function.iommu_group or ''))
    if len(members) < 2:
        return
    wanted = {f'pci/{name}' for name in members}
    for holder in driver.journal.handles(instance=van.instance_uuid):
        if (
            holder.handle in wanted
            and holder.device is not None
            and holder.van_uuid != van.uuid
        ):
            for other in driver.vans_on(holder.device):
                if other.uuid == holder.van_uuid:
                    yield other


def denied(
    specs: device_spec.Specs, functions: Iterable[pci.Function]
) -> reasons.Reason | None:
    """Say that an entry denies one of the companions of a function."""
    for each in functions:
        first = specs.first(each)
        if first is not None and first.deny:
            return report_refusals.COMPANION_DENIED.reason(
                source=first.source, address=each.address
            )
    return None
