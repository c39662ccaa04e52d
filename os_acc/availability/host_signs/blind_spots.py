# SPDX-License-Identifier: Apache-2.0

"""Where no sign can tell whether the host uses a function, for the doctor."""

from __future__ import annotations

from collections.abc import Iterator
import os

from os_acc.availability.host_signs import block_signs
from os_acc.availability.host_signs import boot_signs
from os_acc.availability.host_signs import network_signs
from os_acc.availability.host_signs import service_signs
from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio

_CLASS_CXL = 0x0502  # PCI_CLASS_MEMORY_CXL

# Base classes of coprocessors and of encryption controllers.
_CLASSES_CRYPTO = (0x0B, 0x10, 0x12)


def of(function: pci.Function, host: Snapshot) -> Iterator[tuple[str, str]]:
    """What is unknown about a function, and what to do about it."""
    if function.base_class == pci.CLASS_DISPLAY:
        yield from _console(function, host)
    if function.base_class == pci.CLASS_STORAGE:
        yield from _boot(function, host)
        yield from _dump(host)
        yield from _pools(function, host)
    if function.base_class in _CLASSES_CRYPTO:
        yield from _crypto(function)
    if function.pci_class >> 8 == _CLASS_CXL:
        yield from _cxl(function, host)
    if (
        name := host.once(network_signs.untold).get(function.address)
    ) is not None:
        yield (
            'the kernel does not show how many programs use its RDMA device '
            f'{name}: it counts as free until root checks for open files, '
            'just before it is taken',
            'use Linux 5.0 or later',
        )


def _console(
    function: pci.Function, host: Snapshot
) -> Iterator[tuple[str, str]]:
    if (
        'boot_vga' not in function.entries
        and 'boot_display' not in function.entries
        and not host.once(_has_boot_display)
        and not sysfs.read_long(f'{sysfs.PROC}/iomem')
    ):
        yield (
            "no file shows whether the host's console is on it: it is not a "
            'VGA controller, this kernel has no file boot_display, and '
            '/proc/iomem cannot be read',
            'find out where the console is, or deny the device; Linux 6.18 '
            'and later show it',
        )


def _has_boot_display(host: Snapshot) -> bool:
    return any(
        sysfs.read(f'{path}/boot_display') is not None
        for _, path in sign.of_class('drm')
    )


def _boot(function: pci.Function, host: Snapshot) -> Iterator[tuple[str, str]]:
    # A disk without partitions has no boot loader.
    paths = {host.paths[name] for name in host.blocks_of(function.address)}
    if boot_signs.shows_boot_disk(host) or not any(
        os.path.dirname(path) in paths for path in paths
    ):
        return
    efi = f'{sysfs.SYS}/firmware/efi'
    if not sysfs.names(f'{sysfs.SYS}/firmware'):
        why = '/sys/firmware is empty, as in many containers'
        advice = "give the container the host's /sys"
    elif not sysfs.names(efi):
        why = 'the host did not boot with UEFI'
        advice = (
            'on x86, load the module edd; otherwise deny the disk that has '
            'the boot loader'
        )
    elif not sysfs.names(f'{efi}/efivars'):
        why = 'the firmware variables are not mounted'
        advice = (
            f'mount efivarfs at {efi}/efivars, also in the container that '
            'os-acc runs in'
        )
    elif not sysfs.names(f'{sysfs.DEV}/disk'):
        why = "udev's links below /dev/disk are missing"
        advice = "in a container, give it the host's /dev"
    else:
        why = 'its boot option names no disk of this host'
        advice = 'deny the disk that has the boot loader: efibootmgr -v'
    yield (
        f'no file shows from which disk the firmware booted the host: {why}. '
        'A boot partition that is not mounted is not detected',
        advice,
    )


def _dump(host: Snapshot) -> Iterator[tuple[str, str]]:
    if not boot_signs.has_crash_kernel():
        return
    start = 'no file shows whether the crash kernel writes its dump to it: '
    advice = 'otherwise deny the disk that is to get the dump'
    names = boot_signs.KDUMP_FILES
    if not any(sysfs.read_long(f'{sysfs.ETC}/{name}') for name in names):
        files = ', '.join(f'/etc/{name}' for name in names)
        yield (
            f'{start}a crash kernel is loaded, and there is none of {files}',
            f"in a container, mount the host's file there; {advice}",
        )
    elif unknown := boot_signs.unknown_dump_targets(host):
        paths = ', '.join(f'/dev/{x.replace("!", "/")}' for x in unknown)
        yield (
            f'{start}kdump names {paths}, and no block device '
            'has that name here',
            f"in a container, give it the host's /dev; {advice}",
        )


