# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The report of PCI functions: a device for each PF, with VFs as handles.

A host can have thousands of functions. What is the same for many of them is
therefore found once: names in Placement, NUMA nodes, IOMMU groups.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses

from os_acc import objects
from os_acc.devices import allocated
from os_acc.devices import availability
from os_acc.devices import device_spec
from os_acc.devices import guest_use
from os_acc.devices import host_use
from os_acc.devices import pci
from os_acc.devices import pci_scan
from os_acc.drivers import inventory
from os_acc.drivers.pci import listing as pci_listing

# Functions that one entry of device_spec names.
_Named = tuple[device_spec.Spec, list[pci.Function]]


@dataclasses.dataclass(frozen=True)
class _View:
    """What the handles of all devices are judged by.

    :ivar bind: who binds a function if its entry of device_spec does not say
    """

    bind: str
    holders: allocated.Holders
    snapshot: host_use.Snapshot

    def handle(
        self, function: pci.Function, spec: device_spec.Spec, alone: bool
    ) -> objects.DeviceHandleInfo:
        """Judge a function that exists.

        :param alone: it is alone in its IOMMU group
        """
        return inventory.handle(
            objects.PCIHandle.of_canonical(address=function.address),
            self._obstacles(function, spec, alone),
            self.holders.of_function(function.address),
        )

    def _obstacles(
        self, function: pci.Function, spec: device_spec.Spec, alone: bool
    ) -> Iterator[availability.Obstacle]:
        bind = spec.bind or self.bind
        yield from availability.obstacles(
            function,
            spec,
            bind,
            holders=self.holders,
            snapshot=self.snapshot,
            alone=alone,
        )
        if function.driver is not None and guest_use.seems_open(function):
            yield availability.Obstacle(
                availability.Kind.OPEN,
                f'PCI function {function.address}',
                f'a guest that os-acc did not plug has it: {function.driver} '
                'is bound to it, and it is open',
            )

    def future(
        self, pf: pci.Function, addresses: Iterable[str]
    ) -> list[objects.DeviceHandleInfo]:
        """Judge the VFs that a PF gets when one of them is requested."""
        obstacles = list(availability.vfs_obstacles(pf, holders=self.holders))
        return [
            inventory.handle(
                objects.PCIHandle.of_canonical(address=address),
                obstacles,
                self.holders.of_function(address),
            )
            for address in addresses
        ]


def devices(
    driver: str,
    specs: device_spec.Specs,
    bind: str,
    holders: allocated.Holders,
) -> list[objects.Device]:
    """Report the PCI functions of this host, VFs as handles of their PF.

    The VFs of one PF are one device for each entry of device_spec that names
    some of them. A handle is free if availability knows no obstacle to taking
    it, and no guest seems to have it.

    :param driver: the name of the driver that reports
    :param bind: who binds a function if its entry of device_spec does not say
    :param holders: the VANs that have handles
    """
    functions = list(pci_scan.functions())
    whole: list[tuple[pci.Function, device_spec.Spec]] = []
    vfs: dict[str, list[_Named]] = {}
    for function, spec in pci_listing.listed(specs, functions):
        pf = function.physfn
        if pf is None:
            whole.append((function, spec))
            continue
        named = vfs.setdefault(pf, [])
        if not named or named[-1][0] is not spec:
            named.append((spec, []))
        named[-1][1].append(function)
    view = _View(bind, holders, host_use.Snapshot.read())
    alone = _alone(functions, bool(whole))
    kinds: dict[tuple[str, int, bool, int], pci_listing.Kind] = {}
    nodes: dict[str, int | None] = {}
    found = []
    for function, spec in whole:
        if function.address in vfs:
            continue
        if addresses := pci_listing.could_make(function, spec):
            kind = pci_listing.kind_of(function, spec, vf=True)
            handles = view.future(function, addresses)
        else:
            key = (function.ids, function.pci_class, function.is_pf, id(spec))
            if key not in kinds:
                kinds[key] = pci_listing.kind_of(function, spec)
            kind = kinds[key]
            handles = [
                view.handle(function, spec, function.address in alone)
            ]
        found.append(_device(driver, function, kind, handles, nodes))
    by_address = {function.address: function for function in functions}
    for address, named in vfs.items():
        parent = by_address.get(address)
        if parent is None:
            continue  # it is going away
        for spec, own in _merged(named):
            kind = pci_listing.kind_of(own[0], spec)
            # Either all VFs of a PF are alone in their IOMMU groups or none
            # is, since grouping depends on the bridges above:
            # pci_device_group() in drivers/iommu/iommu.c.
            vfs_alone = availability.is_alone(own[0])
            handles = [view.handle(vf, spec, vfs_alone) for vf in own]
            found.append(_device(driver, parent, kind, handles, nodes))
    found.sort(key=lambda device: str(device.address))
    return found


def _merged(named: list[_Named]) -> list[_Named]:
    """Join the VFs that the same entry of device_spec names."""
    joined: dict[int, _Named] = {}
    for spec, functions in named:
        joined.setdefault(id(spec), (spec, []))[1].extend(functions)
    return list(joined.values())


def _alone(functions: list[pci.Function], wanted: bool) -> frozenset[str]:
    """The functions, VFs aside, that no other function shares a group with.

    A member that is no PCI function is not looked for here. Only the claim of
    a function does so: it lists the members of the group.
    """
    if not wanted:
        return frozenset()
    groups: dict[str, str] = {}
    seen: set[str] = set()
    count: collections.Counter[str] = collections.Counter()
    for function in functions:
        pf = function.pf
        if pf is not None:
            # The VFs of a PF are alike: look at the first one only.
            if pf in seen or availability.is_alone(function):
                seen.add(pf)
                continue
            seen.add(pf)
        group = function.iommu_group
        if group is not None:
            groups[function.address] = group
            count[group] += 1 if pf is None else 2
    return frozenset(
        address for address, group in groups.items() if count[group] == 1
    )


def _device(
    driver: str,
    function: pci.Function,
    kind: pci_listing.Kind,
    handles: list[objects.DeviceHandleInfo],
    nodes: dict[str, int | None],
) -> objects.Device:
    # The kernel gives a function the NUMA node of its bus: pci_device_add()
    # in drivers/pci/probe.c.
    bus = function.address.rpartition(':')[0]
    if bus not in nodes:
        nodes[bus] = function.numa_node
    return inventory.device(
        function.address,
        driver,
        handles,
        function=function,
        numa_node=nodes[bus],
        resource_class=kind.resource_class,
        traits=list(kind.traits),
    )
