# SPDX-License-Identifier: Apache-2.0

"""From where the firmware has booted the host, as UEFI and BIOS tell it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import errno
import os
import re
import struct
import uuid

from os_acc.kernel import pci
from os_acc.kernel import sysfs

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


def partitions(option: list[_Node]) -> list[str]:
    """The UUIDs of partitions that the boot option or the loader names.

    :param option: what boot_option() returns
    """
    found = [*_partitions(option)]
    if loader := _variable('LoaderDevicePartUUID', _LOADER):
        found.append(loader.decode('utf-16-le', 'replace').strip('\0'))
    return found


def bios_signature() -> str | None:
    """The signature of the disk from which a BIOS has booted, as udev has it.

    :returns: None if the BIOS does not tell it, or the disk has none
    """
    text = _of_bios(sysfs.read, 'mbr_signature')
    number = int(text, 16) if text else 0
    return f'{number:08x}' if number else None


def adapters(option: list[_Node]) -> list[str]:
    """The PCI functions whose disk the firmware has booted from.

    :param option: what boot_option() returns
    """
    if (found := _of_bios(sysfs.link, 'pci_dev')) is not None:
        return [found]
    # The partition tells more, and firmware may name a drive that was moved.
    # A network card, such as that of a BMC on USB, has no disk.
    if any(kind in (_HARD_DRIVE, _MAC) for kind, _ in option):
        return []
    return _functions(option)


def _of_bios(read: Callable[[str], str | None], name: str) -> str | None:
    """What a BIOS tells of the disk; None after a boot over the network."""
    found = read(f'{sysfs.SYS}/{_BIOS_DISK}/{name}')
    if found is None:
        return None
    options = sysfs.read_long(f'{sysfs.PROC}/cmdline')
    return None if _OVER_NETWORK.search(options) else found


def boot_option(host: object = None) -> list[_Node]:
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
    """The root buses with a number of ACPI; all that do not tell theirs."""
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