def _pools(
    function: pci.Function, host: Snapshot
) -> Iterator[tuple[str, str]]:
    pools = block_signs.imported()
    if (
        pools
        and host.blocks_of(function.address)
        and not sysfs.names(sysfs.UDEV_DATA)
    ):
        yield (
            'no file shows whether it is a member of a ZFS pool: '
            f'{", ".join(pools)} is imported, and udev has nothing in '
            '/run/udev/data. It counts as free until root checks whether '
            'somebody has opened it, just before it is taken',
            'in a container, mount /run/udev of the host there',
        )


def _crypto(function: pci.Function) -> Iterator[tuple[str, str]]:
    if (
        function.driver is not None
        and not vfio.is_bound(function)
        and not any(service_signs.crypto_modules(function))
    ):
        yield (
            "no file shows whether the host's kernel uses its algorithms: "
            f'driver {function.driver} is not a module, and /proc/crypto does '
            'not distinguish built-in drivers',
            'check the algorithms with a refcnt above 1 in /proc/crypto',
        )


def _cxl(function: pci.Function, host: Snapshot) -> Iterator[tuple[str, str]]:
    _, number = host.once(service_signs.endpoints).get(
        function.address, ('', None)
    )
    # A memory device of cxl_pci counts as used.
    if (
        number is None
        and service_signs.memdev(function) is None
        and not vfio.is_bound(function)
    ):
        yield (
            "no file shows whether its memory is the host's memory: the "
            'kernel shows no decoders_committed for it',
            'load the modules cxl_pci, cxl_mem and cxl_port, and use Linux '
            '6.7 or later; do not offer the device before you know',
        )


#: Where the ways are read, for the documentation: the kernel file, the way
#: that it shows, and since when.
WAYS = (
    (
        '/sys/class/block/NAME, /sys/class/net/NAME',
        'The path of the link has each PCI function on the path: the card, '
        'the bridges above it, and the VMD endpoint of a PCI domain.',
        'Linux 2.6.26',
    ),
    (
        '/sys/class/block/NAME/hidden',
        'It is one path to a namespace of several paths. Nobody can open it; '
        'the disk of the subsystem counts.',
        'Linux 4.15',
    ),
    (
        '/sys/class/nvme-subsystem/NAME/nvmeN',
        'The disk of the subsystem depends on each of its controllers.',
        'Linux 4.15',
    ),
    (
        '/sys/class/block/NAME/wwid, /sys/class/nvme/nvmeN/subsysnqn, '
        '/sys/class/block/NAME/device/wwid',
        'Disks with one worldwide name are one disk, without multipath: it '
        'depends on each adapter, because a guest with any of them can write '
        'to it.',
        'Linux 4.8 (NVMe), 4.5 (SCSI)',
    ),
    (
        '/sys/class/nvme/nvmeN/transport and address, with '
        '/sys/class/fc_host/hostN/port_name',
        'A disk of NVMe over Fibre Channel depends on its local port; on all '
        'ports, if none has that name.',
        'Linux 4.10',
    ),
    (
        '/sys/class/nvme/nvmeN/transport and address, with '
        '/proc/net/route, ipv6_route and if_inet6',
        'A disk of NVMe over TCP or RDMA depends on its interface: '
        'host_iface, else the interface of host_traddr or src_addr, else the '
        'route to traddr; on all interfaces, if nothing shows it.',
        'Linux 4.8 (RDMA), 5.0 (TCP)',
    ),
    (
        '/sys/class/iscsi_host/hostN/netdev and ipaddress, '
        '/sys/class/iscsi_connection/NAME/local_ipaddr and address',
        'A disk of iSCSI in software depends on the interface of its '
        'connection. With offload, the path of the disk has the card.',
        'Linux 2.6.22',
    ),
    (
        '/sys/class/net/NAME/lower_OTHER',
        'An interface such as a bond or a VLAN depends on those below it.',
        'Linux 3.14',
    ),
)
