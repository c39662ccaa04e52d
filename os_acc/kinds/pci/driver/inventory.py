# SPDX-License-Identifier: Apache-2.0

"""The report of PCI functions: a device for each PF, with VFs as handles.

A host can have thousands of functions. What is the same for many of them is
therefore found once: names in Placement, NUMA nodes, IOMMU groups.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools

from os_acc import driver as driver_base
from os_acc import objects
from os_acc.availability import companions
from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.availability import vf_availability
from os_acc.availability import vfio_rules
from os_acc.claims import allocated
from os_acc.drivers import allocation
from os_acc.drivers import choosing
from os_acc.drivers import inventory
from os_acc.drivers import pci_functions
from os_acc.kernel import guest_use
from os_acc.kernel import pci
from os_acc.kinds.pci.driver import companions as own_companions
from os_acc.refusals import reasons
from os_acc.refusals import report_refusals
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

# Functions that one entry of device_spec names.
_Named = tuple[device_spec.Spec, list[pci.Function]]


@dataclasses.dataclass
class _View:
    """What all devices of one report are checked against; what was found once.

    :ivar bind: who binds a function if its entry of device_spec does not say
    :ivar refused: why the kernel refuses every function of the host
    :ivar alone: the functions, VFs aside, that are alone in their IOMMU groups
    """

    driver: str
    bind: str
    specs: device_spec.Specs
    holders: allocated.Holders
    snapshot: host_use.Snapshot
    refused: tuple[reasons.Reason, ...]
    alone: frozenset[str]
    kinds: dict[tuple[str, int, bool, int], inventory.Names]
    nodes: dict[str, int | None]

    def whole(
        self, function: pci.Function, spec: device_spec.Spec
    ) -> objects.Device:
        """Report a function without VFs, or the VFs that it would get."""
        addresses = pci_functions.could_make(function, spec)
        if addresses or (spec_parts.asked_for(spec) and not function.is_vf):
            kind = pci_functions.kind_of(function, spec, vf=True)
            handles = (
                self._future(function, spec, addresses)
                if addresses
                else [self._without_vfs(function, spec)]
            )
            return self._device(function, kind, handles)
        key = (function.ids, function.pci_class, function.is_pf, id(spec))
        if key not in self.kinds:
            self.kinds[key] = pci_functions.kind_of(function, spec)
        alone = function.address in self.alone
        refused = self._refused(function, spec)
        obstacles = self._obstacles(function, spec, alone, refused)
        handles = [self._handle(function.address, obstacles)]
        return self._device(function, self.kinds[key], handles)

    def _without_vfs(
        self, function: pci.Function, spec: device_spec.Spec
    ) -> objects.DeviceHandleInfo:
        """A handle that nobody gets, which says why there are no VFs."""
        return self._handle(
            function.address,
            itertools.chain(
                vf_availability.vfs_obstacles(function, self.holders, spec),
                availability.offer_obstacles(function, spec),
            ),
        )

    def vfs(
        self,
        pf: pci.Function,
        spec: device_spec.Spec,
        vfs: Sequence[pci.Function],
    ) -> objects.Device:
        """Report the VFs of a PF that one entry of device_spec names."""
        kind = pci_functions.kind_of(vfs[0], spec)
        # Either all VFs of a PF are alone in their IOMMU groups or none is,
        # since grouping depends on the bridges above: pci_device_group() in
        # drivers/iommu/iommu.c.
        alone = _is_alone(vfs[0])
        refused = self._refused(vfs[0], spec)
        handles = [
            self._handle(vf.address, self._obstacles(vf, spec, alone, refused))
            for vf in vfs
        ]
        return self._device(pf, kind, handles)

    def _refused(
        self, function: pci.Function, spec: device_spec.Spec
    ) -> Sequence[reasons.Reason]:
        """Why the kernel refuses a function, or any VF of the same PF."""
        return (*availability.vfio_refusals(function, spec), *self.refused)

    def _handle(
        self, address: str, obstacles: Iterable[availability.Obstacle]
    ) -> objects.DeviceHandleInfo:
        return inventory.handle(
            objects.PCIHandle(address=address),
            obstacles,
            self.holders.of_function(address),
        )

    def _obstacles(
        self,
        function: pci.Function,
        spec: device_spec.Spec,
        alone: bool,
        refused: Sequence[reasons.Reason],
    ) -> Iterator[availability.Obstacle]:
        bind = spec.bind or self.bind
        yield from availability.obstacles(
            function,
            spec,
            bind,
            holders=self.holders,
            snapshot=self.snapshot,
            alone=alone,
            refused=refused,
        )
        beside = companions.of(function, spec, bind)
        if (denied := own_companions.denied(self.specs, beside)) is not None:
            yield availability.Obstacle.of(
                f'PCI function {function.address}', denied
            )
        if function.driver is not None and guest_use.seems_open(function):
            yield availability.Obstacle.of(
                f'PCI function {function.address}',
                report_refusals.SEEMS_OPEN.reason(driver=function.driver),
            )

    def _future(
        self,
        pf: pci.Function,
        spec: device_spec.Spec,
        addresses: Iterable[str],
    ) -> list[objects.DeviceHandleInfo]:
        obstacles = list(vf_availability.vfs_obstacles(pf, self.holders, spec))
        return [
            self._handle(
                address,
                [
                    *obstacles,
                    *availability.reserved_obstacles(address, self.holders),
                ],
            )
            for address in addresses
        ]

    def _device(
        self,
        function: pci.Function,
        kind: inventory.Names,
        handles: list[objects.DeviceHandleInfo],
    ) -> objects.Device:
        # The kernel gives a function the NUMA node of its bus:
        # pci_device_add() in drivers/pci/probe.c.
        bus = function.address.rpartition(':')[0]
        if bus not in self.nodes:
            self.nodes[bus] = function.numa_node
        return inventory.device(
            function.address,
            self.driver,
            handles,
            function=function,
            names=kind,
            numa_node=self.nodes[bus],
        )


def devices(
    driver: driver_base.DriverBase, specs: device_spec.Specs
) -> list[objects.Device]:
    """Report the PCI functions of this host, VFs as handles of their PF.

    The VFs of one PF are one device for each entry of device_spec that names
    some of them. A handle is free if availability knows no obstacle to taking
    it, and no guest seems to have it.
    """
    unreadable: dict[str, Exception] = {}
    functions = {
        each.address: each for each in pci_functions.scanned(specs, unreadable)
    }
    whole: list[tuple[pci.Function, device_spec.Spec]] = []
    vfs: dict[tuple[str, int], _Named] = {}
    for function, spec in pci_functions.listed(
        specs, functions.values(), unreadable
    ):
        with choosing.noting(function.address, unreadable):
            pf = function.physfn
            if pf is None:
                whole.append((function, spec))
            else:
                named = vfs.setdefault((pf, id(spec)), (spec, []))
                named[1].append(function)
    of_host = vfio_rules.of_host()
    with_vfs = {pf for pf, _ in vfs}
    view = _View(
        driver.name,
        driver.config.bind,
        specs,
        allocation.holders(driver),
        host_use.Snapshot.read(),
        () if of_host is None else (of_host,),
        _alone(functions.values())
        if len(whole) > len(with_vfs)
        else frozenset(),
        {},
        {},
    )
    found: list[objects.Device] = []
    for function, spec in whole:
        if function.address not in with_vfs:
            with choosing.noting(function.address, unreadable):
                found.append(view.whole(function, spec))
    for (pf, _), (spec, own) in vfs.items():
        if pf in functions:
            with choosing.noting(pf, unreadable):
                found.append(view.vfs(functions[pf], spec, own))
    there = {str(device.address) for device in found}
    found += _failed(driver, functions, unreadable, there)
    found.sort(key=lambda device: str(device.address))
    return found


def _failed(
    driver: driver_base.DriverBase,
    functions: Mapping[str, pci.Function],
    unreadable: Mapping[str, Exception],
    there: Collection[str],
) -> Iterator[objects.Device]:
    """Report the functions that cannot be read, each VF as its PF."""
    reasons: dict[str, str] = {}
    for address, err in unreadable.items():
        function = functions.get(address)
        pf = function.pf if function is not None else None
        reasons.setdefault(pf or address, choosing.text_of(err))
    for address, reason in reasons.items():
        if address not in there:
            function = functions.get(address)
            ids = {}
            if function is not None:
                ids['vendor_id'] = function.vendor_id
                ids['product_id'] = function.product_id
            yield inventory.failed(address, driver, reason, **ids)


def _alone(functions: Iterable[pci.Function]) -> frozenset[str]:
    """The functions, VFs aside, that no other function shares a group with.

    A member that is not a PCI function is not looked for here. Only claiming a
    function does so, because it lists the members of the group.
    """
    groups: dict[str, str] = {}
    seen: set[str] = set()
    count: collections.Counter[str] = collections.Counter()
    for function in functions:
        # A function whose group cannot be read is not alone.
        with choosing.noting(function.address, {}):
            _count(function, seen, groups, count)
    return frozenset(
        address for address, group in groups.items() if count[group] == 1
    )


def _count(
    function: pci.Function,
    seen: set[str],
    groups: dict[str, str],
    count: collections.Counter[str],
) -> None:
    """Count a function as a member of its IOMMU group. See _alone().

    :param seen: the PFs of which a VF was counted
    :param groups: gets the group of the function
    """
    if (pf := function.pf) is not None:
        # The VFs of a PF are alike: look at the first one only.
        if pf in seen:
            return
        seen.add(pf)
        if _is_alone(function):
            return
    group = function.iommu_group
    if group is not None:
        groups[function.address] = group
        count[group] += 1 if pf is None else 2


def _is_alone(function: pci.Function) -> bool:
    """Whether a function is in an IOMMU group that has no other member."""
    group = function.iommu_group
    return group is not None and pci.group_members(group) == [function.address]
