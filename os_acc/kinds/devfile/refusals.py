# SPDX-License-Identifier: Apache-2.0

"""The refusals of device files. See refusals."""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

FILE_NOT_NAMED = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec does not offer it: no entry names it in devices. To '
    'offer it, {remedy}',
    'A request names a device file that no entry names.',
    'run os-acc device allow with the path of the file as root, or add an '
    'entry with devices',
)
FILE_DENIED = Refusal(
    Category.NOT_OFFERED,
    '{source} of [os_acc] device_spec denies it, or the PCI function behind '
    'it',
    'An entry with deny names one of its files, or its PCI function.',
    'remove that entry',
)
FILE_FOR_PARTS = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec offers {parts} only, and the file gives the whole '
    'function',
    'The file is one of VFIO, and the entry of the PCI function behind it is '
    'for parts of the function.',
    'request one of these parts, or offer another function',
)
FILE_CONTRADICTION = Refusal(
    Category.UNSUITABLE,
    '[os_acc] device_spec contradicts itself: {one} and {others} offer one of '
    'its files in different ways',
    'For example, one entry shares a file and another one does not, or the '
    'entries add different files in "with".',
    'let only one entry name the file, or give both the same settings',
)
FILE_LACKS = Refusal(
    Category.UNSUITABLE,
    'no file of this host matches {pattern}, which its entry has in "with"',
    'A file that comes with the device is missing, such as /dev/nvidia-uvm '
    'before its module is loaded.',
    'load the module that creates the file, or correct the entry',
)
FILE_NO_ACCOUNT = Refusal(
    Category.UNSUITABLE,
    'this host has no {kind} {name}, which its entry sets',
    'The entry has an owner or group that the host does not know.',
    'add it to the host, or set its number in the entry',
)
FILE_KEEPS_DATA = Refusal(
    Category.UNSUITABLE,
    'it stores data, and os-acc does not erase it between two instances: '
    '{remedy}',
    'It is a block device, or belongs to a controller of disks.',
    'set keeps_data in its entry if the next instance may read what the last '
    'one has left',
)
FILE_NEVER = Refusal(
    Category.HOST_USE,
    '{path} is {what}, which is never assigned',
    'The file gives access to the whole host, or the host needs it.',
    'remove it from device_spec',
)
FILE_BLOCK_ALONG = Refusal(
    Category.HOST_USE,
    '{path} is a block device, which cannot come with other devices',
    'The key "with" of its entry names a block device.',
    'offer it in its own entry',
)
FILE_LOOP = Refusal(
    Category.HOST_USE,
    'loop device {name} shows the file {file}',
    'The loop device is set up on the host.',
    'run losetup -d for it',
)
FILE_SHARED_NOT_CLEANED = Refusal(
    Category.UNSUITABLE,
    '[os_acc] cleaning_command is set, and it cannot be run for files that '
    'several VANs share',
    'A device that VANs share always has tenants, so it can never be cleaned.',
    'remove shared from its entry, or unset cleaning_command',
)
FILE_FUNCTION_TAKEN = Refusal(
    Category.ALLOCATED,
    'instance {instance} has {what}, which is behind the file (VAN {van})',
    'A VAN has the PCI function or the mediated device behind the file, or a '
    'part of it.',
    'request another device, or release that one: os-acc unplug {instance}',
)
FILE_SHARES = Refusal(
    Category.ALLOCATED,
    '{number} VANs have it, and its entry sets shared to {most}',
    'The maximum number of VANs share the file.',
    'request another device, release one of them, or raise shared',
)
FILE_NUMBER = Refusal(
    Category.ALLOCATED,
    'instance {instance} was given the device number {number} of {path} (VAN '
    '{van}), and may still use it',
    'The kernel has given the number of a device that a VAN has to another '
    'device, for example when its module was loaded again.',
    'release that VAN: os-acc unplug {instance}',
)
FILE_PART = Refusal(
    Category.ALLOCATED,
    'instance {instance} has {what}, which is the same device, a part of it, '
    'or the device of which it is a part (VAN {van})',
    'A VAN has a partition of the disk, the disk of the partition, another '
    'file of the same disk, or the namespace of NVMe-oF behind the file.',
    'request another device, or release that one: os-acc unplug {instance}',
)
FILE_QUEUE = Refusal(
    Category.ALLOCATED,
    'it is a work queue that os-acc has set up for VAN {van}',
    'The driver idxd has given the work queue to a VAN. The globs of an entry '
    'with devices match its file, too.',
    'let the globs name other files, or remove the entry with idxd',
)
NO_PARTITIONS = Refusal(
    Category.UNSUITABLE,
    'its driver shows no compute partitions that can be set',
    'The document of os-acc apply sets the compute partitions of a device '
    'that is no such AMD GPU, or that amdgpu does not drive now.',
    'compare the address with lspci, and load amdgpu',
)
NO_MODE = Refusal(
    Category.UNSUITABLE,
    'it cannot be in the mode {mode} now: its driver lists {possible}',
    'The GPU does not have this mode of compute partitions, or not together '
    'with its present memory mode.',
    'choose one of these modes, or change the memory mode',
)
PARTITIONS_NOT_OFFERED = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec offers no device file of it',
    'The document of os-acc apply sets the compute partitions of a GPU, and '
    'no entry with devices names its render node.',
    'add an entry with devices, such as /dev/dri/renderD*',
)
