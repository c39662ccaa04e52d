# SPDX-License-Identifier: Apache-2.0

"""Refusals of what the host uses: disks, console, management, kernel.

See refusals for the others. The signs of these uses are in host_signs.
"""

from __future__ import annotations

import functools

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

_used = functools.partial(Refusal, Category.HOST_USE)

# --- Disks

UNREADABLE = _used(
    '{file} cannot be read ({error}), so it is unknown whether the host uses '
    'it',
    'A file that shows a use cannot be read.',
    'let os-acc read the file, or find out why the kernel cannot show it',
)
AUTOMOUNT = _used(
    'block device {name} is mounted on {place} as soon as somebody accesses '
    'it',
    'Its entry in /etc/fstab has the option x-systemd.automount.',
    'remove the entry from /etc/fstab, and stop the automount unit: systemctl '
    'daemon-reload; umount {place}',
)
SHARED = _used(
    'the directory {tag} that it shares is mounted on {place}',
    'This host is a virtual machine, and the device is virtiofs or 9p.',
    'unmount it',
)
SUPERBLOCK = _used(
    'a file system ({kind}) on block device {name} is mounted, and this '
    'process cannot see where',
    'It is mounted in a mount namespace of a process that is hidden, or it '
    'was unmounted with umount --lazy while a program uses it.',
    'end the programs that use it: fuser -vm /dev/NAME shows them, as root',
)
IN_BTRFS = _used(
    'block device {name} is a member of the btrfs {uuid}, which is mounted',
    'A btrfs of several devices is mounted.',
    'unmount it, or remove the device: btrfs device remove',
)
IN_ZPOOL = _used(
    'block device {name} is a member of the ZFS pool {pool}, which is '
    'imported',
    'udev has found a member of a pool, and the pool is imported. A cache or '
    'spare device does not name its pool, so any imported pool counts.',
    'export the pool (zpool export), or remove the device from it',
)
JOURNAL = _used(
    'block device {name} is the journal of a mounted file system',
    'An ext4 or OCFS2 on another disk has its journal there.',
    'unmount that file system: its options or tune2fs -l name the journal',
)
EXPORTED_BY_RNBD = _used(
    'block device {name} is exported by the RNBD target',
    'Another host has it over RDMA.',
    "close the session: force_close in the session's directory below "
    '/sys/class/rnbd-server/ctl/devices',
)
EXPORTED_LUN = _used(
    'block device {name} is the backstore {store} of the SCSI target',
    "The kernel's SCSI target (LIO) has it, even if no LUN exports it.",
    'delete the backstore with targetcli',
)
EXPORTED_SCSI = _used(
    'SCSI device {name} is the backstore {store} of the SCSI target',
    "The kernel's SCSI target (LIO) passes it through: a tape drive, a "
    'library or a disk.',
    'delete the backstore with targetcli',
)
HAS_VDPA = _used(
    'it has the vDPA device {name}',
    'The whole function is requested, and a vDPA device was created on it, or '
    'its driver creates one.',
    'if no guest needs it, vdpa dev del {name}, or unbind the function from '
    'its driver',
)
BEHIND_IT = _used(
    'PCI function {address} is behind it and is bound to {driver}, so that a '
    'guest may have it',
    'The endpoint of Intel VMD is requested. All drives behind it go with it.',
    'if no guest needs it, bind {address} to its driver',
)
SERVES = _used(
    'the host serves others through its port {port}',
    'A port of the NVMe target or of the SCSI target (LIO) depends on it.',
    "remove the port from the target's configuration",
)
BOOT_PARTITION = _used(
    'the firmware has booted the host from block device {name}',
    'It has the boot loader of the host, mounted or not.',
    'choose another device: the host needs this one',
)
BOOT_ADAPTER = _used(
    'the firmware has booted the host from one of its disks',
    'One of its disks has the boot loader of the host, mounted or not.',
    'choose another device: the host needs this one',
)
HIBERNATION = _used(
    'the host hibernates to block device {name}',
    'The file /sys/power/resume names it.',
    'remove resume= from the kernel command line, and write 0:0 to '
    '/sys/power/resume',
)
CRASH_DUMP = _used(
    'the crash kernel (kdump) writes its dump to block device {name}',
    'A crash kernel is loaded, and /etc/kdump.conf names the device.',
    'name another target in /etc/kdump.conf, and restart kdump',
)

_MOVE_CONSOLE = (
    "move the host's console to another display in the firmware, or add "
    'initcall_blacklist=sysfb_init to the kernel command line, so that the '
    'kernel does not use the frame buffer of the firmware'
)

# --- The console

