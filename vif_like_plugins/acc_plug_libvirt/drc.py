# SPDX-License-Identifier: Apache-2.0

"""The DRC index of a device of a pseries guest (KVM on Power).

A pseries guest identifies a PCI function by the index of its Dynamic
Reconfiguration Connector: ibm,my-drc-index in the device tree, shown by lsslot
and drmgr. QEMU derives the index from the function's address in the guest
(drc_id_from_devfn() in hw/ppc/spapr_pci.c). tests/functional/test_pseries.py
checks it against QEMU.
"""

from __future__ import annotations

from lxml import etree

# The type in the upper bits of the index:
# SPAPR_DR_CONNECTOR_TYPE_SHIFT_PCI (include/hw/ppc/spapr_drc.h) shifted by
# DRC_INDEX_TYPE_SHIFT (hw/ppc/spapr_drc.c).
_PCI_TYPE = 4 << 28


def drc_index(hostdev: str) -> str | None:
    """Compute the DRC index of a <hostdev> before its domain is defined.

    This is possible only for an address on bus 0, which is the machine's own
    PCI host bridge (PHB) in every domain. The domain's controllers decide
    which PHB another bus belongs to.

    :param hostdev: XML with the address as hostdev.Builder writes it
    :returns: 8 upper-case hex digits; None if the index is not known yet
    """
    address = etree.fromstring(hostdev).find('address[@type="pci"]')
    if address is None:
        return None
    domain, bus, slot, function = (
        int(address.get(name, '0'), 16)
        for name in ('domain', 'bus', 'slot', 'function')
    )
    # libvirt takes 0000:00:00 for no address (virPCIDeviceAddressIsEmpty).
    if domain or bus or not slot:
        return None
    return f'{_PCI_TYPE | slot << 3 | function:08X}'
