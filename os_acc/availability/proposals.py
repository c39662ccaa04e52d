# SPDX-License-Identifier: Apache-2.0

"""Entries of device_spec that could be of use on this host.

The operator decides: a class code does not say whether a function is meant for
guests. What the host itself uses is never proposed.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses

from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.kernel import host_parts
from os_acc.kernel import pci
from os_acc.kernel import pci_scan
from os_acc.kernel import sriov
from os_acc.kernel import xrt
from os_acc.spec import device_spec
from os_acc.spec import entry as spec_entry

Category = availability.Category

# Intel's data movers and compressors have the class 'other system peripheral':
# drivers/dma/idxd/registers.h in the kernel. Old QAT:
# drivers/crypto/intel/qat/qat_common/adf_accel_devices.h.
_INTEL = {
    'data streaming accelerator (DSA)': '0b25 11fb 1212',
    'analytics accelerator (IAA)': '0cfe 1216 b02d fd2d',
    'QuickAssist (QAT)': '0435 18a0 18ee 19e2 37c8 4940 4942 4944 4946 4948 '
    '6f54',
}

# AMD's cards that were Xilinx's.
_XILINX = '10ee'

# Base classes: PCI Code and ID Assignment Specification, chapter 1.
_CLASSES = {
    0x0B: 'co-processor',
    0x10: 'encryption controller',
    0x12: 'processing accelerator',
}

# What an operator has to solve before the function can be given out.
_HINDRANCES = (
    Category.NO_IOMMU_GROUP,
    Category.GROUP_HOST_USE,
    Category.UNSUITABLE,
)


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A function that could be offered."""

    address: str
    what: str  # what it is: name, ids and kind
    notes: tuple[str, ...]  # whole sentences that the operator should know
    # the source of the entry that names it already; None: none
    named_by: str | None

    def text(self) -> str:
        """Lines for a configuration file: comments, and the option.

        There is no option if an entry names the function already.
        """
        lines = [f'# {self.address}: {self.what}']
        lines += [f'# {note}' for note in self.notes]
        if self.named_by is None:
            lines += map(spec_entry.line, spec_entry.entries(self.address))
        return '\n'.join(lines) + '\n'


def proposals(specs: device_spec.Specs) -> list[Proposal]:
    """Find the functions that could be offered, in order of their addresses.

    VFs are left out, because an entry that names a PF also names its VFs.
    """
    snapshot = host_use.Snapshot.read()
    found = [
        (function, label)
        for function in pci_scan.functions()
        if not function.is_vf
        and (label := _label(function)) is not None
        and not any(availability.host_obstacles(function, snapshot))
    ]
    names = pci_scan.of(function.ids for function, _ in found)
    return [
        _proposal(function, label, names, specs, snapshot)
        for function, label in found
    ]


def _label(function: pci.Function) -> str | None:
    """What kind of accelerator a function is; None if it seems to be none."""
    base_class = function.base_class
    if function.vendor_id == '8086':
        for label, products in _INTEL.items():
            if function.product_id in products.split():
                return label
    if host_parts.what(function) is not None:
        return None
    if base_class == pci.CLASS_DISPLAY:
        return 'display controller'
    if base_class == pci.CLASS_NETWORK:
        return 'network card with SR-IOV' if function.is_pf else None
    return _CLASSES.get(base_class)


def _proposal(
    function: pci.Function,
    label: str,
    names: dict[str, str],
    specs: device_spec.Specs,
    snapshot: host_use.Snapshot,
) -> Proposal:
    name = names.get(function.ids)
    what = f'{function.ids}, {label}'
    if name is not None:
        what = f'{name} ({what})'
    if function.numa_node is not None:
        what += f', NUMA node {function.numa_node}'
    entry = specs.first(function)
    return Proposal(
        address=function.address,
        what=what,
        notes=tuple(_notes(function, entry, snapshot)),
        named_by=None if entry is None else entry.source,
    )


def _notes(
    function: pci.Function,
    entry: device_spec.Spec | None,
    snapshot: host_use.Snapshot,
) -> Iterator[str]:
    if entry is not None:
        verb = 'denies' if entry.deny else 'offers'
        yield f'Already in device_spec: {entry.source} {verb} it.'
    if function.is_pf and (total := sriov.total(function.address)):
        yield (
            f'It can have {total} VFs. To offer VFs, add "num_vfs" with their '
            'number.'
        )
    if what := _management(function):
        yield (
            f'It is {what}, through which the host programs and resets the '
            'card: whoever has it controls the card. Offer the user function '
            'of the card instead.'
        )
    spec = entry or device_spec.Spec()
    for found in availability.obstacles(
        function, spec, device_spec.BIND_OS_ACC, snapshot=snapshot
    ):
        if found.category in _HINDRANCES:
            yield f'It is not available now: {found.text}.'


def _management(function: pci.Function) -> str | None:
    """What a management function of AMD's Alveo is; None: it is not one.

    With no driver, its product id shows it: XRT's tables of product ids,
    XOCL_MGMT_PCI_IDS and XOCL_USER_XDMA_PCI_IDS in its driver's devices.h,
    have even ids for the first functions of cards, odd ones for the second.
    """
    if function.driver == xrt.MANAGEMENT:
        return f'the management function of an Alveo ({xrt.MANAGEMENT})'
    vendor, _, product = function.ids.partition(':')
    place, _, number = function.address.rpartition('.')
    user = pci.find(f'{place}.1') if number == '0' else None
    if (
        vendor == _XILINX
        and function.driver is None
        and user is not None
        and user.ids == f'{vendor}:{int(product, 16) + 1:04x}'
    ):
        return 'probably the management function of an Alveo'
    return None
