# SPDX-License-Identifier: Apache-2.0

"""Refusals of what the host uses. See refusals for the others."""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

UNREADABLE = Refusal(
    Category.HOST_USE,
    '{file} cannot be read ({error}), so it is unknown whether the host uses '
    'it',
    'A file that shows a use cannot be read.',
    'let os-acc read the file, or find out why the kernel cannot show it',
)
AUTOMOUNT = Refusal(
    Category.HOST_USE,
    'block device {name} is mounted on {place} as soon as somebody accesses '
    'it',
    'Its entry in /etc/fstab has the option x-systemd.automount.',
    'remove the entry from /etc/fstab, and stop the automount unit: systemctl '
    'daemon-reload; umount {place}',
)
SHARED = Refusal(
    Category.HOST_USE,
    'the directory {tag} that it shares is mounted on {place}',
    'This host is a virtual machine, and the device is virtiofs or 9p.',
    'unmount it',
)
SUPERBLOCK = Refusal(
    Category.HOST_USE,
    'a file system ({kind}) on block device {name} is mounted, and this '
    'process cannot see where',
    'It is mounted in a mount namespace of a process that is hidden, or it '
    'was unmounted with umount --lazy while a program uses it.',
    'end the programs that use it: fuser -vm /dev/NAME shows them, as root',
)
IN_BTRFS = Refusal(
    Category.HOST_USE,
    'block device {name} is a member of the btrfs {uuid}, which is mounted',
    'A btrfs of several devices is mounted.',
    'unmount it, or remove the device: btrfs device remove',
)
IN_ZPOOL = Refusal(
    Category.HOST_USE,
    'block device {name} is a member of the ZFS pool {pool}, which is '
    'imported',
    'udev has found a member of a pool, and the pool is imported. A cache or '
    'spare device does not name its pool, so any imported pool counts.',
    'export the pool (zpool export), or remove the device from it',
)
JOURNAL = Refusal(
    Category.HOST_USE,
    'block device {name} is the journal of a mounted file system',
    'An ext4 or OCFS2 on another disk has its journal there.',
    'unmount that file system: its options or tune2fs -l name the journal',
)
EXPORTED_BY_RNBD = Refusal(
    Category.HOST_USE,
    'block device {name} is exported by the RNBD target',
    'Another host has it over RDMA.',
    "close the session: force_close in the session's directory below "
    '/sys/class/rnbd-server/ctl/devices',
)
EXPORTED_LUN = Refusal(
    Category.HOST_USE,
    'block device {name} is the backstore {store} of the SCSI target',
    "The kernel's SCSI target (LIO) has it, even if no LUN exports it.",
    'delete the backstore with targetcli',
)
EXPORTED_SCSI = Refusal(
    Category.HOST_USE,
    'SCSI device {name} is the backstore {store} of the SCSI target',
    "The kernel's SCSI target (LIO) passes it through: a tape drive, a "
    'library or a disk.',
    'delete the backstore with targetcli',
)
HAS_VDPA = Refusal(
    Category.HOST_USE,
    'it has the vDPA device {name}',
    'The whole function is requested, and a vDPA device was created on it, or '
    'its driver creates one.',
    'if no guest needs it, vdpa dev del {name}, or unbind the function from '
    'its driver',
)
BEHIND_IT = Refusal(
    Category.HOST_USE,
    'PCI function {address} is behind it and is bound to {driver}, so that a '
    'guest may have it',
    'The endpoint of Intel VMD is requested. All drives behind it go with it.',
    'if no guest needs it, bind {address} to its driver',
)
SERVES = Refusal(
    Category.HOST_USE,
    'the host serves others through its port {port}',
    'A port of the NVMe target or of the SCSI target (LIO) depends on it.',
    "remove the port from the target's configuration",
)
BOOT_PARTITION = Refusal(
    Category.HOST_USE,
    'the firmware has booted the host from block device {name}',
    'It has the boot loader of the host, mounted or not.',
    'choose another device: the host needs this one',
)
BOOT_ADAPTER = Refusal(
    Category.HOST_USE,
    'the firmware has booted the host from one of its disks',
    'One of its disks has the boot loader of the host, mounted or not.',
    'choose another device: the host needs this one',
)
HIBERNATION = Refusal(
    Category.HOST_USE,
    'the host hibernates to block device {name}',
    'The file /sys/power/resume names it.',
    'remove resume= from the kernel command line, and write 0:0 to '
    '/sys/power/resume',
)
CRASH_DUMP = Refusal(
    Category.HOST_USE,
    'the crash kernel (kdump) writes its dump to block device {name}',
    'A crash kernel is loaded, and /etc/kdump.conf names the device.',
    'name another target in /etc/kdump.conf, and restart kdump',
)