BOOT_SCREEN = _used(
    'the screen on which the host booted is connected to it',
    'Linux 6.17 and later show it in the file boot_display, also for displays '
    'that are not VGA controllers.',
    'choose another boot display in the firmware',
)
FIRMWARE_SCREEN = _used(
    'the frame buffer that the firmware has set up is in its memory '
    '({name}), and the host shows its console there',
    'The kernel writes to it without a driver for the display: see '
    '/proc/iomem.',
    _MOVE_CONSOLE,
)
CONSOLE_SCREEN = _used(
    "the host's console is on its frame buffer {name}",
    'It has the first frame buffer, and the kernel shows its console there.',
    'give the console another display, or unbind the console: write 0 to the '
    'file bind of the frame buffer device in /sys/class/vtconsole',
)
SHOWS_PICTURE = _used(
    'it shows a picture on its connector {name}',
    'A console or a desktop is on a screen that is connected to it.',
    'end the program that shows it, or disconnect the screen',
)
CONSOLE_LINE = _used(
    "{name} on it is a console of the host's kernel",
    'The kernel command line has console= with a serial port on the device.',
    'remove console={name} from the kernel command line',
)
KEYBOARD = _used(
    'a keyboard of the host is connected to it: {name}',
    'The management controllers of servers have such a keyboard, too.',
    'connect the keyboard to another controller, or disconnect it',
)

# --- Management

MANAGEMENT = _used(
    'the host reaches its management controller (BMC) through it ({name})',
    'A driver for IPMI, or for the management controller, is bound to it.',
    'choose another device: the host needs this one',
)
WATCHDOG = _used(
    'watchdog {name} on it {state}',
    'The watchdog resets the host when nothing serves it any more.',
    'stop the service that uses the watchdog, for example set '
    'RuntimeWatchdogSec=off for systemd',
)
TPM = _used(
    'TPM {name} of the host is on it',
    'The TPM holds keys of the host.',
    'choose another device: the host needs this one',
)
BOOTS_FROM = _used(
    'the firmware boots the host through it (iBFT {name})',
    'The root disk is an iSCSI disk, which may be connected in hardware.',
    'choose another device: the host needs this one',
)
DEFAULT_ROUTE = _used(
    'interface {name} has the default route',
    'The host reaches other networks through its interface.',
    'give the default route to another interface, and set the interface down: '
    'ip link set {name} down',
)

# --- Network

INTERFACE_ELSEWHERE = _used(
    'an {what} of it is in another network namespace: driver {driver} has '
    'made one that this network namespace does not show',
    'A container may have it, or os-acc runs in another network namespace '
    'from the host.',
    'return it to the network namespace of the host: end the container, or ip '
    'netns exec NAMESPACE ip link set INTERFACE netns 1. For an RDMA device: '
    'rdma dev set NAME netns NAMESPACE',
)
RDMA_USERS = _used(
    'programs use RDMA device {name}: it has {number} user contexts',
    'A program has its verbs open: see rdma resource show context dev NAME.',
    'end the programs: fuser -v /dev/infiniband/uverbs* shows them',
)

# --- The kernel

DMA_CHANNEL = _used(
    "the host's kernel uses DMA channel {name} on it",
    'md, a network bridge (NTB) or another part of the kernel uses it.',
    'unload the module that uses it: dmesg and lsmod show it',
)
CRYPTO = _used(
    "the host's kernel uses the algorithm {name}, which driver {driver} runs "
    'on its devices, and it is unknown on which of them',
    'dm-crypt, IPsec, kTLS, zswap or a program (AF_ALG) uses it, or has set '
    'up another algorithm with it: /proc/crypto has a refcnt above 1.',
    'stop what uses it, or bind the function to no driver: a function without '
    "the host's driver is not affected",
)
CXL_MEMORY = _used(
    'memory of CXL device {name} is mapped: {number} decoders are committed',
    'It is memory of the host, or persistent memory.',
    'take the memory offline (daxctl offline-memory), and remove its region '
    '(cxl disable-region, cxl destroy-region); memory that the firmware has '
    'mapped can be changed in the firmware only',
)
CXL_UNTOLD = _used(
    'the kernel does not show whether memory of CXL device {name} is mapped',
    'It has the driver cxl_pci, and the kernel has no file decoders_committed '
    'for it. The host may use its memory.',
    'load the modules cxl_mem and cxl_port, and use Linux 6.7 or later; or '
    'remove its regions (cxl disable-region, cxl destroy-region), and bind '
    'the function to no driver once the host uses none of its memory: to '
    'unbind it earlier can crash the host',
)
GUEST_PROTECTION = _used(
    "KVM protects the memory of guests with it (AMD's SEV)",
    'The parameter sev of the module kvm_amd is on.',
    'choose another device: the host needs this one',
)
