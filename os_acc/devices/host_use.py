# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What the host itself uses a PCI function for.

This finds only what is visible without privilege: mounts, swap, network
interfaces, mediated devices. open_files finds the processes that have a device
open.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import os
import re

from os_acc import exception
from os_acc.devices import idxd
from os_acc.devices import network
from os_acc.devices import nvmet
from os_acc.devices import pci
from os_acc.devices import reasons
from os_acc.devices import refusals
from os_acc.devices import sysfs
from os_acc.devices import vfio

Reason = reasons.Reason

_UUID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')

_IFF_UP = 0x1  # include/uapi/linux/if.h

# Drivers that do no DMA for the host, and so leave an IOMMU group viable: they
# set driver_managed_dma (drivers/pci/pcie/portdrv.c, drivers/pci/pci-stub.c).
# shpchp does not set it (drivers/pci/hotplug/shpchp_core.c). Kernels before
# 5.19 tolerate it all the same, but a distribution's version number does not
# tell whether its kernel does.
_HARMLESS = frozenset({'pcieport', 'pci-stub'})


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The block devices and network interfaces of the host at one moment.

    :ivar paths: the folder in sysfs of each block device, by its name
    :ivar mounts: mount points by device number, ``major:minor``
    :ivar sources: mount points by source, such as ``/dev/sda1``
    :ivar swaps: names of the block devices that are swap space
    :ivar interfaces: the folder in sysfs of each interface, by its name
    :ivar exported: the NVMe target's subsystem of each block device or NVMe
        controller that it exports
    """

    paths: dict[str, str]
    mounts: dict[str, str]
    sources: dict[str, str]
    swaps: frozenset[str]
    interfaces: dict[str, str]
    exported: dict[str, str]

    @classmethod
    def read(cls) -> Snapshot:
        folder = f'{sysfs.SYS}/class/block'
        net = f'{sysfs.SYS}/class/net'
        mounts, sources = _mounts()
        return cls(
            paths={
                name: sysfs.place(f'{folder}/{name}')
                for name in sysfs.names(folder)
            },
            mounts=mounts,
            sources=sources,
            swaps=_swaps(),
            interfaces={
                name: sysfs.place(f'{net}/{name}') for name in sysfs.names(net)
            },
            exported=nvmet.exported(),
        )

    def below(self, path: str) -> list[str]:
        """The names of the block devices at any depth below a device.

        :param path: the device's folder in sysfs
        """
        real = sysfs.place(path)
        prefixes = [f'{real}/', *(f'{p}/' for p in _nvme_heads(real))]
        return [
            name
            for name, where in self.paths.items()
            if where.startswith(tuple(prefixes))
        ]

    def interfaces_below(self, path: str) -> list[str]:
        """The names of the network interfaces at any depth below a device."""
        real = f'{sysfs.place(path)}/'
        return [
            name
            for name, where in self.interfaces.items()
            if where.startswith(real)
        ]

    def use(self, name: str) -> Reason | None:
        """What the host uses a block device for; None if for nothing."""
        number = sysfs.read(f'{self.paths[name]}/dev') or ''
        for place in (
            self.mounts.get(number),
            self.sources.get(f'/dev/{name}'),
        ):
            if place is not None:
                return refusals.MOUNTED.say(name=name, place=place)
        if name in self.swaps:
            return refusals.SWAP.say(name=name)
        if (subsystem := self.exported.get(name)) is not None:
            return refusals.EXPORTED_NAMESPACE.say(
                name=name, subsystem=subsystem
            )
        upper = sysfs.names(f'{self.paths[name]}/holders')
        if upper:
            labels = ', '.join(map(_upper_label, upper))
            return refusals.PART_OF_BLOCK_DEVICE.say(name=name, upper=labels)
        return None


def _mounts() -> tuple[dict[str, str], dict[str, str]]:
    """Mount points by device number and by source: proc(5), mountinfo."""
    numbers, sources = {}, {}
    text = _text(f'{sysfs.PROC}/self/mountinfo')
    for line in text.splitlines():
        fields = line.split(' ')
        if len(fields) < 5 or '-' not in fields:
            continue
        numbers[fields[2]] = fields[4]
        # btrfs reports a device number of its own: compare the source too.
        after = fields[fields.index('-') + 1 :]
        if len(after) > 1:
            sources[after[1]] = fields[4]
    return numbers, sources


def _swaps() -> frozenset[str]:
    lines = _text(f'{sysfs.PROC}/swaps').splitlines()[1:]
    return frozenset(os.path.basename(line.split()[0]) for line in lines)


def _text(path: str) -> str:
    # These files can be longer than the one page that sysfs.read() expects.
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def _upper_label(name: str) -> str:
    label = sysfs.read(f'{sysfs.SYS}/class/block/{name}/dm/name')
    return f'{name} ({label})' if label else name


def _nvme_heads(real: str) -> list[str]:
    """The subsystems of an NVMe controller.

    With native multipath the block devices are below the subsystem.
    """
    folder = f'{sysfs.SYS}/class/nvme-subsystem'
    controllers = set(sysfs.names(f'{real}/nvme'))
    return [
        sysfs.place(f'{folder}/{name}')
        for name in sysfs.names(folder)
        if controllers & set(sysfs.names(f'{folder}/{name}'))
    ]


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
    if 'boot_vga' in function.entries and (
        sysfs.read(f'{function.path}/boot_vga') == '1'
    ):
        return refusals.BOOT_DISPLAY.say()
    if function.driver is None or vfio.is_bound(function):
        return None
    if (use := _parts_given_out(function)) is not None:
        return use
    snapshot = snapshot or Snapshot.read()
    interfaces = snapshot.interfaces_below(function.path)
    for name in interfaces:
        if (use := _interface_use(name)) is not None:
            return use
    if (use := _storage_use(function, snapshot)) is not None:
        return use
    if function.base_class == pci.CLASS_NETWORK and not interfaces:
        return refusals.NO_INTERFACE.say(driver=function.driver)
    return None


def _storage_use(function: pci.Function, snapshot: Snapshot) -> Reason | None:
    for name in snapshot.below(function.path):
        if (use := snapshot.use(name)) is not None:
            return use
    if snapshot.exported:
        for name in sysfs.names(f'{function.path}/nvme'):
            if (subsystem := snapshot.exported.get(name)) is not None:
                return refusals.EXPORTED_CONTROLLER.say(
                    name=name, subsystem=subsystem
                )
    return None


def _parts_given_out(function: pci.Function) -> Reason | None:
    """The mediated device or vendor vGPU that a function has."""
    for entry in sorted(function.entries):
        if _UUID.fullmatch(entry):
            return refusals.HAS_MDEV.say(uuid=entry)
    if (use := idxd.use_of(function)) is not None:
        return use
    kind = None
    if 'nvidia' in function.entries:
        kind = sysfs.read_int(f'{function.path}/nvidia/current_vgpu_type')
    return refusals.HAS_VGPU.say(number=kind) if kind else None


def _interface_use(name: str) -> Reason | None:
    path = f'{sysfs.SYS}/class/net/{name}'
    entries = sysfs.names(path)
    master = sysfs.link(f'{path}/master')
    if master is not None:
        return refusals.IN_INTERFACE.say(name=name, master=master)
    for entry in entries:
        if entry.startswith('upper_'):
            upper = entry.removeprefix('upper_')
            return refusals.CARRIES_INTERFACE.say(name=name, upper=upper)
    if int(network.read(name, 'flags') or '0', 0) & _IFF_UP:
        return refusals.INTERFACE_UP.say(name=name)
    return None


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
            other = refusals.IN_GROUP_OTHER.say(group=group, name=name)
            found.append((name, other))
        elif not _leaves_viable(member):
            if (use := by_host(member, snapshot)) is not None:
                reason = refusals.IN_GROUP_USED.say(
                    group=group, name=name, use=use.text
                )
            else:
                reason = refusals.IN_GROUP_BOUND.say(
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
