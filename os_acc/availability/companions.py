# SPDX-License-Identifier: Apache-2.0

"""Companions: the functions of a graphics card that accompany its GPU.

A graphics card has its sound, USB and USB-C functions in the slot of the GPU
and mostly in its IOMMU group. While the host uses one of them, VFIO gives the
GPU to no guest. With ``companions`` in its entry of device_spec, os-acc binds
them to VFIO together with the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses

from os_acc.kernel import pci
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

# Class and sub-class: audio device, USB controller, and USB Type-C connector
# (UCSI). PCI Code and ID Assignment Specification, 1.5 and 1.13; NVIDIA's
# UCSI controller has the sub-class "other" (drivers/i2c/busses/
# i2c-nvidia-gpu.c).
_CLASSES = frozenset({0x0403, 0x0C03, 0x0C80})


def is_one(function: pci.Function) -> bool:
    """Whether a function is of a class that companions have."""
    return function.pci_class >> 8 in _CLASSES


def of(
    function: pci.Function, spec: device_spec.Spec | None, bind: str
) -> list[pci.Function]:
    """The companions that os-acc binds to VFIO together with a function.

    With BIND_NONE the operator has bound the companions, too.
    """
    binds = bind not in (device_spec.BIND_NONE, device_spec.BIND_HOST)
    if spec is None or not spec.companions or is_one(function) or not binds:
        return []
    return [found for found in _beside(function) if is_one(found)]


def main_of(
    function: pci.Function, spec: device_spec.Spec | None
) -> str | None:
    """The address of the function of which a function is a companion."""
    if spec is None or not spec.companions or not is_one(function):
        return None
    main = (x.address for x in _beside(function) if not is_one(x))
    return next(main, None)


def entry_for(
    specs: device_spec.Specs, function: pci.Function
) -> device_spec.Spec:
    """The entry that allows os-acc to touch a function or a companion.

    That of a companion is without companions, or empty if no entry names it.

    :raises DeviceNotFound: if device_spec offers neither the function nor one
        whose companion it is, or denies it
    """
    if is_one(function) and specs.first(function) is None:
        for other in _beside(function):
            spec = specs.find(other)
            if (
                spec is not None
                and spec.companions
                and not is_one(other)
                and spec_parts.offers_whole(spec, other)
            ):
                return device_spec.Spec()
    spec = specs.check(function)
    if is_one(function):
        return dataclasses.replace(spec, companions=False)
    return spec


def _beside(function: pci.Function) -> Iterator[pci.Function]:
    """The other functions in its slot and in its IOMMU group."""
    slot = function.address[:-1]
    for name in pci.group_members(function.iommu_group or ''):
        if name != function.address and name.startswith(slot):
            found = pci.find(name)
            if found is not None:
                yield found
