# SPDX-License-Identifier: Apache-2.0

"""What os-acc doctor and os-acc device show say about PCI functions."""

from __future__ import annotations

from collections.abc import Iterator
import importlib.util
import os
from typing import Any

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.availability import host_use
from os_acc.availability import vfio_rules
from os_acc.availability.host_signs import blind_spots
from os_acc.claims import allocated
from os_acc.drivers import allocation
from os_acc.drivers import choosing
from os_acc.drivers import pci_functions
from os_acc.kernel import chip as chips
from os_acc.kernel import fpga_manager
from os_acc.kernel import mdev_types
from os_acc.kernel import modules
from os_acc.kernel import network
from os_acc.kernel import pci
from os_acc.kernel import reset
from os_acc.kernel import sriov
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.kinds.pci.driver import report_vfio
from os_acc.refusals import refusals
from os_acc.spec import device_spec

Finding = finding.Finding
Category = availability.Category


# Obstacles that are normal: the operator need not do anything.
_NORMAL = (
    Category.NOT_OFFERED,
    Category.HAS_VFS,
    Category.ALLOCATED,
    Category.GROUP_ALLOCATED,
)

# What to say first about a function that is not offered.
_ORDER = {Category.ALLOCATED: 0, Category.HOST_USE: 1}


def chip_info(chip: chips.Chip) -> objects.DeviceChipInfo:
    """Describe a chip for Device.chip."""
    return objects.DeviceChipInfo(
        address=chip.address,
        functions=list(chip.functions),
        serial=chip.serial,
        board=chip.board,
        interface_ids=list(chip.interface_ids),
    )


def show_chip(chip: chips.Chip) -> dict[str, Any]:
    """Describe a chip for DriverBase.show_device()."""
    return {
        'chip': chip.address,
        'functions of the chip': list(chip.functions),
        'serial number': chip.serial,
        'board': chip.board,
        'shell ids': list(chip.shell_ids),
        'interface ids': list(chip.interface_ids),
    }


def show(
    driver: driver_base.DriverBase, address: str, specs: device_spec.Specs
) -> dict[str, Any] | None:
    """See DriverBase.show_device."""
    if not pci.is_address(address):
        return None
    function = pci.find(address)
    if function is None:
        return None
    spec = specs.find(function)
    kind = pci_functions.kind_of(function, spec or device_spec.Spec())
    group, link = function.iommu_group, function.pcie_link
    holders = allocation.holders(driver)
    _, text, _ = status(driver, function, specs, holders)
    return {
        'address': address,
        'driver': driver.name,
        'status': text,
        'vendor id': function.vendor_id,
        'product id': function.product_id,
        'class': f'{function.pci_class:06x}',
        'resource class': kind.resource_class,
        'traits': list(kind.traits),
        'in device_spec': spec is not None,
        'numa node': function.numa_node,
        'pcie width': link.width if link else None,
        'pcie width possible': link.max_width if link else None,
        'pcie speed': link.speed if link else None,
        'kernel driver': function.driver,
        'driver override': _override(function),
        'vfio driver': vfio_rules.driver_for(
            function, spec or device_spec.Spec()
        ),
        'iommu group': group,
        'iommu group members': pci.group_members(group) if group else [],
        'pf': function.physfn,
        'vfs': function.vf_addresses,
        'vfs possible': sriov.total(address),
        'physical network': spec.physical_network if spec else None,
        'representor': network.representor(function),
        'mdev types': [
            f'{each.name} ({each.label}): {each.available} more'
            for each in mdev_types.types(address)
        ],
        'reset methods': (
            sysfs.read(f'{function.path}/reset_method') or ''
        ).split(),
        'fpga managers': [
            each.line for each in fpga_manager.managers(function)
        ],
        'vans': [
            f'{each.van_uuid} of instance {each.called}: {each.state}'
            for each in driver.handles()
            if each.device == address or each.handle == f'pci/{address}'
        ],
    }


def _override(function: pci.Function) -> str | None:
    """The driver_override, read by the privileged half.

    A process that reads it while an unbind of the function is blocked cannot
    be killed. Only root can see whether os-acc is unbinding it.
    """
    from os_acc.privileged.pci import functions as privileged

    try:
        return privileged.override_of(function.address, 1.0)
    except (
        exception.DeviceNotFound,
        exception.PrivilegeError,
        exception.Timeout,
    ) as err:
        return f'cannot be read now: {err}'


def status(
    driver: driver_base.DriverBase,
    function: pci.Function,
    specs: device_spec.Specs,
    holders: allocated.Holders,
) -> tuple[str, str, str]:
    """Whether a function could be given out now.

    :returns: verdict, text and advice, as in a Finding
    """
    spec = specs.find(function)
    # It is normal that the host uses functions that are not offered.
    bad = finding.OK if spec is None else finding.WARNING
    bind = (spec.bind if spec else None) or driver.config.bind
    found = list(availability.obstacles(function, spec, bind, holders=holders))
    if spec is None:
        # Offering it would not help if it is taken or the host uses it.
        found.sort(key=lambda each: _ORDER.get(each.category, len(_ORDER)))
    for each in found:
        verdict = finding.OK if each.category in _NORMAL else bad
        text, advice = each.text, each.remedy
        if each.category is Category.HOST_USE:
            text = f'the host uses it, so it is never assigned: {text}'
            advice += '; or remove it from device_spec'
        return verdict, text, '' if verdict == finding.OK else advice
    between = (
        spec.between_tenants if spec else None
    ) or driver.config.between_tenants
    if vfio.is_bound(function) and between == device_spec.BETWEEN_VFIO:
        return finding.OK, f'free; it stays bound to {function.driver}', ''
    if vfio.is_bound(function) and bind != device_spec.BIND_NONE:
        return (
            bad,
            f'it is bound to {function.driver}, but no VAN has it',
            'find out who bound it (libvirt, driverctl, a kernel argument); '
            'if this is intended, set bind = none',
        )
    return finding.OK, 'free', ''


