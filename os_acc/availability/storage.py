# SPDX-License-Identifier: Apache-2.0

"""PCI functions that store data: what has to be known before one is given out.

A guest leaves its data on a storage function (base class 01). So one is given
out only if it can be emptied before the host's driver or the next guest sees
it. os-acc itself empties NVMe drives; for all others, and for what it cannot
empty, the operator names a command, and says in device_spec which functions it
empties: a command that cleans GPUs does nothing to a drive.
"""

from __future__ import annotations

from oslo_config import cfg

from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import device_spec

# Mass storage, Non-Volatile Memory, NVM Express I/O controller: PCI Code and
# ID Assignment Specification, 1.2
_NVME = 0x010802


def is_storage(function: pci.Function) -> bool:
    """Whether a function stores data."""
    return function.base_class == pci.CLASS_STORAGE


def is_nvme(function: pci.Function) -> bool:
    """Whether a function is a controller of an NVMe drive."""
    return function.pci_class == _NVME


def has_command(
    spec: device_spec.Spec | None, conf: cfg.ConfigOpts = cfg.CONF
) -> bool:
    """Whether the operator has named a command that empties a function."""
    said = spec is not None and spec.command_empties
    return bool(said and conf.os_acc.cleaning_command)


def refusal(
    function: pci.Function, bind: str, command: bool
) -> reasons.Reason | None:
    """Say why a function could not be emptied after its use.

    Whether an NVMe controller has a command that erases is not known before
    it is bound to VFIO: see privileged.storage.

    :param bind: who is to bind it, one of device_spec.BINDS, or BIND_HOST
    :param command: what has_command() says
    """
    if not is_storage(function):
        return None
    if bind == device_spec.BIND_HOST:
        return refusals.STORES_FOR_HOST.reason()
    if bind == device_spec.BIND_LIBVIRT:
        return refusals.STORES_FOR_LIBVIRT.reason()
    if command:
        return None
    if not is_nvme(function):
        pci_class = f'{function.pci_class >> 8:04x}'
        return refusals.STORES_NO_COMMAND.reason(pci_class=pci_class)
    if not vfio.has_groups():
        return refusals.STORES_NO_GROUPS.reason()
    if others := group_mates(function):
        return refusals.STORES_IN_GROUP.reason(others=', '.join(others))
    return None


def group_mates(function: pci.Function) -> list[str]:
    """The other members of a function's IOMMU group, without bridges.

    If there are any, os-acc itself cannot empty the function: to open it,
    VFIO takes the whole group from the drivers of the host, and the kernel
    binds no member to one meanwhile.
    """
    found = []
    for name in pci.group_members(function.iommu_group or ''):
        other = pci.find(name) if pci.is_address(name) else None
        if name != function.address and not (other and other.is_bridge):
            found.append(name)
    return found
