# SPDX-License-Identifier: Apache-2.0

"""SR-IOV: the VFs that a PF has or can have. See drivers/pci/iov.c."""

from __future__ import annotations

from os_acc.kernel import pci
from os_acc.kernel import sysfs


def total(pf: str) -> int:
    """How many VFs a function can have; 0 if it is not a PF."""
    return sysfs.read_int(f'{pci.directory(pf)}/sriov_totalvfs') or 0


def count(pf: str) -> int:
    """How many VFs a PF has.

    Counts their links, because reading sriov_numvfs waits for the device's
    lock as long as an unbind of it is blocked (drivers/pci/iov.c).
    """
    names = sysfs.names(pci.directory(pf))
    return sum(name.startswith('virtfn') for name in names)


def autoprobe(pf: str) -> str | None:
    """sriov_drivers_autoprobe: '0' or '1'; None before Linux 4.12."""
    return sysfs.read(f'{pci.directory(pf)}/sriov_drivers_autoprobe')


def vf_product_id(pf: str) -> str | None:
    """The product id of a PF's VFs, 4 hex digits; None if unknown."""
    text = sysfs.read(f'{pci.directory(pf)}/sriov_vf_device')
    return text.removeprefix('0x').rjust(4, '0') if text else None


def future_addresses(pf: str, number: int) -> list[str]:
    """The addresses that the VFs of a PF will have.

    The routing id of the first VF is that of the PF plus an offset; a stride
    leads from each VF to the next: PCIe Base Specification, 9.3.3.9 and
    9.3.3.10.

    :returns: empty if the PF cannot have so many VFs, or the kernel does not
        show offset and stride
    """
    path = pci.directory(pf)
    offset = sysfs.read_int(f'{path}/sriov_offset')
    stride = sysfs.read_int(f'{path}/sriov_stride')
    # Some devices show 0 as long as they have no VFs.
    if not offset or (number > 1 and not stride) or number > total(pf):
        return []
    stride = stride or 1
    domain, bus, rest = pf.split(':')
    slot, function = rest.split('.')
    own = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
    first = own + offset
    return [
        f'{domain}:{rid >> 8 & 0xFF:02x}:{rid >> 3 & 0x1F:02x}.{rid & 7}'
        for rid in range(first, first + number * stride, stride)
    ]


def in_the_way(pf: pci.Function, number: int) -> str | None:
    """The address of a new VF of a PF at which another function is; or None.

    What a PF shows as the offset of its first VF may change once it has VFs:
    PCIe Base Specification, 9.3.3.9. So another function of the card, or a VF
    of another PF, can be at an address of future_addresses().

    A new VF is on the bus before the kernel links it to its PF.
    """
    if 'virtfn0' in pf.entries:
        return None  # the addresses of its VFs are known
    for address in future_addresses(pf.address, number):
        found = pci.find(address)
        if (
            found is not None
            and found.physfn != pf.address
            and (found.is_vf or not pci.has_ids_of_vf(address))
        ):
            return address
    return None
