# SPDX-License-Identifier: Apache-2.0

"""The signs that the host boots from a block device, or writes to it later.

Nothing need be mounted for that: the partition of the boot loader, the swap
space of a hibernation, and the dump of a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
import errno
import re
import struct
import uuid

from os_acc.devices import block_files
from os_acc.devices import host_refusals
from os_acc.devices import reasons
from os_acc.devices import sysfs
from os_acc.devices.host_signs import sign
from os_acc.devices.host_signs import snapshot

Reason = reasons.Reason
Snapshot = snapshot.Snapshot

# UEFI specification, 3.3 and 3.1.3; the loader's is in systemd-boot(7).
_GLOBAL = '8be4df61-93ca-11d2-aa0d-00e098032b8c'
_LOADER = '4a67b082-0a4c-41cf-b6c7-440b29bb8c4f'
_ATTRIBUTES = 4  # bytes before the value: efivarfs.rst of the kernel
_NODE = struct.Struct('<BBH')
_HARD_DRIVE = (4, 1)  # UEFI specification, 10.3.5.1
_PARTITION = struct.Struct('<IQQ16sBB')
_MBR, _GUID = 1, 2

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
    texts = [*_of_firmware()]
    if loader := _variable('LoaderDevicePartUUID', _LOADER):
        texts.append(loader.decode('utf-16-le', 'replace').strip('\0'))
    return frozenset(
        name
        for text in texts
        if (
            name := block_files.name_of(
                f'/dev/disk/by-partuuid/{text.lower()}'
            )
        )
    )


def _of_firmware() -> Iterator[str]:
    """The UUIDs of partitions in the boot option that was used."""
    current = _variable('BootCurrent', _GLOBAL)
    if len(current) != 2:
        return
    option = _variable(f'Boot{int.from_bytes(current, "little"):04X}', _GLOBAL)
    # Attributes, the length of the paths, a text that ends with zero, paths.
    end = 6
    while option[end : end + 2] not in (b'\0\0', b''):
        end += 2
    paths = option[end + 2 :]
    while len(paths) >= _NODE.size:
        *kind, length = _NODE.unpack_from(paths)
        node = paths[_NODE.size : length]
        if tuple(kind) == _HARD_DRIVE and len(node) == _PARTITION.size:
            number, _, _, signature, _, form = _PARTITION.unpack(node)
            if form == _GUID:
                yield str(uuid.UUID(bytes_le=signature))
            elif form == _MBR:
                # As udev names it.
                disk = int.from_bytes(signature[:4], 'little')
                yield f'{disk:08x}-{number:02x}'
        paths = paths[max(length, _NODE.size) :]


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


def _hibernates(host: Snapshot, name: str) -> Reason | None:
    number = sysfs.read(f'{host.paths[name]}/dev')
    if number and number == sysfs.read(f'{sysfs.SYS}/power/resume'):
        return host_refusals.HIBERNATION.say(name=name)
    return None


def _dumps(host: Snapshot, name: str) -> Reason | None:
    if name in host.once(_dump_targets):
        return host_refusals.CRASH_DUMP.say(name=name)
    return None


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
        if target and (name := block_files.name_of(_tagged(target))):
            found.add(name)
    return frozenset(found)


def _tagged(text: str) -> str:
    """The path of a block device that is named like UUID=..., or by path."""
    tag, equals, value = text.replace('"', '').partition('=')
    return f'/dev/disk/by-{tag.lower()}/{value}' if equals else text


SIGNS = (
    sign.BlockSign(
        '/sys/firmware/efi/efivars/BootCurrent, BootNNNN and '
        'LoaderDevicePartUUID, with /dev/disk/by-partuuid',
        'The firmware has booted the host from this partition, mounted or '
        'not.',
        'Linux 3.8',
        _boots,
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
