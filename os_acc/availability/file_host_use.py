# SPDX-License-Identifier: Apache-2.0

"""What the host itself uses a device file for."""

from __future__ import annotations

from collections.abc import Iterable
import os
import re

from os_acc.availability import host_use
from os_acc.availability.host_signs import mounts
from os_acc.kernel import block_files
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.refusals import refusals
from os_acc.refusals.reasons import Reason

# Classes of character devices that give access to disks and tapes, and how
# many levels above the file's directory that is in which the disks are: they
# are beside .../0:0:0:0/scsi_generic/sg0, and beside .../nvme-subsys0/ng0n1
# itself.
_OF_DISKS = {
    **dict.fromkeys(('scsi_generic', 'bsg', 'scsi_tape', 'nvme'), 2),
    'nvme-generic': 1,
}

# bInterfaceClass of USB, and bDeviceClass of a hub; bInterfaceProtocol of HID
_MASS_STORAGE, _HID, _HUB = '08', '03', '09'
_KEYBOARD_OR_MOUSE = frozenset({'01', '02'})


def never(node: device_files.Node, place: file_place.Place) -> Reason | None:
    """Say whether a file is one that no instance may ever have."""
    what = what_is(node.number, place)
    if what is None:
        return None
    return file_refusals.FILE_NEVER.reason(path=node.path, what=what)


def stores_data(node: device_files.Node, place: file_place.Place) -> bool:
    """Whether a device may keep what an instance has written to it."""
    if node.number.kind == 'b' or place.subsystem in _OF_DISKS:
        return True
    if place.subsystem == 'usb':
        return _is_usb_disk(place)
    return any(
        function.base_class == pci.CLASS_STORAGE
        for function in map(pci.find, place.functions)
        if function is not None
    )


def _is_usb_disk(place: file_place.Place) -> bool:
    """Whether a USB device, with or without a driver, has a disk."""
    return any(
        sysfs.read(f'{each}/bInterfaceClass') == _MASS_STORAGE
        for each in _usb_interfaces(place)
    )


def _usb_interfaces(place: file_place.Place) -> list[str]:
    """The directories of the interfaces of a USB device."""
    above = place.directory
    return [f'{above}/{e}' for e in sysfs.folders(above)] if above else []


def may_use(node: device_files.Node, place: file_place.Place) -> bool:
    """Whether used() has something to look at: a disk, or a USB device."""
    return place.subsystem == 'usb' or stores_data(node, place)


def used(
    node: device_files.Node,
    place: file_place.Place,
    snapshot: host_use.Snapshot,
    as_root: bool = False,
) -> Reason | None:
    """Say what the host uses the device behind a file for.

    :param as_root: also find a block device that is opened exclusively
    """
    if node.number.kind == 'b':
        return _block(node, place, snapshot, as_root)
    if (use := _by_network(place, snapshot)) is not None:
        return use
    if not stores_data(node, place):
        return None
    # The file of a USB device gives no access to its controller.
    for address in place.functions if place.subsystem != 'usb' else ():
        function = pci.find(address)
        if function is not None and (
            use := host_use.by_host(function, snapshot)
        ):
            return use
    above = place.directory
    if above is None or place.subsystem not in (*_OF_DISKS, 'usb'):
        return None
    for _ in range(_OF_DISKS.get(place.subsystem, 0)):
        above = os.path.dirname(above)
    names = snapshot.below(above)
    for name in names:
        if (use := host_use.of_block(name, snapshot)) is not None:
            return use
    return _opened_exclusively(names) if as_root else None


def _by_network(
    place: file_place.Place, snapshot: host_use.Snapshot
) -> Reason | None:
    """What the host uses the network interfaces of a USB device for."""
    if place.subsystem != 'usb' or place.directory is None:
        return None
    for name, path in snapshot.interfaces.items():
        if path.startswith(f'{place.directory}/') and (
            use := host_use.of_interface(name, snapshot)
        ):
            return use
    return None


def _opened_exclusively(names: Iterable[str]) -> Reason | None:
    for name in open_files.exclusively_used(names):
        return refusals.OPEN_EXCLUSIVELY.reason(name=name)
    return None


