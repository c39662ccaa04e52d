# SPDX-License-Identifier: Apache-2.0

"""Which device is behind a device file: its place in sysfs, and its name.

The numbers of a device file belong to one boot of the host, and so do names
such as renderD129: the kernel numbers the devices as it finds them. The name
that this module makes stays the same. It begins with the PCI function behind
the file, and has the path below it without the numbers that the kernel has
assigned.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re

from os_acc.kernel import amd_partitions
from os_acc.kernel import device_files
from os_acc.kernel import nvme_of
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import sysfs

#: Separates the parts of a name. The first part is a PCI address or the UUID
#: of a mediated device, if there is one behind the file.
SEPARATOR = '+'

_CLASSES = {'c': 'char', 'b': 'block'}
_UUID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
_GROUP = '/virtual/vfio/'
# How many levels a device's directory is above that of its file, such as
# .../0:0:0:0/scsi_generic/sg0. A tape has several files there, such as st0 and
# nst0 (drivers/scsi/st.c).
_LEVELS_ABOVE = {'scsi_generic': 2, 'bsg': 2, 'scsi_tape': 2}

# Separates the name of an accelerator from the share of a VAN.
_SHARE = f'{SEPARATOR}share='

# Longer names are cut, and end with a hash of the whole.
_LONGEST = 160


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a device is."""

    name: str  # identifies the device on this host, also after a reboot
    # its directory in sysfs; None: the kernel shows none
    directory: str | None = None
    subsystem: str = ''  # such as drm or tty; empty if unknown
    # the addresses of the PCI functions behind it, sorted; a VFIO group can
    # have several, and so can an NVMe namespace
    functions: tuple[str, ...] = ()
    mdevs: tuple[str, ...] = ()  # the UUIDs of the mediated devices behind it
    # mode and number of the partition of an AMD GPU, such as cpx=3; empty: it
    # can be one, and is none now; None: neither
    partition: str | None = None

    @property
    def function(self) -> str | None:
        """The address of the first PCI function behind it."""
        return self.functions[0] if self.functions else None

    @property
    def leaf(self) -> str:
        """The name of its directory in sysfs, such as wq0.1; may be empty."""
        return (self.directory or '').rpartition('/')[2].replace('!', '/')


def of(number: device_files.Number) -> Place:
    """Find the device with a number.

    /sys/dev has a link for each device that the kernel knows: sysfs(5).
    """
    link = (
        f'{sysfs.SYS}/dev/{_CLASSES[number.kind]}/'
        f'{number.major}:{number.minor}'
    )
    directory = sysfs.place(link)
    if directory == link:  # there is none
        return _without_directory(number)
    subsystem = sysfs.link(f'{directory}/subsystem') or ''
    if _GROUP in directory:
        return _of_group(directory, subsystem)
    parts = _parts(directory)
    places = {_function_above(directory)}
    for name in nvme_of.paths(directory):
        places.add(
            _function_above(sysfs.place(f'{sysfs.SYS}/class/nvme/{name}'))
        )
    uuids = [each for each in parts if _UUID.fullmatch(each)]
    partition = amd_partitions.of_directory(directory)
    if partition is not None:
        places.add(partition.card)
    return Place(
        _name_of_directory(directory, partition),
        directory,
        subsystem,
        tuple(sorted(each for each in places if each is not None)),
        tuple(uuids[-1:]),
        None if partition is None else partition.name,
    )


def _function_above(directory: str) -> str | None:
    """The PCI function in whose directory in sysfs a directory is."""
    found = [each for each in _parts(directory) if pci.is_address(each)]
    return found[-1] if found else None


def _parts(directory: str) -> list[str]:
    return directory.removeprefix(f'{sysfs.SYS}/devices/').split('/')


def _name_of_directory(
    directory: str, partition: amd_partitions.Partition | None
) -> str:
    """Name a device by its directory, and by the partition that it is."""
    parts = _parts(directory)
    if partition is not None and partition.card is not None:
        kept = len(_parts(partition.directory))
        below = _stable(directory, parts, kept)[kept:]
        return name_of([partition.card, partition.name, *below])
    named = [
        n
        for n, each in enumerate(parts)
        if pci.is_address(each) or _UUID.fullmatch(each)
    ]
    if not any(map(pci.is_address, parts)):
        # The numbers of virtual devices, such as loop0, are their names. Other
        # devices are below one that the firmware has named.
        kept = len(parts) if parts[0] == 'virtual' else len(parts) - 1
        return name_of(_stable(directory, parts, kept))
    first = named[-1]
    return name_of(_stable(directory, parts, first + 1)[first:])


def wwn(place: Place) -> str | None:
    """The world wide name of the disk behind a file, or of its partition's.

    It stays the same if the disk gets another place: wwid of a namespace
    (drivers/nvme/host/sysfs.c), and of a SCSI device (drivers/scsi/
    scsi_sysfs.c), which can read ``naa.`` or ``t10.``.

    :returns: None if the kernel shows none
    """
    directory = place.directory or ''
    if sysfs.read_if_possible(f'{directory}/partition'):
        directory = directory.rpartition('/')[0]
    for name in ('wwid', 'device/wwid'):
        if found := sysfs.read_if_possible(f'{directory}/{name}'):
            return ' '.join(found.split())
    return None


