# SPDX-License-Identifier: Apache-2.0

"""The refusals of PCI functions: the error, when it applies, and the remedy.

Errors, os-acc doctor and the documentation take the texts from here. The
refusals of NVMe drives are in nvme_refusals, those of vGPUs in vgpu_refusals.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Reason
from os_acc.refusals.reasons import Refusal

_unsuitable = functools.partial(Refusal, Category.UNSUITABLE)
_used = functools.partial(Refusal, Category.HOST_USE)

# The remedy if os-acc itself cannot empty a function.
SET_COMMAND = (
    'set [os_acc] cleaning_command to a command that erases it, and '
    '"command_empties": true in its entry of device_spec'
)

# --- device_spec and the request

NOT_NAMED = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec does not offer it, so os-acc does not touch it. To '
    'offer it, {remedy}',
    'No entry names it, or one denies it. An entry that names every device '
    'does not name parts of the host.',
    'run os-acc device allow {device} as root, or add to the configuration: '
    '{entry}',
)
OWN_INTERFACE = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec names it by its interface {interface}, which it '
    'loses when it is bound to VFIO: {remedy}',
    'devname of its entry is its own interface. Its VFs can be assigned.',
    'name it by its address',
)
COMPANION_ONLY = Refusal(
    Category.NOT_OFFERED,
    'it is a companion of {main} in [os_acc] device_spec and is offered only '
    'with it',
    'The entry that names it has companions.',
    'to offer it by itself, put an entry for it, without companions, before '
    'that entry',
)
MDEV_TYPE = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec allows the types {types}',
    'The request wants another type of mediated device.',
    'request one of these types, or add the type to mdev_types of the entry',
)

# --- What no guest can use, or not as it is set up

VFS_WITH_BRIDGE = _unsuitable(
    'its VFs would be in its own IOMMU group {group}, because the bridge '
    '{bridge} is in that group, too: {remedy}',
    'The VFs of a PF are requested, and it has none yet. A bridge above it '
    'lacks ACS, so the kernel puts everything below the bridge into one '
    'group. No guest can get a VF while the PF is bound to its driver.',
    'move the card to a slot whose bridges have ACS, or enable ACS in the '
    'firmware',
)
NO_PF_DRIVER = _unsuitable(
    'it has no driver that could create VFs',
    'The VFs of a PF are requested, and it has none yet.',
    "load the PF's driver",
)
BRIDGE = _unsuitable(
    'it is a bridge, which no guest can use',
    'Its header says that it is a bridge, or it is a part of the host of PCI '
    'class 06, such as an ISA bridge. Other devices of the sub-class 80, such '
    'as NVSwitch, can be assigned.',
    'remove it from device_spec',
)
NOT_BOUND = _unsuitable(
    'it is bound to {driver}, and with bind = none someone else must bind it '
    'to VFIO first',
    "bind is none; in Nova's words, managed is no.",
    'bind it to VFIO, for example with driverctl, or set bind = os-acc',
)
STORES_FOR_HOST = _unsuitable(
    'it stores data, and with host_driver the next user could read it: '
    '{remedy}',
    'It is of PCI class 01, and a service of the host requests it.',
    'remove host_driver from its entry of device_spec',
)
STORES_FOR_LIBVIRT = _unsuitable(
    'it stores data, and with bind = libvirt the host would see the data of '
    'one guest before it is erased: {remedy}',
    'It is of PCI class 01. A cleaning_command does not help here.',
    'use bind = os-acc, and managed = no in the handle',
)
STORES_NO_COMMAND = _unsuitable(
    'it stores data (class {pci_class}), and os-acc itself can erase only '
    'NVMe drives: {remedy}',
    'It is of PCI class 01, such as a RAID controller or a VMD endpoint.',
    SET_COMMAND,
)
STORES_IN_GROUP = _unsuitable(
    'it stores data, and the built-in cleaning of NVMe drives cannot use it, '
    'because it shares its IOMMU group with {others}: {remedy}',
    'To erase it, os-acc would have to take the whole group from the host.',
    'move it to a slot with its own IOMMU group, or ' + SET_COMMAND,
)
STORES_NO_GROUPS = _unsuitable(
    'it stores data, and the built-in cleaning of NVMe drives cannot use it, '
    'because this kernel has no VFIO groups (CONFIG_VFIO_GROUP=n): {remedy}',
    'The built-in cleaning opens the drive by its IOMMU group.',
    'boot a kernel with CONFIG_VFIO_GROUP, or ' + SET_COMMAND,
)
DENYLIST = _unsuitable(
    'vfio-pci refuses {ids}, because {devices} have errata that a guest can '
    'exploit: {remedy}',
    'It is in the denylist of vfio-pci, and no variant driver is to bind it.',
    'if you trust the guests, set the option disable_denylist=1 of the kernel '
    'module vfio-pci and reload it',
)
RMRR = _unsuitable(
    'the firmware uses the memory {region} with its IOMMU group {group} '
    '(RMRR), so the kernel refuses it for a guest: {remedy}',
    'reserved_regions of the group has a region of the type direct. Regions '
    'of the type direct-relaxable do not matter.',
    'turn that use off in the firmware, such as shared memory of the '
    "management controller, or ask the server's vendor",
)
NO_REMAPPING = _unsuitable(
    'the IOMMU of this host cannot remap interrupts, so the kernel refuses it '
    'for a guest: {remedy}',
    'An Intel IOMMU of the host shows it, and allow_unsafe_interrupts is off.',
    'enable interrupt remapping (x2APIC) in the firmware, or, if you trust '
    'the guests, set the option allow_unsafe_interrupts=1 of the kernel '
    'module vfio_iommu_type1',
)
NO_IOMMU_GROUP = Refusal(
    Category.NO_IOMMU_GROUP,
    'it is not in an IOMMU group: {remedy}',
    'The IOMMU is off, or the function is behind none.',
    'enable the IOMMU in the firmware (VT-d, AMD-Vi, SMMU), and boot with '
    'intel_iommu=on or the equivalent of the platform',
)

# --- What is given out, or kept back

HAS_VFS = Refusal(
    Category.HAS_VFS,
    'it is a PF that has {number} VFs',
    'The whole PF is requested.',
    'request a VF; or, while nobody uses the VFs, write 0 to sriov_numvfs of '
    'the PF',
)
RESERVED = Refusal(
    Category.RESERVED,
    'it is reserved: {reason}. To free it, {remedy}',
    'one_time_use is set, and it was used.',
    'check the device, then run os-acc device free {address}',
)
NO_ANSWER = Refusal(
    Category.UNHEALTHY,
    'it does not answer: its configuration space reads as ones. {remedy}',
    'It was reset, or has failed, and has not come back. os-acc checks this '
    'only when a VAN takes it.',
    'Reset it, or power-cycle the host',
)

# --- What the host uses

BOOT_DISPLAY = _used(
    'it is the boot display',
    'The console of the host is on it.',
    'choose another boot display in the firmware',
)
MOUNTED = _used(
    'block device {name} is mounted on {place}',
    'A file system on it, or on a partition of it, is mounted.',
    'unmount it',
)
SWAP = _used(
    'block device {name} is swap space',
    'The host swaps to it.',
    'run swapoff on it',
)
PART_OF_BLOCK_DEVICE = _used(
    'block device {name} is a part of {upper}',
    'An md, dm or LVM device uses it.',
    'take it out of that device, or stop that device',
)
EXPORTED_NAMESPACE = _used(
    'block device {name} is exported by the NVMe target as a namespace of '
    '{subsystem}',
    "The kernel's NVMe target has it, even if the export is disabled.",
    "remove the namespace from the NVMe target's configuration",
)
EXPORTED_CONTROLLER = _used(
    'NVMe controller {name} is exported by the NVMe target as {subsystem}',
    "The kernel's NVMe target passes it through, even if that is disabled.",
    "remove the subsystem from the NVMe target's configuration",
)
OPEN_EXCLUSIVELY = _used(
    'the host has opened block device {name} exclusively',
    'A mount, swap, md, dm, ZFS or Ceph uses it. Only root can see this. The '
    'error may also say that the function is busy.',
    'stop the program that uses it: see lsblk and fuser',
)
IN_INTERFACE = _used(
    'interface {name} is a part of {master}',
    'Its interface is in a bridge, a bond or Open vSwitch.',
    'take it out: ip link set {name} nomaster, or ovs-vsctl del-port {name}',
)
CARRIES_INTERFACE = _used(
    'interface {name} carries {upper}',
    'Another interface, such as a VLAN, is set up on its interface.',
    'delete the other one: ip link delete {upper}',
)
INTERFACE_UP = _used(
    'interface {name} is up',
    'The host has set up its interface.',
    "set it down (ip link set {name} down), also in the host's network "
    'configuration',
)
HAS_MDEV = _used(
    'it has the mediated device {uuid}',
    'The whole function is requested, and a mediated device was created on '
    'it.',
    'if no guest needs it, mdevctl stop -u {uuid}',
)
HAS_VGPU = _used(
    'vGPU type {number} is set on it',
    'The whole function is requested, and it is set up for a vGPU.',
    'if no guest needs it, write 0 to its file nvidia/current_vgpu_type',
)
COMPANION_USED = _used(
    'its companion {address}: {use}',
    'The host uses a function that is assigned together with it.',
    'stop that use on the host',
)
IN_GROUP_BOUND = Refusal(
    Category.GROUP_HOST_USE,
    'its IOMMU group {group} also contains {name}: driver {driver} is bound '
    'to it',
    'VFIO gives a group to one guest as a whole. An ISA bridge on lpc_ich '
    'also prevents this; a bridge on pcieport does not. If the other device '
    'is a sound or USB function of a graphics card, companions can be set.',
    'unbind that device from its driver, or move the card to a slot with an '
    'IOMMU group of its own',
)
IN_GROUP_USED = Refusal(
    Category.GROUP_HOST_USE,
    'its IOMMU group {group} also contains {name}: {use}',
    'The host uses the other one.',
    'stop that use and unbind that device from its driver, or move the card '
    'to a slot with an IOMMU group of its own',
)
IN_GROUP_OTHER = Refusal(
    Category.GROUP_HOST_USE,
    'its IOMMU group {group} also contains {name}, which is not a PCI '
    'function',
    'The platform has put a device of another bus into the group.',
    'move the card to a slot with an IOMMU group of its own',
)

# --- Who has it open

PROCESS = Refusal(
    Category.OPEN,
    'process {pid} ({name}) has {path} open',
    'A guest has it through VFIO, or a program has one of its files open, '
    'such as /dev/uio0. Only root can see this.',
    'shut down that guest, or end the process',
)
DOMAIN = Refusal(
    Category.OPEN,
    'libvirt domain {name} has it',
    "libvirt's state of a running domain has it.",
    'shut down the domain, or detach the device: virsh detach-device',
)
STILL_OPEN = Refusal(
    Category.OPEN,
    '{path} is still open, although no process shows it: its process is being '
    'killed, or the device is mapped',
    'Only during a release.',
    'wait, then call unplug again; if that does not help, reboot the host',
)
PF_ON_VFIO = Refusal(
    Category.OPEN,
    'it is bound to the VFIO driver {driver}',
    'The VFs of a PF are requested, and it has none yet.',
    "bind the PF to the host's driver for it, for example with driverctl",
)


def opened(users: Sequence[str]) -> Reason:
    """The reason that others have a device open.

    :param users: a clause for each, as privileged.device_users has found them
    """
    return Reason(Category.OPEN, '; '.join(users), PROCESS.remedy)