def _block(
    node: device_files.Node,
    place: file_place.Place,
    snapshot: host_use.Snapshot,
    as_root: bool,
) -> Reason | None:
    """What the host uses a block device, or a partition of it, for."""
    number = f'{node.number.major}:{node.number.minor}'
    mounted = snapshot.once(mounts.read).of(
        number, block_files.name_of(node.path) or ''
    )
    if mounted is not None:
        return refusals.MOUNTED.reason(name=node.path, place=mounted)
    if place.directory is None:
        return None
    # The same disk may be here twice, through another adapter.
    directories = [place.directory, *snapshot.same_as(place.directory)]
    names = [
        name
        for each in directories
        for name, directory in snapshot.paths.items()
        # The whole disk, its partitions, and the disk of a partition.
        if directory == each
        or directory.startswith(f'{each}/')
        or directory == os.path.dirname(each)
    ]
    for name in names:
        if (use := host_use.of_block(name, snapshot)) is not None:
            return use
        file = sysfs.read(f'{snapshot.paths[name]}/loop/backing_file')
        if file:
            return file_refusals.FILE_LOOP.reason(name=name, file=file)
    own = map(os.path.basename, directories)
    return _opened_exclusively(own) if as_root else None


# Device files that no instance may ever have, because they control the host.
#
# The tables say what each of them is. Numbers and names are those of
# Documentation/admin-guide/devices.txt and include/linux/miscdevice.h of the
# kernel. Drivers that choose their numbers are found by their names in sysfs;
# those that show nothing in sysfs, such as megaraid_sas, by /proc/devices.


_MEMORY, _MISC = 1, 10

_TERMINAL = 'a terminal'
_INPUT = 'an input device'
_RAID = 'the control file of a storage controller, with all of its disks'
_BMC = 'the management controller of the host'
_FIRMWARE = 'the interface to the firmware of the host'
_FIRMWARE_TOOL = 'the firmware of network cards'
_FLASH = 'a flash memory of the host'
_WATCHDOG = 'the watchdog, which can reset the host'
_FILES = "the kernel's interface for user-space file systems"
_GUESTS = "the kernel's interface for guests"
_BLOCKS = 'the control file of user-space block devices'
_LOCKS = "the control file of the cluster's locks"
_CPUS = 'the settings of the CPUs'
_BUS = 'a system bus of the host, with sensors, memory modules and power'

# Minor numbers of the major number 1. The others, such as null, do no harm.
_OF_MEMORY = {
    1: 'the memory of the host',
    2: "the kernel's memory",
    4: 'the I/O ports of the host',
    11: "the kernel's log",
    12: 'the memory of a crashed kernel',
}

# Major numbers of character devices.
_MAJORS = {
    2: _TERMINAL,
    3: _TERMINAL,
    4: _TERMINAL,
    5: 'the console or a terminal',
    7: 'the contents of a console',
    13: _INPUT,
    29: 'a frame buffer',
    89: _BUS,
    90: _FLASH,
    99: 'a parallel port',
    108: 'the kernel interface for network links',
    109: 'the control file of LVM',
    162: 'a disk of the host',
    202: 'the model-specific registers of the CPUs',
    203: 'the CPUs',
} | dict.fromkeys(range(136, 144), _TERMINAL)

