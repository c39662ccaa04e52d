# SPDX-License-Identifier: Apache-2.0

"""What os-acc doctor says about VFIO in this kernel."""

from __future__ import annotations

from collections.abc import Iterator
import re

from os_acc import finding
from os_acc.availability import vfio_rules
from os_acc.kernel import sysfs
from os_acc.kernel import vfio

Finding = finding.Finding

_REMAPPING = 'interrupt remapping'
_ENABLE = (
    'enable interrupt remapping in the firmware (VT-d, x2APIC), and boot '
    'without intremap=off'
)
_IO_APIC = re.compile(r'\sIO-APIC\s')


def findings() -> Iterator[Finding]:
    """Check what VFIO needs from the kernel, apart from its modules."""
    yield from _no_iommu_mode()
    yield from _interrupts()
    if not vfio.has_groups():
        yield Finding(
            'VFIO',
            finding.OK,
            'this kernel has no VFIO groups (CONFIG_VFIO_GROUP): guests use '
            'iommufd, which needs libvirt 12.1',
        )


def _no_iommu_mode() -> Iterator[Finding]:
    name = 'enable_unsafe_noiommu_mode'
    if sysfs.read(f'{sysfs.SYS}/module/vfio/parameters/{name}') == 'Y':
        yield Finding(
            'kernel module vfio',
            finding.ERROR,
            f'{name} is on: a guest can write to all memory of the host',
            f'remove the option {name} of the kernel module vfio',
        )


def _interrupts() -> Iterator[Finding]:
    lacks = vfio_rules.lacks_interrupt_remapping()
    allowed = vfio_rules.allows_unsafe_interrupts()
    if allowed:
        yield Finding(
            _REMAPPING,
            finding.WARNING,
            'allow_unsafe_interrupts is on: a guest with a device can send '
            'any interrupt to the host',
            'remove the option allow_unsafe_interrupts of the kernel modules '
            'vfio_iommu_type1 and iommufd, and ' + _ENABLE,
        )
    elif lacks:
        yield Finding(
            _REMAPPING,
            finding.ERROR,
            'the IOMMU of this host cannot remap interrupts: the kernel '
            'refuses every device for guests',
            _ENABLE,
        )
    elif remaps_no_interrupts():
        yield Finding(
            _REMAPPING,
            finding.WARNING,
            'the kernel does not remap interrupts, as /proc/interrupts shows: '
            'VFIO may refuse every device with EPERM when a guest starts',
            _ENABLE,
        )


def remaps_no_interrupts() -> bool:
    """Whether the kernel remaps no interrupts although it has an IO-APIC.

    The kernel calls the IO-APIC IR-IO-APIC in /proc/interrupts while it
    remaps (arch/x86/kernel/apic/io_apic.c). The file is long on large hosts.
    """
    try:
        with open(f'{sysfs.PROC}/interrupts', encoding='ascii') as file:
            return any(_IO_APIC.search(line) for line in file)
    except FileNotFoundError:
        return False
