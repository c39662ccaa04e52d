# SPDX-License-Identifier: Apache-2.0

"""What the driver cyborg reports about a device that Cyborg discovered."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import functools
import itertools

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.claims import allocated
from os_acc.drivers import choosing
from os_acc.drivers import inventory
from os_acc.kernel import chip as chips
from os_acc.kernel import mdev
from os_acc.kernel import mdev_types
from os_acc.kernel import pci
from os_acc.kinds.cyborg.driver import choice as cyborg_choice
from os_acc.kinds.cyborg.driver import listing as cyborg_listing
from os_acc.kinds.mdev.driver import handles as mdev_handles
from os_acc.kinds.pci.driver import report as pci_report
from os_acc.objects import device as device_objects
from os_acc.refusals import report_refusals
from os_acc.spec import device_spec

CONF = cfg.CONF


def devices(
    driver: driver_base.DriverBase,
    found: list[cyborg_listing.Found],
    holders: allocated.Holders,
) -> list[objects.Device]:
    """Report the devices, with the checks of os-acc."""
    snapshot = host_use.Snapshot.read()
    return [
        device
        for each in found
        for device in choosing.report(
            driver,
            [each.address],
            functools.partial(_device, driver.name, each, holders, snapshot),
        )
    ]


def _device(
    driver: str,
    found: cyborg_listing.Found,
    holders: allocated.Holders,
    snapshot: host_use.Snapshot,
    address: str,
) -> objects.Device:
    function = pci.find(address) if pci.is_address(address) else None
    region = '' if found.programmable else None
    mdevs = [
        each
        for each in holders.on(found.parent)
        if (each.handle or '').startswith('mdev/')
    ]
    handles = [
        _accelerator(found, each, holders, snapshot, region)
        for each in found.accelerators
    ] + [_mdev(found, each, region) for each in mdevs]
    functions: dict[str, str | None] = {}
    if found.programmable:
        functions = {'': next(iter(found.functions), None)}
    return inventory.device(
        found.address,
        driver,
        handles,
        _types(found, len(mdevs)),
        vendor_id=found.vendor_id,
        product_id=found.product_id,
        resource_class=found.resource_class,
        traits=list(found.traits),
        numa_node=function.numa_node if function else None,
        programming=device_objects.PROGRAMMING_SINGLE
        if found.programmable
        else device_objects.PROGRAMMING_NONE,
        function_id=next(iter(found.functions), None),
        functions=functions,
        chip=pci_report.chip_info(chips.of(function))
        if found.programmable and function is not None
        else None,
    )


def _accelerator(
    found: cyborg_listing.Found,
    handles: Sequence[objects.AttachHandle],
    holders: allocated.Holders,
    snapshot: host_use.Snapshot,
    region: str | None,
) -> objects.DeviceHandleInfo:
    """Report an accelerator by one handle, because Placement counts one.

    It is the last one: for a Xilinx card, the user function. It is free if all
    handles of the accelerator and their siblings are.
    """
    parts = [each.identity for each in handles]
    parts += cyborg_choice.siblings(found, handles[-1])
    held = map(holders.of_handle, parts)
    return inventory.handle(
        handles[-1],
        itertools.chain.from_iterable(
            _obstacles(each, holders, snapshot) for each in handles
        ),
        next(filter(None, held), None),
        region,
    )


def _obstacles(
    handle: objects.AttachHandle,
    holders: allocated.Holders,
    snapshot: host_use.Snapshot,
) -> Iterator[availability.Obstacle]:
    """Say why a handle cannot be given out, as the driver's claim would."""
    if not isinstance(handle, objects.PCIHandle):
        return
    function = pci.find(handle.address)
    if function is None:
        yield availability.Obstacle.of(
            f'PCI function {handle.address}',
            report_refusals.NO_SUCH_FUNCTION.reason(),
        )
        return
    yield from availability.obstacles(
        function,
        device_spec.load(CONF).find(function),
        device_spec.BIND_LIBVIRT,
        holders=holders,
        snapshot=snapshot,
    )


def _mdev(
    found: cyborg_listing.Found, holder: allocated.Holder, region: str | None
) -> objects.DeviceHandleInfo:
    """A mediated device that a VAN has; it may not exist yet."""
    uuid = (holder.handle or '').removeprefix('mdev/')
    there = mdev.find(uuid)
    kind = there.type if there is not None else next(iter(found.mdevs), 'any')
    return inventory.handle(
        objects.MdevHandle(uuid=uuid, parent=found.parent, type=kind),
        holder=holder,
        region=region,
    )


def _types(
    found: cyborg_listing.Found, taken: int
) -> list[objects.DeviceMdevTypeInfo]:
    """The types of a device, which share its capacity.

    :param taken: how many mediated devices of it VANs have
    """
    seen = {kind.name: kind for kind in mdev_types.types(found.parent)}
    spec = device_spec.load(CONF).find_parent(found.parent)
    limit = spec.max_instances if spec is not None else None
    room = mdev_handles.Room(mdev.devices())
    infos = []
    for name, number in found.mdevs.items():
        capacity = max(0, number - taken)
        kind = seen.get(name)
        if kind is not None:
            left = room.left(kind, limit)
            capacity = capacity if left is None else min(capacity, left)
        infos.append(
            objects.DeviceMdevTypeInfo(
                name=name,
                label=kind.label if kind is not None else None,
                capacity=capacity,
                available=min(capacity, kind.available) if kind else 0,
            )
        )
    return infos