def findings(
    driver: driver_base.DriverBase, specs: device_spec.Specs
) -> Iterator[Finding]:
    """See ExtensionBase.diagnose."""
    yield _iommu()
    yield from report_vfio.findings()
    yield _module(modules.VFIO_PCI)
    unreadable: dict[str, Exception] = {}
    functions = list(pci_functions.listed(specs, unreadable=unreadable))
    if any(_is_of_nic(function, spec) for function, spec in functions):
        yield _pyroute2()
    holders = allocation.holders(driver)
    variants = {vfio_rules.driver_for(f, spec) for f, spec in functions}
    for name in sorted(variants - {modules.VFIO_PCI}):
        yield _module(name)
    if not specs.entries:
        yield Finding(
            'device_spec',
            finding.WARNING,
            'it is not set, and the directory device_spec_dir has no entry: '
            'no device of this host is offered',
            'os-acc device spec proposes entries; os-acc device allow ADDRESS '
            'offers one device',
        )
    snapshot = host_use.Snapshot.read()
    for function, spec in functions:
        with choosing.noting(function.address, unreadable):
            yield from _function(driver, function, spec, specs, holders)
            for text, advice in blind_spots.of(function, snapshot):
                yield Finding(
                    f'PCI function {function.address}',
                    finding.WARNING,
                    text,
                    advice,
                )
    for address, err in unreadable.items():
        yield choosing.finding_of(f'PCI function {address}', err)


def _function(
    driver: driver_base.DriverBase,
    function: pci.Function,
    spec: device_spec.Spec,
    specs: device_spec.Specs,
    holders: allocated.Holders,
) -> Iterator[Finding]:
    """Report a function that is offered."""
    subject = f'PCI function {function.address}'
    verdict, text, advice = status(driver, function, specs, holders)
    yield Finding(subject, verdict, f'{function.ids}: {text}', advice)
    if spec.reset == reset.REQUIRED and not reset.can(
        pci.get(function.address)
    ):
        yield Finding(
            subject,
            finding.ERROR,
            'device_spec requires a reset, but the kernel has no way to '
            'reset it',
            'set a cleaning_command and reset = auto',
        )
    if spec.num_vfs is not None and not function.is_vf:
        yield from _vfs(function, spec.num_vfs)


def _iommu() -> Finding:
    number = len(sysfs.names(f'{sysfs.SYS}/kernel/iommu_groups'))
    if number:
        return Finding('IOMMU', finding.OK, f'on: {number} groups')
    return Finding(
        'IOMMU',
        finding.ERROR,
        'off: there is no IOMMU group',
        refusals.NO_IOMMU_GROUP.remedy,
    )


def _module(name: str) -> Finding:
    subject = f'kernel module {name}'
    if modules.loaded_driver(name) is not None:
        return Finding(subject, finding.OK, 'loaded')
    if modules.is_installed(name):
        return Finding(
            subject, finding.OK, 'installed: it is loaded when needed'
        )
    return Finding(
        subject,
        finding.ERROR,
        f'not installed for kernel {os.uname().release}',
        "install the distribution's package of kernel modules",
    )


def _is_of_nic(function: pci.Function, spec: device_spec.Spec) -> bool:
    """Whether it is a VF of a NIC, or a PF that gets such VFs."""
    return network.is_vf(function) or (
        function.base_class == pci.CLASS_NETWORK
        and function.is_pf
        and spec.num_vfs is not None
    )


def _pyroute2() -> Finding:
    subject = 'Python package pyroute2'
    if importlib.util.find_spec('pyroute2') is not None:
        return Finding(subject, finding.OK, 'installed')
    return Finding(
        subject,
        finding.WARNING,
        'not installed: device_spec offers VFs of NICs, and os-acc cannot set '
        'their MAC address, VLAN, trust and spoof check without it',
        'install os-acc[nic], unless no request for them has a port',
    )


def _vfs(pf: pci.Function, wanted: int) -> Iterator[Finding]:
    """Report the VFs of a PF. doctor.entries says why there are none."""
    subject, number = f'PF {pf.address}', sriov.count(pf.address)
    if number not in (0, wanted):
        yield Finding(
            subject,
            finding.WARNING,
            f'it has {number} VFs, but num_vfs is {wanted}: os-acc uses these '
            'VFs and does not change their number',
            'to change it while nobody uses the VFs, write 0 to sriov_numvfs',
        )
    elif number:
        yield Finding(subject, finding.OK, f'it has {wanted} VFs')
    elif pf.driver is not None and sriov.total(pf.address) >= wanted:
        yield Finding(
            subject,
            finding.OK,
            f'it gets {wanted} VFs when the first is requested',
        )
