# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What the host itself uses a device file for.

The numbers are those of Documentation/admin-guide/devices.txt of the kernel.
"""

from __future__ import annotations

import os
import re

from os_acc.devices import device_files
from os_acc.devices import file_place
from os_acc.devices import file_refusals
from os_acc.devices import host_use
from os_acc.devices import open_files
from os_acc.devices import pci
from os_acc.devices import reasons
from os_acc.devices import refusals
from os_acc.devices import sysfs

Reason = reasons.Reason

_MEMORY, _MISC, _LVM = 1, 10, 109

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
    2: 'a terminal',
    3: 'a terminal',
    4: 'a terminal',
    5: 'the console or a terminal',
    7: 'the contents of a console',
    13: 'an input device',
    29: 'a frame buffer',
    90: 'a flash memory of the host',
    202: 'the model-specific registers of the CPUs',
    203: 'the CPUs',
} | dict.fromkeys(range(136, 144), 'a terminal')

# Minor numbers of the major number 10.
_OF_MISC = {
    130: 'the watchdog',
    131: 'a temperature sensor',
    135: 'the clock of the host',
    144: 'the NVRAM of the host',
    183: 'the random number generator of the host',
    200: 'the kernel interface for network tunnels',
    203: "the kernel's interface for file systems",
    223: 'the kernel interface for input devices',
    227: 'the log of machine checks',
    228: 'a timer of the host',
    229: "the kernel's interface for file systems",
    231: 'the snapshot of the memory for hibernation',
    232: 'KVM',
    234: 'the control file of Btrfs',
    235: 'the control file of the automounter',
    236: 'the control file of the device mapper',
    237: 'the control file of loop devices',
    238: "the kernel's interface for guests' networks",
    241: "the kernel's interface for guests' sockets",
    242: 'the switch of radio devices',
}

# Names in sysfs of devices whose minor numbers the kernel chooses.
_NAMES = re.compile(
    'kvm|fuse|cuse|uinput|uhid|rfkill|hpet|hwrng|hw_random|snapshot|nvram|'
    'userfaultfd|mcelog|cpu_dma_latency|vga_arbiter|ecryptfs|autofs|'
    'loop-control|btrfs-control|mapper/control|net/tun|vhost-.*|vhci|'
    'watchdog[0-9]*|rtc[0-9]*|sev|tdx_guest|mem|kmem|kmsg|port|oldmem|'
    'console|tty.*|ptmx|vcs.*|fb[0-9]+'
)

# Classes of devices in sysfs that are the host's.
_SUBSYSTEMS = {
    'tty': 'a terminal or a serial line',
    'vc': 'the contents of a console',
    'input': 'an input device',
    'graphics': 'a frame buffer',
    'rtc': 'the clock of the host',
    'watchdog': 'the watchdog',
    'tpm': 'the TPM of the host',
    'tpmrm': 'the TPM of the host',
    'msr': 'the model-specific registers of the CPUs',
    'cpuid': 'the CPUs',
    'mei': 'the management engine of the host',
    'ipmi': 'the management controller of the host',
    'mtd': 'a flash memory of the host',
}

# Classes of character devices that give access to disks.
_OF_DISKS = frozenset({'scsi_generic', 'bsg', 'nvme', 'nvme-generic'})


def never(node: device_files.Node, place: file_place.Place) -> Reason | None:
    """Say whether a file is one that no instance may ever have."""
    number, what = node.number, None
    if number.kind == 'c':
        what = _MAJORS.get(number.major)
        if number.major == _MEMORY:
            what = _OF_MEMORY.get(number.minor)
        elif number.major == _MISC:
            what = _OF_MISC.get(number.minor)
        elif number.major == _LVM:
            what = 'the control file of LVM'
    what = what or _SUBSYSTEMS.get(place.subsystem)
    if (
        what is None
        and place.subsystem in ('misc', 'mem', '')
        and _NAMES.fullmatch(place.leaf)
    ):
        what = f'the device {place.leaf} of the host'
    if what is None:
        return None
    return file_refusals.FILE_NEVER.say(path=node.path, what=what)


def stores_data(node: device_files.Node, place: file_place.Place) -> bool:
    """Whether a device may keep what an instance has written to it."""
    if node.number.kind == 'b' or place.subsystem in _OF_DISKS:
        return True
    return any(
        function.base_class == pci.CLASS_STORAGE
        for function in map(pci.find, place.functions)
        if function is not None
    )


def used(
    node: device_files.Node,
    place: file_place.Place,
    snapshot: host_use.Snapshot,
    as_root: bool = False,
) -> Reason | None:
    """Say what the host uses the device behind a file for.

    :param as_root: this process is root: also find a block device that the
        host has opened exclusively
    """
    if node.number.kind == 'b':
        return _block(node, place, snapshot, as_root)
    if not stores_data(node, place):
        return None
    for address in place.functions:
        function = pci.find(address)
        if function is not None and (
            use := host_use.by_host(function, snapshot)
        ):
            return use
    if place.folder is not None and place.subsystem in _OF_DISKS:
        # The disk is beside the file, such as .../0:0:0:0/scsi_generic/sg0.
        above = os.path.dirname(os.path.dirname(place.folder))
        for name in snapshot.below(above):
            if (use := snapshot.use(name)) is not None:
                return use
    return None


def _block(
    node: device_files.Node,
    place: file_place.Place,
    snapshot: host_use.Snapshot,
    as_root: bool,
) -> Reason | None:
    """What the host uses a block device, or a partition of it, for."""
    number = f'{node.number.major}:{node.number.minor}'
    for mounted in (
        snapshot.mounts.get(number),
        snapshot.sources.get(node.path),
    ):
        if mounted is not None:
            return refusals.MOUNTED.say(name=node.path, place=mounted)
    if place.folder is None:
        return None
    names = [
        name
        for name, folder in snapshot.paths.items()
        # The whole disk, its partitions, and the disk of a partition.
        if folder == place.folder
        or folder.startswith(f'{place.folder}/')
        or folder == os.path.dirname(place.folder)
    ]
    for name in names:
        if (use := snapshot.use(name)) is not None:
            return use
        file = sysfs.read(f'{snapshot.paths[name]}/loop/backing_file')
        if file:
            return file_refusals.FILE_LOOP.say(name=name, file=file)
    if as_root:
        for name in open_files.exclusively_used([place.leaf]):
            return refusals.OPEN_EXCLUSIVELY.say(name=name)
    return None
