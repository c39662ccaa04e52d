# SPDX-License-Identifier: Apache-2.0

"""The signs that the host boots from a block device, or writes to it later.

Nothing need be mounted for that: the partition of the boot loader, the swap
space of a hibernation, and the dump of a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import errno
import os
import re
import struct
import uuid

from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import block_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import host_refusals
from os_acc.refusals.reasons import Reason

# Where the firmware finds disks: storage, and Fibre Channel or USB.
_WITH_DISKS = (pci.CLASS_STORAGE, pci.CLASS_SERIAL)

#: The configuration of kdump by distribution: Fedora and RHEL, Debian, SUSE.
KDUMP_FILES = ('kdump.conf', 'default/kdump-tools', 'sysconfig/kdump')
# kdump.conf(5)
_KDUMP_TARGETS = ('raw', 'ext2', 'ext3', 'ext4', 'minix', 'btrfs', 'xfs')
# Another way to name the target: dracut_args --mount "DEVICE PLACE TYPE".
_DRACUT_MOUNT = re.compile(r'\s--mount[=\s]\s*["\']?([^\s"\']+)')


def _boot_partitions(host: Snapshot) -> frozenset[str]:
    """The names of the partitions from which the firmware has booted."""
    texts = [*_partitions(host.once(_boot_option))]
    if loader := _variable('LoaderDevicePartUUID', _LOADER):
        texts.append(loader.decode('utf-16-le', 'replace').strip('\0'))
    if signature := _bios_signature():
        known = sysfs.names(f'{sysfs.DEV}/disk/by-partuuid')
        known += host.once(_by_uuid)
        texts += [x for x in known if x.startswith(f'{signature}-')]
    found = (_partition(host, text.lower()) for text in texts)
    return frozenset(filter(None, found))


def _partition(host: Snapshot, text: str) -> str | None:
    """The name of the partition with a UUID; None if there is none.

    A container may lack udev's links; newer kernels show it, too.
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
    # A boot over the network is not a boot from a disk of the network card.
    if function.base_class in _WITH_DISKS and (
        function.address in host.once(_boot_adapters)
    ):
        return host_refusals.BOOT_ADAPTER.reason()
    return None


def _boot_adapters(host: Snapshot) -> list[str]:
    """The PCI functions whose disk the firmware has booted from."""
    if (found := _of_bios(sysfs.link, 'pci_dev')) is not None:
        return [found]
    option = host.once(_boot_option)
    # The partition is more specific, and firmware may name a drive that was
    # moved. A network card, such as that of a BMC on USB, has no disk.
    if any(kind in (_HARD_DRIVE, _MAC) for kind, _ in option):
        return []
    return _functions(option)


def shows_boot_disk(host: Snapshot) -> bool:
    """Whether the firmware shows from which disk it has booted the host."""
    return bool(host.once(_boot_partitions) or host.once(_boot_adapters))


def _hibernates(host: Snapshot, name: str) -> Reason | None:
    number = sysfs.read(f'{host.paths[name]}/dev')
    if number and number == sysfs.read(f'{sysfs.SYS}/power/resume'):
        return host_refusals.HIBERNATION.reason(name=name)
    return None


def unknown_dump_targets(host: Snapshot) -> list[str]:
    """The targets of kdump that are not block devices this process knows."""
    return sorted(host.once(_dump_targets) - {*host.paths})


def has_crash_kernel() -> bool:
    """Whether the host dumps its memory after a crash.

    On POWER the firmware may keep the memory instead (fadump=on), and the
    configuration of kdump counts too: firmware-assisted-dump.rst in
    Documentation/arch/powerpc. Linux 5.5 has moved the file.
    """
    names = ('kexec_crash_loaded', 'fadump/registered', 'fadump_registered')
    return any(
        sysfs.read(f'{sysfs.SYS}/kernel/{name}') == '1' for name in names
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
        sign.in_set(_boot_partitions, host_refusals.BOOT_PARTITION),
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
        sign.in_set(_dump_targets, host_refusals.CRASH_DUMP),
    ),
)


# Where the firmware has booted the host from, as UEFI and BIOS show it.

# UEFI specification, 3.3 and 3.1.3; the loader's is in systemd-boot(7).
_GLOBAL = '8be4df61-93ca-11d2-aa0d-00e098032b8c'
_LOADER = '4a67b082-0a4c-41cf-b6c7-440b29bb8c4f'
_ATTRIBUTES = 4  # bytes before the value: efivarfs.rst of the kernel
_NODE = struct.Struct('<BBH')