# Minor numbers of the major number 10. Below 128, the kernel chooses them.
_OF_MISC = {
    131: 'a temperature sensor',
    132: 'the traps of the hardware',
    133: 'the traps of the hardware',
    134: 'the power management of the host',
    135: 'the clock of the host',
    137: 'the kernel interface for radio devices',
    139: _FIRMWARE,
    143: 'the configuration of all PCI devices',
    144: 'the NVRAM of the host',
    154: 'the power management of the host',
    160: _FLASH,
    161: 'access of programs to the memory of the host',
    162: _BUS,
    165: _GUESTS,
    178: _FLASH,
    181: _FIRMWARE,
    182: _CPUS,
    183: 'the random number generator of the host',
    184: 'the microcode of the CPUs',
    186: 'the state of all processes',
    188: _BUS,
    190: 'the memory of the host',
    200: 'the kernel interface for network tunnels',
    203: _FILES,
    208: 'the control file of hot plugging',
    224: 'the TPM of the host',
    226: 'the system calls of all processes',
    227: 'the log of machine checks',
    228: 'a timer of the host',
    229: _FILES,
    231: 'the snapshot of the memory for hibernation',
    232: 'KVM',
    234: 'the control file of Btrfs',
    235: 'the control file of the automounter',
    236: 'the control file of the device mapper',
    237: 'the control file of loop devices',
    238: "the kernel's interface for guests' networks",
    241: "the kernel's interface for guests' sockets",
    242: 'the switch of radio devices',
} | {
    **dict.fromkeys((130, 212, 213, 214, 215), _WATCHDOG),
    **dict.fromkeys((164, 173, 209, 210, 211), _BMC),
    **dict.fromkeys((166, 220, 221, 222), _RAID),
    **dict.fromkeys((223, 239, 240), 'the kernel interface for input devices'),
}

# Names in sysfs of devices of the classes misc and mem, and of those without
# a class. The name in /dev may differ, such as mapper/control.
_NAMES = {
    'mem|oldmem|crash': 'the memory of the host',
    'kmem': "the kernel's memory",
    'kmsg': "the kernel's log",
    'port': 'the I/O ports of the host',
    'console|tty.*|ptmx|vcs.*': _TERMINAL,
    'fb[0-9]+': 'a frame buffer',
    'nvme-fabrics': 'the file that connects the host to remote disks',
    'zfs': 'the control file of ZFS, with all of its pools',
    'btrfs-control': 'the control file of Btrfs',
    'device-mapper|mapper/control': 'the control file of the device mapper',
    'loop-control': 'the control file of loop devices',
    'ublk-control|vduse/control': _BLOCKS,
    'autofs': 'the control file of the automounter',
    'fuse|cuse|ecryptfs|cachefiles': _FILES,
    'dlm[-_].*|lock_dlm.*': _LOCKS,
    'tun|net/tun': 'the kernel interface for network tunnels',
    'kvm|vhost-.*|vmmon|acrn_hsm|mshv|sev|tdx_guest|xen/.*': _GUESTS,
    'megadev[0-9]*|mpt[0-9]*ctl|megaraid.*': _RAID,
    'ipmi.*|hpilo.*': _BMC,
    'efi_.*|openprom|opal-prd|vmcp|hmcdrv|chsc|wmi/.*': _FIRMWARE,
    'ubi_ctrl': _FLASH,
    'i2c-.*|smbus': _BUS,
    'watchdog[0-9]*': _WATCHDOG,
    'rtc[0-9]*': 'the clock of the host',
    'hpet': 'a timer of the host',
    'nvram': 'the NVRAM of the host',
    'snapshot': 'the snapshot of the memory for hibernation',
    'microcode|cpu/microcode': 'the microcode of the CPUs',
    'cpu_dma_latency|isst_interface': _CPUS,
    'mcelog': 'the log of machine checks',
    'hwrng|hw_random': 'the random number generator of the host',
    'uinput|uhid|userio|psaux': 'the kernel interface for input devices',
    'rfkill|vhci': 'the kernel interface for radio devices',
    'userfaultfd': 'the page faults of other programs',
    'vga_arbiter': 'the graphics cards of the host',
    'sgx_provision': 'the identity of the CPUs for SGX',
    'mst/.*': _FIRMWARE_TOOL,
}
_PATTERNS = {re.compile(names): what for names, what in _NAMES.items()}

