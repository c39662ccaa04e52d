# SPDX-License-Identifier: Apache-2.0

"""The refusals that only drivers and reports say, and root never does.

See refusals.
"""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

PHYSICAL_NETWORK = Refusal(
    Category.NOT_OFFERED,
    'its entry of device_spec has the physical network {network}, and the '
    'request wants {wanted}',
    'The port of the request, or its handle, names a physical network.',
    'if it is connected to that network, set physical_network in its entry',
)
NOT_TRUSTED = Refusal(
    Category.NOT_OFFERED,
    'the request wants a trusted VF, and its entry of device_spec does not '
    'have trusted',
    'The port of the request has trusted set.',
    'set trusted to true in its entry',
)
FOR_FUNCTION = Refusal(
    Category.RESERVED,
    'os-acc apply reserves it for the function {function}, and the request '
    'names the function {wanted}',
    'The document of os-acc apply has it in reserved, with function.',
    'request the function, or take the device out of reserved',
)
FOR_PROJECT = Refusal(
    Category.RESERVED,
    'os-acc apply reserves it for the project {project}, and the project of '
    'the instance is {wanted}',
    'The document of os-acc apply has it in reserved, with project.',
    'request another device, or take the device out of reserved',
)
AHEAD = Refusal(
    Category.RESERVED,
    'it does not have the function, and os-acc apply lets nobody program it '
    'for an instance',
    'The document of os-acc apply has it in reserved, with ahead_of_time.',
    'name the function in functions of the document, and apply it',
)
NO_SUCH_FUNCTION = Refusal(
    Category.UNSUITABLE,
    'this host has no such PCI function',
    'Cyborg has a handle for a function that is gone, such as a VF.',
    'compare its address with lspci -D, or recreate the VF',
)
UNHEALTHY = Refusal(
    Category.UNHEALTHY,
    'it is unhealthy since {since}: {reason}. If it works again, {remedy}',
    'Its programming, its reset or its cleaning has failed, it has left the '
    'bus, or the kernel has counted a fatal PCIe error for it.',
    'check the device, then run os-acc device free {device}',
)
REBOOT_PENDING = Refusal(
    Category.UNHEALTHY,
    'a cold reboot is pending since {since}: {reason}. To get the new '
    'function, {remedy}',
    'It was programmed with something that takes effect only after a power '
    'cycle of the host.',
    'power-cycle the host',
)
PF_TAKEN = Refusal(
    Category.ALLOCATED,
    'its PF is taken: {holder}',
    'An instance has the whole PF of the VF.',
    'request another device, or release the PF',
)
COMPANION_DENIED = Refusal(
    Category.NOT_OFFERED,
    '{source} of [os_acc] device_spec denies its companion {address}',
    'A function that is assigned together with it is denied.',
    'remove that entry, or offer another device',
)
SEEMS_OPEN = Refusal(
    Category.OPEN,
    'a guest that os-acc did not plug has it: {driver} is bound to it, and it '
    'is open',
    'Only in the inventory, which needs no privilege: see below.',
    'shut down that guest; virsh, or fuser on the files below /dev/vfio, '
    'finds it',
)
TAKEN = Refusal(
    Category.ALLOCATED,
    'instance {instance} has {what} (VAN {van})',
    'An instance has it, one of its VFs or mediated devices, or one of its '
    'companions.',
    'request another device, or release this one: os-acc unplug {instance}',
)
CHIP_TAKEN = Refusal(
    Category.ALLOCATED,
    'instance {instance} has {what} of the same FPGA (VAN {van}), and a guest '
    'that has a PF of an FPGA could program it',
    'The request is for a PF of an FPGA with several PFs, such as the '
    'management function of a card, and another instance has one of its other '
    'functions; or the request is for a VF, and another instance has another '
    'PF. Functions of different FPGAs, and VFs, can have different owners.',
    'request another card, request the functions for one instance, or release '
    'that one: os-acc unplug {instance}',
)
PART_TAKEN = Refusal(
    Category.ALLOCATED,
    'instance {instance} has {what}, and both are of {of} (VAN {van})',
    "The owner of a PCI function's device file may control the whole "
    'function, with its VFs and their mediated devices. So two instances '
    'cannot share them.',
    'request another device, or release that one: os-acc unplug {instance}',
)
GROUP_TAKEN = Refusal(
    Category.GROUP_ALLOCATED,
    'instance {instance} has {member} of the same IOMMU group {group} (VAN '
    '{van})',
    'VFIO gives a group to one guest as a whole.',
    'request the functions of the group for one instance, or release that '
    'one: os-acc unplug {instance}',
)
