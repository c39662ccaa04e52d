# SPDX-License-Identifier: Apache-2.0

"""Which parts of a device an entry of device_spec asks for.

An entry whose keys name parts of a device never offers the device as a whole:
not even while the device has no such parts, as after a reset of its firmware
or before its driver is loaded. Code that may give out a whole PCI function
calls offers_whole().
"""

from __future__ import annotations

from collections.abc import Callable
import enum

from os_acc import kinds
from os_acc.kernel import pci
from os_acc.spec import entry as spec_entry


class Part(enum.Enum):
    """A kind of part. The value names several of them."""

    VF = 'VFs'
    REGION = 'VFs with their own regions'
    VGPU = 'vGPUs'
    MDEV = 'mediated devices'
    OF_KIND = 'devices of one kind'
    FILE = 'device files'
    NAMESPACE = 'namespaces'


_ASKS: dict[Part, Callable[[spec_entry.Spec], bool]] = {
    Part.VF: lambda spec: spec.num_vfs is not None,
    Part.REGION: lambda spec: spec.programming != 'single',
    Part.VGPU: lambda spec: (
        spec.vgpu_type is not None
        or (_limits_any_type(spec) and spec.bind == spec_entry.BIND_NONE)
    ),
    Part.MDEV: lambda spec: bool(spec.mdev_types) or _limits_any_type(spec),
    Part.OF_KIND: lambda spec: spec.of_kind is not None,
    Part.FILE: lambda spec: bool(spec.devices),
    Part.NAMESPACE: lambda spec: spec.nvme_of is not None,
}


def _limits_any_type(spec: spec_entry.Spec) -> bool:
    """Whether it says how many vGPUs a card can have, but not their type.

    These are mediated devices and, with bind = none, vGPUs whose types are set
    already, as vgpu_availability says.
    """
    return (
        spec.max_instances is not None
        and spec.vgpu_type is None
        and not spec.mdev_types
        and spec.num_vfs is None
        and spec.programmer is None
    )


# Placement's own classes of parts. An entry that gives its devices one of them
# asks for these parts, unless a key of it names others.
_OF_CLASS = {
    'SRIOV_NET_VF': frozenset({Part.VF}),
    'VGPU': frozenset({Part.VF, Part.VGPU, Part.MDEV}),
}

# The parts that are PCI functions themselves.
_FUNCTIONS = frozenset({Part.VF, Part.REGION})


def asked_for(spec: spec_entry.Spec) -> frozenset[Part]:
    """The kinds of parts that an entry asks for; empty: whole devices."""
    found = frozenset(part for part, asks in _ASKS.items() if asks(spec))
    return found or _OF_CLASS.get(spec.resource_class or '', found)


def offers(spec: spec_entry.Spec, part: Part) -> bool:
    """Whether an entry offers a kind of part of the devices that it names.

    An entry that asks for no parts offers what a device has.
    """
    asked = asked_for(spec)
    return not asked or part in asked


def offers_functions(spec: spec_entry.Spec) -> bool:
    """Whether an entry offers PCI functions: whole devices, or VFs."""
    asked = asked_for(spec)
    return not asked or bool(asked & _FUNCTIONS)


def offers_whole(spec: spec_entry.Spec, function: pci.Function) -> bool:
    """Whether an entry offers a PCI function that it names as a whole.

    :param function: a VF is a part already: an entry that asks for VFs offers
        it, and never the PF
    """
    asked = asked_for(spec)
    return not asked or (function.is_vf and bool(asked & _FUNCTIONS))


def offers_vgpus(spec: spec_entry.Spec) -> bool:
    """Whether an entry of device_spec offers the VFs that it names as vGPUs.

    Without vgpu_type it offers those that have a type, if its bind is none:
    the operator has set the types, as in Nova's documentation.
    """
    return spec.vgpu_type is not None or spec.bind == spec_entry.BIND_NONE


def text(spec: spec_entry.Spec) -> str:
    """Name the parts that an entry asks for, for a message."""
    asked = asked_for(spec)
    return ' or '.join(
        _offers(spec) if part is Part.OF_KIND else part.value
        for part in Part
        if part in asked
    )


def _offers(spec: spec_entry.Spec) -> str:
    assert spec.of_kind is not None
    return str(kinds.module(spec.of_kind.kind, 'entry').OFFERS)
