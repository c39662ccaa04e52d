# SPDX-License-Identifier: Apache-2.0

"""The signs that the host boots from a block device, or writes to it later.

Nothing need be mounted for that: the partition of the boot loader, the swap
space of a hibernation, and the dump of a crash.
"""

from __future__ import annotations

import re

from os_acc.availability.host_signs import firmware
from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs import snapshot
from os_acc.kernel import block_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import host_refusals
from os_acc.refusals import reasons

Reason = reasons.Reason
Snapshot = snapshot.Snapshot

# Where the firmware finds disks: storage, and Fibre Channel or USB.
_WITH_DISKS = (pci.CLASS_STORAGE, pci.CLASS_SERIAL)

#: The configuration of kdump by distribution: Fedora and RHEL, Debian, SUSE.
KDUMP_FILES = ('kdump.conf', 'default/kdump-tools', 'sysconfig/kdump')
# kdump.conf(5)
_KDUMP_TARGETS = ('raw', 'ext2', 'ext3', 'ext4', 'minix', 'btrfs', 'xfs')
# Another way to name the target: dracut_args --mount "DEVICE PLACE TYPE".
_DRACUT_MOUNT = re.compile(r'\s--mount[=\s]\s*["\']?([^\s"\']+)')


def _boots(host: Snapshot, name: str) -> Reason | None:
    if name in host.once(_boot_partitions):
        return host_refusals.BOOT_PARTITION.say(name=name)
    return None


def _boot_partitions(host: Snapshot) -> frozenset[str]:
    """The names of the partitions from which the firmware has booted."""
    texts = firmware.partitions(host.once(firmware.boot_option))
    if signature := firmware.bios_signature():
        directory = f'{sysfs.DEV}/disk/by-partuuid'
        start = f'{signature}-'
        texts += [x for x in sysfs.names(directory) if x.startswith(start)]
    found = (_partition(host, text.lower()) for text in texts)
    return frozenset(filter(None, found))


def _partition(host: Snapshot, text: str) -> str | None:
    """The name of the partition with a UUID; None if there is none.

    A container need not have the links of udev; new kernels tell it, too.
    """
    name = block_files.name_of(f'/dev/disk/by-partuuid/{text}')
    return name if name in host.paths else host.once(_by_uuid).get(text)


def _by_uuid(host: Snapshot) -> dict[str, str]:
    """The names of partitions: part_uevent() in block/partitions/core.c."""
    key = 'PARTUUID='
    return {
        line.removeprefix(key): name
        for name, path in host.paths.items()
        for line in (sysfs.read(f'{path}/uevent') or '').splitlines()
        if line.startswith(key)
    }


def _boots_by(host: Snapshot, function: pci.Function) -> Reason | None:
    # A boot over the network is no boot from a disk of the network card.
    if function.base_class in _WITH_DISKS and (
        function.address in host.once(_boot_adapters)
    ):
        return host_refusals.BOOT_ADAPTER.say()
    return None


def _boot_adapters(host: Snapshot) -> frozenset[str]:
    return frozenset(firmware.adapters(host.once(firmware.boot_option)))


def shows_boot_disk(host: Snapshot) -> bool:
    """Whether the firmware tells from which disk it has booted the host."""
    return bool(host.once(_boot_partitions) or host.once(_boot_adapters))


def _hibernates(host: Snapshot, name: str) -> Reason | None:
    number = sysfs.read(f'{host.paths[name]}/dev')
    if number and number == sysfs.read(f'{sysfs.SYS}/power/resume'):
        return host_refusals.HIBERNATION.say(name=name)
    return None


def _dumps(host: Snapshot, name: str) -> Reason | None:
    if name in host.once(_dump_targets):
        return host_refusals.CRASH_DUMP.say(name=name)
    return None


def unknown_dump_targets(host: Snapshot) -> list[str]:
    """What kdump names and is no block device that this process knows."""
    return sorted(host.once(_dump_targets) - {*host.paths})


def has_crash_kernel() -> bool:
    """Whether the host dumps its memory after a crash.

    On POWER the firmware may keep the memory instead (fadump=on), and the
    configuration of kdump counts too: firmware-assisted-dump.rst in
    Documentation/arch/powerpc. Linux 5.5 has moved the file.
    """
    return any(
        sysfs.read(f'{sysfs.SYS}/kernel/{name}') == '1'
        for name in (
            'kexec_crash_loaded',
            'fadump/registered',
            'fadump_registered',
        )
    )


def _dump_targets(host: Snapshot) -> frozenset[str]:
    """The block devices to which a crash kernel writes, mounted or not.

    The configuration of Debian and SUSE names directories, which are on file
    systems that are mounted.
    """
    if not has_crash_kernel():
        return frozenset()
    found = set()
    text = sysfs.read_long(f'{sysfs.ETC}/{KDUMP_FILES[0]}')
    for line in text.splitlines():
        kind, *values = line.split() or ['']
        target = values[0] if kind in _KDUMP_TARGETS and values else ''
        if kind == 'dracut_args' and (match := _DRACUT_MOUNT.search(line)):
            target = match[1]
        if target and (name := block_files.name_of_tagged(target)):
            found.add(name)
    return frozenset(found)


SIGNS = (
    sign.BlockSign(
        '/sys/firmware/efi/efivars/BootCurrent, BootNNNN and '
        'LoaderDevicePartUUID, /sys/firmware/edd/int13_dev80/mbr_signature, '
        'with /dev/disk/by-partuuid',
        'The firmware has booted the host from this partition, mounted or '
        'not. A BIOS names the disk: all of its partitions count.',
        'Linux 3.8',
        _boots,
    ),
    sign.FunctionSign(
        '/sys/firmware/edd/int13_dev80/pci_dev; BootCurrent and BootNNNN, '
        'with /sys/devices/pciDOMAIN:BUS/firmware_node/uid',
        'The firmware has booted the host from a disk of this adapter. Some '
        'boot options of UEFI name the adapter and no partition.',
        'Linux 2.6.10, 3.8',
        _boots_by,
    ),
    sign.BlockSign(
        '/sys/power/resume',
        'The host hibernates to it.',
        'Linux 2.6.14',
        _hibernates,
    ),
    sign.BlockSign(
        '/sys/kernel/kexec_crash_loaded or /sys/kernel/fadump/registered, '
        'with /etc/kdump.conf',
        'The crash kernel (kdump) writes its dump to it, mounted or not.',
        'Linux 2.6.18',
        _dumps,
    ),
)