# Classes and buses of devices in sysfs that are the host's.
_SUBSYSTEMS = {
    'tty': 'a terminal or a serial line',
    'vc': 'the contents of a console',
    'input': _INPUT,
    'hidraw': _INPUT,
    'graphics': 'a frame buffer',
    'rtc': 'the clock of the host',
    'watchdog': _WATCHDOG,
    'tpm': 'the TPM of the host',
    'tpmrm': 'the TPM of the host',
    'msr': 'the model-specific registers of the CPUs',
    'cpuid': 'the CPUs',
    'mei': 'the management engine of the host',
    'ipmi': _BMC,
    'iLO': _BMC,
    'mtd': _FLASH,
    'ubi': _FLASH,
    'i2c-dev': _BUS,
    'nd': 'the persistent memory of the host',
    'ppdev': 'a parallel port',
    'ppp': 'the kernel interface for network links',
    'raw': 'a disk of the host',
    'firewire': 'a bus whose devices reach the memory of the host',
    'usbmon': 'the traffic of all USB devices',
    'switchtec': 'the control file of a PCI Express switch',
    'vduse': _BLOCKS,
    'ublk-char': _BLOCKS,
    'uio': 'the registers of a device, with DMA that no IOMMU limits',
    'dax': 'memory of the host',
    'cxl': 'a memory device of the host',
    'infiniband_mad': 'the management of the InfiniBand network',
    'spidev': _BUS,
    'gpio': 'pins of the mainboard',
}

# Flash memory as a disk: drivers/mtd/mtdblock.c and drivers/mtd/ubi/block.c.
_FLASH_BLOCKS = re.compile('mtdblock[0-9]+|ubiblock[0-9]+_[0-9]+')

# Names in /proc/devices of character devices that sysfs need not show.
_DRIVERS = {
    **dict.fromkeys(
        ('megaraid_sas_ioctl', 'megadev', 'megadev_legacy'), _RAID
    ),
    **dict.fromkeys(('aac', 'twe', 'twa', 'twl', 'pmcraid'), _RAID),
    **dict.fromkeys(('dpti', 'gdth'), _RAID),
    'ipmidev': _BMC,
    'hpilo': _BMC,
    'i2c': _BUS,
    'watchdog': _WATCHDOG,
    'raw': 'a disk of the host',
    # The firmware tools of Mellanox: mst_pci_bc.c and mst_pciconf_bc.c of
    # their module reach the registers of the cards.
    **dict.fromkeys(('mst', 'mst_pci', 'mst_pciconf'), _FIRMWARE_TOOL),
}


def what_is(
    number: device_files.Number, place: file_place.Place
) -> str | None:
    """Say what a device file is if it controls the host; else None."""
    if number.kind == 'b' and _FLASH_BLOCKS.fullmatch(place.leaf):
        return _FLASH
    if number.kind != 'c':
        return _SUBSYSTEMS.get(place.subsystem)
    if number.major == _MEMORY:
        found = _OF_MEMORY.get(number.minor)
    elif number.major == _MISC:
        found = _OF_MISC.get(number.minor)
    else:
        found = _MAJORS.get(number.major)
    return (
        found
        or _SUBSYSTEMS.get(place.subsystem)
        or _of_usb(place)
        or _by_name(place)
        or _DRIVERS.get(_driver(number.major))
    )


def _of_usb(place: file_place.Place) -> str | None:
    """What a USB device is that the host needs: see drivers/hid/usbhid."""
    if place.subsystem != 'usb' or place.directory is None:
        return None
    if sysfs.read(f'{place.directory}/bDeviceClass') == _HUB:
        return 'a USB hub, with all devices behind it'
    for each in _usb_interfaces(place):
        kind = sysfs.read(f'{each}/bInterfaceClass')
        protocol = sysfs.read(f'{each}/bInterfaceProtocol')
        if kind == _HID and protocol in _KEYBOARD_OR_MOUSE:
            return _INPUT
    return None


def _by_name(place: file_place.Place) -> str | None:
    if place.subsystem not in ('misc', 'mem', ''):
        return None
    for pattern, found in _PATTERNS.items():
        if pattern.fullmatch(place.leaf):
            return f'{found} ({place.leaf})'
    return None


def _driver(major: int) -> str:
    """The name of a major number of character devices; empty if unknown."""
    text = sysfs.read_long(f'{sysfs.PROC}/devices').partition('\nBlock')[0]
    for line in text.splitlines():
        number, _, name = line.strip().partition(' ')
        if number == str(major):
            return name
    return ''
