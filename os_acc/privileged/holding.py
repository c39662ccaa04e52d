# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Who has a device, as only root can see."""

from __future__ import annotations

from os_acc import exception
from os_acc.devices import holders
from os_acc.devices import in_use
from os_acc.devices import mdev
from os_acc.devices import pci
from os_acc.devices import sysfs
from os_acc.devices import vfio
from os_acc.devices import waiting
from os_acc.privileged import arguments
from os_acc.privileged import context


@context.entry
def of_function(address: str, instance_uuid: str, shares: bool) -> list[str]:
    """Who has a PCI function.

    :param instance_uuid: the instance that may have it
    :param shares: the instance has others of its IOMMU group: its guest has
        the group's file open
    :returns: a text for each
    """
    function = pci.get(address)
    arguments.uuid(instance_uuid)
    names: list[str] = []
    files = holders.of_nvidia(address)
    # Also where it has no driver: the link to one goes before the driver lets
    # go, which may take as long as a program uses it (drivers/base/dd.c).
    # Without a folder of its own it has no disk and no device file:
    # device_add() in drivers/base/core.c makes the folder first.
    if function.parts:
        names = in_use.Snapshot.read().below(function.path)
        files += [f'{sysfs.DEV}/{name}' for name in names]
        files += [
            f'{sysfs.DEV}/dri/{name}'
            for name in sysfs.names(f'{function.path}/drm')
        ]
        files += holders.below(function.path)
    if not shares:
        files += vfio.nodes(function.path)
    return (
        holders.of_files(files)
        + holders.by_kernel(names)
        + holders.by_libvirt(address, None, instance_uuid)
    )


@context.entry
def of_mdev(uuid: str, instance_uuid: str) -> list[str]:
    """Who has a mediated device. See of_function."""
    arguments.uuid(instance_uuid)
    return holders.of_files(
        vfio.nodes(mdev.folder(uuid))
    ) + holders.by_libvirt(None, uuid, instance_uuid)


def wait(path: str, device: str, seconds: float) -> None:
    """Wait until no guest has a device open.

    That QEMU tells of a removed device does not mean that its file is
    closed: that can take seconds longer.

    :param path: its folder in sysfs
    :raises DeviceBusy: one still has it
    """
    files = vfio.nodes(path)
    left: list[str] = []

    def closed() -> bool:
        left[:] = holders.of_files(files) if files else []
        return not left

    try:
        waiting.until(closed, arguments.seconds(seconds), device)
    except exception.Timeout as err:
        raise exception.DeviceBusy(
            device=f'{device} (after {seconds:g} s)', holder=left[0]
        ) from err
