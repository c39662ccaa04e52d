# SPDX-License-Identifier: Apache-2.0

"""What keeps VFIO from giving a function to a guest, as the kernel shows it.

Without these checks os-acc would take the function from its driver, and only
then would the kernel refuse.
"""

from __future__ import annotations

from os_acc import exception
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import device_spec

# The devices that vfio-pci itself refuses because of known errata:
# vfio_pci_dev_in_denylist() in drivers/vfio/pci/vfio_pci.c, and
# include/linux/pci_ids.h.
_QAT = 'QAT C3xxx, C62x and DH895xCC'
_SPR = 'DSA and IAA of Sapphire Rapids (CVE-2024-21823)'
_DENIED = {
    **dict.fromkeys(('8086:19e2', '8086:19e3', '8086:37c8'), _QAT),
    **dict.fromkeys(('8086:37c9', '8086:0435', '8086:0443'), _QAT),
    # In the list since Linux 6.9 and the stable kernels of May 2024. It cannot
    # be seen whether a distribution's kernel has it. The erratum is in the
    # device, so they are refused on every kernel.
    '8086:0b25': _SPR,
    '8086:0cfe': _SPR,
}

_INTERRUPT_REMAPPING = 1 << 3  # ecap_ir_support(), drivers/iommu/intel/iommu.h

# The modules with an option that lets a guest do without interrupt remapping:
# drivers/vfio/vfio_iommu_type1.c, drivers/iommu/iommufd/device.c
_UNSAFE_MODULES = ('vfio_iommu_type1', 'iommufd')
_UNSAFE = 'allow_unsafe_interrupts'


def is_listed(ids: str) -> bool:
    """Whether the denylist of vfio-pci has vendor:product."""
    return ids in _DENIED


def denied(ids: str, driver: str) -> reasons.Reason | None:
    """Say why vfio-pci refuses to bind a function because of its ids.

    A variant driver does not look at the list, and a function that vfio-pci
    has bound already was not refused.

    :param driver: the VFIO driver that is to bind it
    """
    devices = _DENIED.get(ids)
    if (
        devices is None
        or not modules.same(driver, modules.VFIO_PCI)
        or modules.is_on(modules.VFIO_PCI, 'disable_denylist')
    ):
        return None
    return refusals.DENYLIST.reason(ids=ids, devices=devices)


def of_group(function: pci.Function) -> reasons.Reason | None:
    """Say why the kernel attaches no guest to a function's IOMMU group.

    It lists the regions of memory that a group must always reach, each with
    its type (Documentation/ABI/testing/sysfs-kernel-iommu_groups). It attaches
    no guest to a group with one of type direct; direct-relaxable does not
    matter.
    """
    if (group := function.iommu_group) is None:
        return None
    path = f'{sysfs.SYS}/kernel/iommu_groups/{group}/reserved_regions'
    for line in (sysfs.read(path) or '').splitlines():
        first, last, kind = line.split()
        if kind == 'direct':
            region = f'{int(first, 16):#x}-{int(last, 16):#x}'
            return refusals.RMRR.reason(region=region, group=group)
    return None


def of_host() -> reasons.Reason | None:
    """Say why the kernel attaches no guest to any function of this host."""
    if not lacks_interrupt_remapping() or allows_unsafe_interrupts():
        return None
    return refusals.NO_REMAPPING.reason()


def lacks_interrupt_remapping() -> bool:
    """Whether an IOMMU of this host certainly cannot remap interrupts.

    Intel's IOMMUs show it in bit 3 of ecap. The kernel remaps interrupts only
    if each of them can (drivers/iommu/intel/irq_remapping.c). Other IOMMUs do
    not show it: then the answer is False.
    """
    directory = f'{sysfs.SYS}/class/iommu'
    for name in sysfs.names(directory):
        text = sysfs.read(f'{directory}/{name}/intel-iommu/ecap')
        if text and not int(text, 16) & _INTERRUPT_REMAPPING:
            return True
    return False


def allows_unsafe_interrupts() -> bool:
    """Whether a guest may have devices without interrupt remapping."""
    return any(modules.is_on(name, _UNSAFE) for name in _UNSAFE_MODULES)


def driver_for(function: pci.Function, spec: device_spec.Spec) -> str:
    """The module of the VFIO driver that os-acc binds a function to.

    It is the entry's vfio_driver if that is set. Otherwise it is what
    modules.alias says, which cannot be read in a container without the host's
    /lib/modules: then it is vfio-pci.
    """
    chosen = spec.vfio_driver
    if chosen is None:
        return modules.vfio_driver(function.modalias)
    if not modules.is_name(chosen) or 'vfio' not in chosen:
        raise exception.InvalidRequest(
            subject='[os_acc] device_spec',
            field='vfio_driver',
            value=chosen,
            expected='the name of a VFIO driver, such as vfio-pci or '
            'mlx5_vfio_pci',
        )
    return chosen
