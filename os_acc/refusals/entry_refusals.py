# SPDX-License-Identifier: Apache-2.0

"""The refusals of entries of device_spec that offer nothing.

See nothing_offered, and offer_refusals. Root does not need them.
"""

from __future__ import annotations

import functools

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

_not_offered = functools.partial(Refusal, Category.NOT_OFFERED)

# --- The entry names no device of this host

MATCHES_NOTHING = _not_offered(
    'it names no device of this host',
    'No device has the address, the IDs or the interface of the entry.',
    'compare address, vendor_id and product_id with lspci -nn -D, and devname '
    'with ip link',
)
NOTHING_THERE = _not_offered(
    'no device is at {address} now',
    'The entry has an address and no IDs. The card was removed or moved, it '
    'has left the bus, or its VFs were not created since the host was booted.',
    'compare the address with lspci -D; if it is that of a VF, create the VFs '
    'of its PF',
)
NO_INTERFACE_NOW = _not_offered(
    'no PCI function has the interface {interface} now',
    'The entry has devname. The interface has another name since the host '
    'was booted, its driver is not loaded, or its function is bound to VFIO.',
    'compare devname with ip link, or name the function by its address and '
    'its ids',
)
NAMED_BEFORE = _not_offered(
    '{source} {verb} {devices}, and takes precedence',
    'Another entry names all devices that the entry names. The first entry '
    'that names a device applies, but one that denies it overrides all '
    'others.',
    'remove one of the two entries, or change their order',
)
OTHER_DEVICE = _not_offered(
    'another device is at {address} now: {now}; the entry names {wanted}, '
    '{where}',
    'The entry has an address and IDs. A card was added, moved or replaced, '
    'so that the bus numbers have changed.',
    'if the device is still to be offered, correct the address of the entry, '
    'or run os-acc device allow with its new address',
)
MOVED = _not_offered(
    'no device is at {address} now; the entry names {wanted}, {where}',
    'The entry has an address and IDs. The card was moved to another slot or '
    'removed, or the bus numbers have changed.',
    'if the device is still to be offered, correct the address of the entry, '
    'or run os-acc device allow with its new address',
)
NO_VFS_NOW = Refusal(
    Category.UNSUITABLE,
    'it names the VFs of PF {address}, which has none now',
    'The entry has the address of a PF and the ids of its VFs, and the VFs '
    'were not made since the host was booted.',
    'write their number to sriov_numvfs of the PF, or set num_vfs in the '
    'entry',
)
NO_FILES = _not_offered(
    'its globs name no device file of this host{ids}, or only files that an '
    'earlier entry names, or render nodes that are no partition of a GPU now',
    'An entry with devices. The module that creates the files may not be '
    'loaded, or the kernel has given their names to other devices.',
    'compare {globs} with ls -l /dev',
)

# --- A device has no such parts

NO_VFS = Refusal(
    Category.UNSUITABLE,
    'its VFs are offered, it has none, and its entry has no num_vfs',
    'The resource_class of an entry is one of VFs, and the VFs were not made '
    'since the host was booted.',
    'create the VFs, or set num_vfs; or, to offer the whole function instead, '
    'set another resource_class',
)
NO_REGIONS = Refusal(
    Category.UNSUITABLE,
    'programming is dynamic, so that its VFs are offered, and it has none',
    'The VFs that have the regions of the FPGA were not made since the host '
    'was booted, and the entry has no num_vfs.',
    'set num_vfs in the entry, or write their number to sriov_numvfs',
)
NOT_NVIDIA = _not_offered(
    'its entry is for vGPUs, and it is bound to {driver}, not to a driver of '
    "NVIDIA's: {remedy}",
    'vGPU types exist on VFs that are bound to the driver nvidia or '
    'nvidia-vgpu-vfio.',
    "install and load NVIDIA's vGPU manager, or correct the entry",
)
VGPU_NO_SRIOV = _not_offered(
    'its entry is for vGPUs, and it does not support SR-IOV now: it has no '
    'file sriov_totalvfs',
    'SR-IOV is off in the firmware, or the GPU is older than Ampere.',
    'enable SR-IOV in the firmware of the host; a GPU that is older than '
    'Ampere has mediated devices: set mdev_types instead',
)
VGPU_NO_VFS = _not_offered(
    'it has no VFs: {remedy}',
    'Its entry is for vGPUs. The VFs are gone after each reboot of the host.',
    'run sriov-manage -e {address}, also at each boot, before os-acc starts',
)
VGPU_AS_MDEV = _not_offered(
    'its entry is for VFs as vGPUs, and its vGPUs are mediated devices with '
    'the driver that it has now',
    'The kernel is older than 6.8, or the vGPU software older than 17.',
    'set mdev_types instead of vgpu_type',
)
MDEV_AS_VGPU = _not_offered(
    'its entry is for mediated devices, and its driver creates none: its VFs '
    'have vGPU types',
    'With vGPU software from version 17 on, and Linux from 6.8 on.',
    'set vgpu_type instead of mdev_types',
)
NO_MDEVS = _not_offered(
    'its entry is for mediated devices, and it creates none: it is bound to '
    '{driver}{vfs}',
    'It is not in /sys/class/mdev_bus. The driver that creates them is not '
    'loaded, or was replaced by an upgrade, or the VFs that create them are '
    'gone after a reboot.',
    'load the driver that creates them, such as the vGPU manager; for VFs of '
    'NVIDIA cards, run sriov-manage -e {address}',
)
NO_VGPU_TYPES_NOW = _not_offered(
    'none of its VFs can have a vGPU type now: creatable_vgpu_types of each '
    'is empty, and it has no vGPU',
    'vgpu_type is set. The card is in MIG mode without GPU instances, as '
    'after a reboot, or the services of the vGPU manager do not run.',
    'in MIG mode, create GPU instances (nvidia-smi mig -cgi); otherwise start '
    'nvidia-vgpud and nvidia-vgpu-mgr, and check their logs',
)
MDEV_OTHER_TYPES = _not_offered(
    'its mdev types are {present}, and mdev_types of its entry has {wanted}',
    'The names of the types change with the vendor, the card and the version '
    'of the driver.',
    'set mdev_types to some of its types',
)
