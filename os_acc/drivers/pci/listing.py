# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Which PCI functions can be given out, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import re

import os_resource_classes as resource_classes

from os_acc import objects
from os_acc.devices import bus
from os_acc.devices import device_spec
from os_acc.devices import in_use
from os_acc.devices import pci
from os_acc.devices import sriov

# Base classes of functions that a guest may want: storage, network, display,
# co-processors, encryption, signal processing, processing accelerators, and
# those of no class. PCI Code and ID Assignment Specification, chapter 1.
_CLASSES = frozenset({0x00, 0x01, 0x02, 0x03, 0x0B, 0x10, 0x11, 0x12, 0xFF})

# Makers of FPGAs whose functions have no class that says so.
_FPGA = re.compile('10ee:.*|1172:.*|8086:(09c4|09c5|0b2b|0b2c|0b30|0b31|bcce)')

PREFIX = 'CUSTOM_PCI_'


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a request may select a function by."""

    resource_class: str
    traits: tuple[str, ...]

    def serves(self, request: objects.AcceleratorRequest) -> bool:
        return self.resource_class == request.resource_class and set(
            request.traits
        ) <= set(self.traits)


def kind_of(
    function: pci.Function, spec: device_spec.Spec, vf: bool | None = None
) -> Kind:
    """Name a function as Placement does.

    :param vf: name it as a VF of it would be named; None: as it is
    """
    is_vf = function.is_vf if vf is None else vf
    product = function.product_id
    if vf and not function.is_vf:
        product = sriov.vf_product_id(function.address) or product
    ids = f'{function.vendor_id}:{product}'
    traits: tuple[str, ...] = (
        f'{PREFIX}VENDOR_{function.vendor_id.upper()}',
        f'{PREFIX}PRODUCT_{product.upper()}',
        f'{PREFIX}CLASS_{function.pci_class >> 8:04X}',
    )
    network = function.base_class == pci.CLASS_NETWORK
    if network and (is_vf or function.is_pf):
        traits += ('HW_NIC_SRIOV',)
    if spec.resource_class is not None:
        name = spec.resource_class
    elif network and is_vf:
        name = resource_classes.SRIOV_NET_VF
    elif function.base_class == pci.CLASS_DISPLAY:
        name = resource_classes.PGPU
    elif _FPGA.fullmatch(ids):
        name = resource_classes.FPGA
    else:
        # As Nova names a device of [pci] device_spec.
        name = f'{PREFIX}{function.vendor_id}_{product}'.upper()
    return Kind(name, tuple(dict.fromkeys((*spec.traits, *traits))))


def listed(
    specs: device_spec.Specs,
) -> Iterator[tuple[pci.Function, device_spec.Spec]]:
    """The functions that os-acc may give out, PFs with VFs among them."""
    for function in bus.functions():
        base_class = function.base_class
        if base_class == pci.CLASS_BRIDGE or not (
            specs.entries or base_class in _CLASSES
        ):
            continue
        spec = specs.find(function)
        # A device that has a spec for mdevs or vGPUs is not given whole.
        if spec is not None and not spec.mdev_types and not spec.vgpu_type:
            yield function, spec


def devices(
    driver: str, specs: device_spec.Specs, taken: Iterable[str]
) -> list[objects.Device]:
    """Report the PCI functions of this host, VFs under their PF.

    :param driver: whose report it is
    :param taken: addresses that VANs have
    """
    functions = list(listed(specs))
    vfs: dict[str, list[pci.Function]] = {}
    for function, _ in functions:
        if (pf := function.physfn) is not None:
            vfs.setdefault(pf, []).append(function)
    used = frozenset(taken)
    block = in_use.Snapshot.read()
    return [
        _device(driver, function, spec, vfs.get(function.address), used, block)
        for function, spec in functions
        if not function.is_vf
    ]


def _device(
    driver: str,
    function: pci.Function,
    spec: device_spec.Spec,
    vfs: list[pci.Function] | None,
    taken: frozenset[str],
    block: in_use.Snapshot,
) -> objects.Device:
    made = [] if vfs else _could_make(function, spec)
    if vfs or made:
        kind = kind_of(vfs[0] if vfs else function, spec, vf=True)
        total = len(vfs or made)
    else:
        kind, total = kind_of(function, spec), 1
    if made:
        free = 0 if function.address in taken else total
    else:
        free = sum(
            each.address not in taken and in_use.by_host(each, block) is None
            for each in vfs or [function]
        )
    return objects.Device(
        address=function.address,
        driver=driver,
        vendor_id=function.vendor_id,
        product_id=function.product_id,
        resource_class=kind.resource_class,
        traits=list(kind.traits),
        numa_node=function.numa_node,
        handles_total=total,
        handles_free=free,
    )


def _could_make(function: pci.Function, spec: device_spec.Spec) -> list[str]:
    """The addresses of the VFs that a PF is to get when one is asked for."""
    if not function.is_pf or spec.num_vfs is None:
        return []
    return sriov.future_addresses(function.address, spec.num_vfs)


def future(
    specs: device_spec.Specs,
) -> Iterator[tuple[str, pci.Function, device_spec.Spec]]:
    """VFs that are there, or would be made: address, PF, spec."""
    for function, spec in listed(specs):
        if function.is_pf:
            for address in _could_make(function, spec):
                yield address, function, spec


def custom(text: str) -> str:
    """The name of a trait or resource class of our own: CUSTOM_..."""
    return 'CUSTOM_' + re.sub('[^A-Z0-9_]', '_', text.upper())
