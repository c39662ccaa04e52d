# SPDX-License-Identifier: Apache-2.0

"""PCI functions that are parts of the host, not accelerators.

The kernel shows no use of most of them, but the host fails or loses a service
without them. An entry of device_spec that names every device does not offer
them. An operator who needs one names it by its address or by its ids.
"""

from __future__ import annotations

import re

from os_acc.kernel import pci

# The displays of management controllers (BMC) and of emulated machines: file
# pci.ids. They are not accelerators, and the console of the host may need
# them.
_CONSOLES = re.compile(
    '1a03:.*'  # ASPEED
    '|102b:.*'  # Matrox
    '|18ca:.*'  # XGI
    '|19e5:1711'  # Huawei iBMC
    '|1002:(4752|5159|515e)'  # ATI Rage XL, RV100, ES1000
    '|(1013|1234|15ad|1af4|1b36|80ee):.*'  # emulated
)

# Classes and sub-classes: PCI Code and ID Assignment Specification, chapter 1.
# Not among them are 0580 and 0880 (other), which FPGAs and Intel's data movers
# have, and 0c06 (InfiniBand).
_PARTS = {
    0x0500: 'RAM',
    0x0501: 'flash memory',
    0x0502: 'a CXL memory device, which may hold memory of the host',
    0x0780: 'a communication controller, such as the management engine',
    0x0C03: 'a USB controller',
    0x0C05: 'an SMBus controller',
    0x0C07: 'an IPMI interface',
}
_PARTS_BY_BASE_CLASS = {
    0x08: 'a base system peripheral',
    0x09: 'an input controller',
    0x0A: 'a docking station',
}
_OTHER_PERIPHERAL = 0x0880

# The secure processor of AMD's CPUs (PSP, CCP), which the firmware and KVM
# need: drivers/crypto/ccp in the kernel. Class 10, encryption.
_SECURE_PROCESSOR = (0x10, '1022')


def what(function: pci.Function) -> str | None:
    """Say which part of the host a function is; None if it is none."""
    sub_class = function.pci_class >> 8
    if sub_class in _PARTS:
        return _PARTS[sub_class]
    if function.base_class == pci.CLASS_DISPLAY and _CONSOLES.fullmatch(
        function.ids
    ):
        return 'the display of a management controller'
    if (function.base_class, function.vendor_id) == _SECURE_PROCESSOR:
        return "AMD's secure processor"
    if sub_class == _OTHER_PERIPHERAL:
        return None
    return _PARTS_BY_BASE_CLASS.get(function.base_class)