# Nodes of a device path: UEFI specification, 10.3.2 to 10.3.5
_PCI, _ACPI, _HARD_DRIVE = (1, 1), (2, 1), (4, 1)
_MAC = (3, 11)
_PCI_PLACE = struct.Struct('<BB')
_ACPI_NAME = struct.Struct('<II')
_PCI_ROOTS = (0x0A0341D0, 0x0A0841D0)  # PNP0A03, PNP0A08
_PARTITION = struct.Struct('<IQQ16sBB')
_MBR, _GUID = 1, 2

# The disk from which a BIOS has booted: drivers/firmware/edd.c
_BIOS_DISK = 'firmware/edd/int13_dev80'

# What boot loaders and initial file systems add for a boot over the network:
# dracut.cmdline(7), and nfsroot.rst of the kernel. The first disk is the same
# then, and the host need not have booted from it.
_OVER_NETWORK = re.compile(
    r'\b(BOOTIF|netroot|nfsroot|netboot)=|\broot=(/dev/nfs|nfs|net|live:http)'
)

_Node = tuple[tuple[int, int], bytes]


def _bios_signature() -> str | None:
    """The signature of the disk from which a BIOS has booted, as udev has it.

    None: the BIOS does not show it, or the disk has none.
    """
    text = _of_bios(sysfs.read, 'mbr_signature')
    number = int(text, 16) if text else 0
    return f'{number:08x}' if number else None


def _of_bios(read: Callable[[str], str | None], name: str) -> str | None:
    """What a BIOS shows about the disk; None after a boot over the network."""
    found = read(f'{sysfs.SYS}/{_BIOS_DISK}/{name}')
    if found is None:
        return None
    options = sysfs.read_long(f'{sysfs.PROC}/cmdline')
    return None if _OVER_NETWORK.search(options) else found


def _boot_option(host: Snapshot) -> list[_Node]:
    """The device path of the boot option that was used: kinds and data.

    The kernel lets an ordinary user read 100 variables in a second:
    efivarfs_file_read() in fs/efivarfs/file.c. So read it once.
    """
    current = _variable('BootCurrent', _GLOBAL)
    if len(current) != 2:
        return []
    option = _variable(f'Boot{int.from_bytes(current, "little"):04X}', _GLOBAL)
    # Attributes, the length of the paths, a text that ends with zero, paths.
    end = 6
    while option[end : end + 2] not in (b'\0\0', b''):
        end += 2
    paths = option[end + 2 :]
    found = []
    while len(paths) >= _NODE.size:
        kind, sub_kind, length = _NODE.unpack_from(paths)
        found.append(((kind, sub_kind), paths[_NODE.size : length]))
        paths = paths[max(length, _NODE.size) :]
    return found


def _partitions(nodes: list[_Node]) -> Iterator[str]:
    for kind, node in nodes:
        if kind == _HARD_DRIVE and len(node) == _PARTITION.size:
            number, _, _, signature, _, form = _PARTITION.unpack(node)
            if form == _GUID:
                yield str(uuid.UUID(bytes_le=signature))
            elif form == _MBR:
                # As udev names it.
                disk = int.from_bytes(signature[:4], 'little')
                yield f'{disk:08x}-{number:02x}'


def _functions(nodes: list[_Node]) -> list[str]:
    """The PCI functions that a device path may mean; usually one.

    A path is the root bus, and the device and function at each bridge.
    """
    directories: list[str] = []
    for kind, node in nodes:
        if kind == _ACPI and len(node) == _ACPI_NAME.size:
            name, number = _ACPI_NAME.unpack(node)
            directories = _roots(number) if name in _PCI_ROOTS else []
        elif kind == _PCI and len(node) == _PCI_PLACE.size:
            function, device = _PCI_PLACE.unpack(node)
            end = f':{device:02x}.{function:x}'
            directories = [
                f'{directory}/{name}'
                for directory in directories
                for name in sysfs.names(directory)
                if pci.is_address(name) and name.endswith(end)
            ]
    names = map(os.path.basename, directories)
    return [name for name in names if pci.is_address(name)]


def _roots(number: int) -> list[str]:
    """The root buses with an ACPI number, and those without a known one."""
    directory = f'{sysfs.SYS}/devices'
    return [
        f'{directory}/{name}'
        for name in sysfs.names(directory)
        if pci.is_root_bus(name)
        and sysfs.read(f'{directory}/{name}/firmware_node/uid')
        in (None, str(number))
    ]


def _variable(name: str, vendor: str) -> bytes:
    """The value of a variable of the firmware; empty if there is none."""
    path = f'{sysfs.SYS}/firmware/efi/efivars/{name}-{vendor}'
    try:
        with open(path, 'rb') as file:
            return file.read()[_ATTRIBUTES:]
    except OSError as err:
        # Where users may not read it, root does before a device is taken.
        if err.errno in (errno.ENOENT, errno.EACCES, errno.EPERM):
            return b''
        err.filename = path
        raise