def device_directory(place: Place) -> str | None:
    """The directory of the device to which a file gives access.

    A file of sg is that of the whole SCSI device, which has its disk or tape
    in the directories beside. The character device ng0n1 is the namespace
    nvme0n1 beside it (drivers/nvme/host/ioctl.c). All that is below the
    directory is a part of the device, such as the partitions of a disk. A VFIO
    group has functions and no parts: None.
    """
    if place.directory is None or _GROUP in place.directory:
        return None
    directory = place.directory
    for _ in range(_LEVELS_ABOVE.get(place.subsystem, 0)):
        directory = directory.rpartition('/')[0]
    if place.subsystem == 'nvme-generic':
        above, _, name = directory.rpartition('/')
        directory = f'{above}/nvme{name.removeprefix("ng")}'
    return directory


def around(place: Place) -> list[str]:
    """The names of a file's device, and of the devices that contain it.

    The device comes first. A PCI function or a mediated device is not named:
    see function_in().
    """
    found, directory = [], device_directory(place)
    while directory is not None and len(_parts(directory)) > 1:
        leaf = directory.rpartition('/')[2]
        if pci.is_address(leaf) or _UUID.fullmatch(leaf):
            break
        partition = amd_partitions.of_directory(directory)
        found.append(_name_of_directory(directory, partition))
        directory = directory.rpartition('/')[0]
    return found


def overlap(one: str, other: str) -> bool:
    """Whether two names are of one device, or of parts that it shares out.

    The render node of an AMD GPU has another name in each mode: the whole GPU
    and its partitions are the same hardware, and so can partitions of two
    modes be. Two partitions of one mode are not.
    """
    if one == other:
        return True
    (first, first_mode), (second, second_mode) = _split(one), _split(other)
    return first == second and first_mode != second_mode


def _split(name: str) -> tuple[str, str | None]:
    """The name of a whole GPU's file, and the mode of a partition of it."""
    card, _, below = name.partition(SEPARATOR)
    partition, _, rest = below.partition(SEPARATOR)
    mode = amd_partitions.mode_in(partition) if pci.is_address(card) else None
    if mode is None:
        return name, None
    return f'{card}{SEPARATOR}{rest}', mode


def function_in(name: str) -> str | None:
    """The PCI address at the start of a name; None if there is none."""
    first = name.partition(SEPARATOR)[0]
    return first if pci.is_address(first) else None


def mdev_in(name: str) -> str | None:
    """The UUID of a mediated device at the start of a name."""
    first = name.partition(SEPARATOR)[0]
    return first if _UUID.fullmatch(first) else None


def with_share(name: str, share: str) -> str:
    """Name what a VAN has: an accelerator, or one share of it.

    :param share: empty if it is not shared
    """
    return f'{name}{_SHARE}{share}' if share else name


def without_share(text: str) -> str:
    """The name of the accelerator in what with_share() has made."""
    return text.partition(_SHARE)[0]


def _without_directory(number: device_files.Number) -> Place:
    """A device that sysfs does not show.

    NVIDIA's driver shows its devices in /proc. All others are identified by
    their numbers.
    """
    for address in sysfs.names(f'{sysfs.PROC}/driver/nvidia/gpus'):
        for file in open_files.nvidia_files(address):
            if file.number == number and pci.is_address(address):
                return Place(
                    name_of([address, 'nvidia']),
                    subsystem='nvidia',
                    functions=(address,),
                )
    return Place(f'{_CLASSES[number.kind]}-{number.major}-{number.minor}')


def _of_group(directory: str, subsystem: str) -> Place:
    """A VFIO group: it gives access to all members of an IOMMU group."""
    group = directory.rpartition('/')[2]
    members = pci.group_members(group)
    functions = tuple(each for each in members if pci.is_address(each))
    mdevs = tuple(each for each in members if _UUID.fullmatch(each))
    first = (*functions, *mdevs, f'group-{group}')[0]
    return Place(
        name_of([first, 'vfio']), directory, subsystem, functions, mdevs
    )


def _stable(directory: str, parts: list[str], kept: int) -> list[str]:
    """Remove the numbers that the kernel has assigned from a path.

    The first number of a name is the number of the device on this host, such
    as 0 in wq0.1; the others count the parts of the device. If two devices
    beside each other have the same name then, the second one in the order of
    the numbers gets ``=1``, and so on.

    :param parts: the parts of directory, below /sys/devices
    :param kept: how many parts, from the first, are left as they are
    """
    found = parts[:kept]
    above = directory.removesuffix('/' + '/'.join(parts[kept:]))
    for part in parts[kept:]:
        plain = _plain(part)
        beside = sorted(
            (
                each
                for each in sysfs.names(above)
                if _plain(each) == plain and each != plain
            ),
            key=_number,
        )
        rank = beside.index(part) if part in beside else 0
        found.append(f'{plain}={rank}' if rank else plain)
        above = f'{above}/{part}'
    return found


def _plain(part: str) -> str:
    return re.sub('[0-9]+', '', part, count=1)


def _number(part: str) -> tuple[int, str]:
    match = re.search('[0-9]+', part)
    return (int(match[0]) if match else -1, part)


def name_of(parts: list[str]) -> str:
    """Join the parts of a name, with only the characters of a handle."""
    # The kernel writes "!" for "/" in names.
    text = SEPARATOR.join(part.lower().replace('!', '-') for part in parts)
    safe = re.sub(r'[^a-z0-9_.:+@=-]', '_', text)
    if not safe[:1].isalnum():
        safe = f'_{safe}'
    if safe == text and len(safe) <= _LONGEST:
        return safe
    return (
        f'{safe[:_LONGEST]}@{hashlib.sha256(text.encode()).hexdigest()[:12]}'
    )
