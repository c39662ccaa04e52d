# SPDX-License-Identifier: Apache-2.0

"""Which PCI functions are offered, and what they are called in Placement."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import logging
import re

import os_resource_classes as resource_classes

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import kinds
from os_acc import objects
from os_acc.availability import companions
from os_acc.availability import nothing_offered
from os_acc.drivers import allocation
from os_acc.drivers import choosing
from os_acc.drivers import inventory
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.kernel import pci_scan
from os_acc.kernel import sriov
from os_acc.kernel import vgpu
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

PREFIX = 'CUSTOM_PCI_'

LOG = logging.getLogger(__name__)

Part = spec_parts.Part


def kind_of(
    function: pci.Function, spec: device_spec.Spec, vf: bool | None = None
) -> inventory.Names:
    """Name a function as Placement does.

    :param vf: True: give the name of its VFs, even if they do not exist yet;
        None: name the function itself
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
    elif chip.FPGA_IDS.fullmatch(ids):
        # No PCI class says that a function is an FPGA.
        name = resource_classes.FPGA
    else:
        # The name that Nova gives to a device of [pci] device_spec.
        name = f'{PREFIX}{function.vendor_id}_{product}'.upper()
    return inventory.Names(name, tuple(dict.fromkeys((*spec.traits, *traits))))


def offered(
    address: str, specs: device_spec.Specs, kind: str
) -> tuple[pci.Function, device_spec.Spec] | None:
    """A PCI function, with its entry, if that has the key of a kind.

    Another entry may name the function first, or deny it.

    :returns: None also if there is no such function
    """
    function = pci.find(address)
    spec = specs.find(function) if function is not None else None
    if function is None or spec is None or spec.settings_of(kind) is None:
        return None
    return function, spec


def listed(
    specs: device_spec.Specs,
    functions: Iterable[pci.Function] | None = None,
    unreadable: dict[str, Exception] | None = None,
) -> Iterator[tuple[pci.Function, device_spec.Spec]]:
    """The functions that are offered, including PFs that have VFs.

    :param functions: all functions of the host; None: they are read here
    :param unreadable: gets the error of each that an entry may name and that
        cannot be read, by address
    """
    if not specs.entries:
        return
    if unreadable is None:
        unreadable = {}
    if functions is None:
        functions = scanned(specs, unreadable)
    for function in functions:
        if function.is_bridge:
            continue
        with choosing.noting(function.address, unreadable):
            spec = specs.find(function)
            # A device that is offered for its parts is not offered whole, and
            # a companion is offered only with its GPU.
            if (
                spec is not None
                and spec_parts.offers_functions(spec)
                and not vgpu.is_place(function)
                and companions.main_of(function, spec) is None
            ):
                yield function, spec


def scanned(
    specs: device_spec.Specs, unreadable: dict[str, Exception]
) -> Iterator[pci.Function]:
    """All functions of the host. See listed()."""

    def failed(address: str, err: Exception) -> None:
        if choosing.is_of_device(err) and specs.may_name(address):
            unreadable[address] = err

    return pci_scan.functions(failed)


def could_make(function: pci.Function, spec: device_spec.Spec) -> list[str]:
    """The addresses of the VFs that a PF gets when one is requested.

    :returns: empty if it gets none, also if another function is at one of them
    """
    if not function.is_pf or spec.num_vfs is None:
        return []
    if sriov.in_the_way(function, spec.num_vfs) is not None:
        return []
    return sriov.future_addresses(function.address, spec.num_vfs)


def future(
    specs: device_spec.Specs,
) -> Iterator[tuple[str, pci.Function, device_spec.Spec]]:
    """The VFs of PFs with num_vfs, also those that do not exist yet.

    :returns: the address, the PF, and the PF's entry of device_spec
    """
    for function, spec in listed(specs):
        if function.is_pf:
            addresses: list[str] = []
            with choosing.noting(function.address, None):
                addresses = could_make(function, spec)
            for address in addresses:
                yield address, function, spec


def custom(text: str) -> str:
    """Make the name of a custom trait or resource class: CUSTOM_..."""
    return 'CUSTOM_' + re.sub('[^A-Z0-9_]', '_', text.upper())


# Why entries of device_spec that could serve a request offer nothing.


def refused(
    driver: driver_base.DriverBase,
    specs: device_spec.Specs,
    request: objects.AcceleratorRequest,
) -> Iterator[exception.DeviceError]:
    """Say which entries of a request's resource class offer nothing, and why.

    Nothing is read before the first one is asked for.
    """
    try:
        found = nothing_offered.find(specs, allocation.holders(driver))
    except Exception as err:
        # The caller has other reasons, which this error must not hide.
        LOG.warning('device_spec: %s', exception.describe(err))
        return
    for each in found:
        if _could_serve(each, request.resource_class):
            yield exception.DeviceError(
                device=each.obstacle.device, reason=each.reason
            )


def _could_serve(each: nothing_offered.Nothing, wanted: str | None) -> bool:
    """Whether an entry would offer a resource class, if it offered something.

    The class may depend on the device, so this is unknown for some entries
    without resource_class.
    """
    spec = each.spec
    if spec.resource_class is not None:
        return spec.resource_class == wanted
    asked = spec_parts.asked_for(spec)
    if asked & {Part.VGPU, Part.MDEV}:
        return wanted == resource_classes.VGPU or wanted in {
            custom(f'MDEV_{kind}') for kind in spec.mdev_types
        }
    if Part.NAMESPACE in asked:
        return wanted == 'CUSTOM_NVME_OF'
    if spec.of_kind is not None:
        return wanted in kinds.module(spec.of_kind.kind, 'entry').CLASSES
    if each.function is not None:
        made = Part.VF in asked or None
        kind = kind_of(each.function, spec, vf=made)
        return kind.resource_class == wanted
    ids = f'{PREFIX}{spec.vendor_id}_{spec.product_id}'
    return ids.upper() == wanted
