# SPDX-License-Identifier: Apache-2.0

"""What serves the host itself, as Linux shows it in Kernel's tree."""

from __future__ import annotations

import pathlib
import struct
import uuid

import disks

#: A function that each case uses, and what its refusal says.
CARD = '0000:3b:00.0'
PARTITION = 'c12a7328-1111-4222-8333-444455556666'


def card(kernel, driver=None, pci_class=0x120000, ids='1d0f:f010', **made):
    """The function CARD."""
    return kernel.add_function(CARD, ids, pci_class, driver, **made)


def add_device(
    kernel, path: pathlib.Path, place: str, **files: str
) -> pathlib.Path:
    """A device of a class, such as drm/card0, below a function."""
    directory = path / place
    directory.mkdir(parents=True)
    kind, name = place.split('/')[-2:]
    disks.link(kernel, f'{kind}/{name}', directory)
    for file, text in files.items():
        (directory / file).write_text(f'{text}\n')
    return directory


def _of_class(place: str, **files: str):
    return lambda kernel: add_device(kernel, card(kernel), place, **files)


def line(kernel, address: str = CARD) -> None:
    """A serial port on a card, with the console of the kernel."""
    path = card(kernel, 'serial', 0x070002)
    add_device(kernel, path, 'tty/ttyS4')
    kernel.write_file('sys/class/tty/console/active', 'tty0 ttyS4\n')


def keyboard(kernel, handlers: str = 'sysrq kbd event0 leds') -> None:
    path = card(kernel, 'xhci_hcd', 0x0C0330)
    place = path / 'usb1/1-2/1-2:1.0/0003:0557:2419.0001/input/input3'
    place.mkdir(parents=True)
    shown = place.relative_to(kernel.sys)
    kernel.write_file(
        'proc/bus/input/devices',
        'I: Bus=0003 Vendor=0557 Product=2419 Version=0110\n'
        'N: Name="Virtual HID"\n'
        f'S: Sysfs=/{shown}\n'
        f'H: Handlers={handlers} \n\n',
    )


def iomem(kernel, *names: str) -> None:
    """The memory of CARD, and what is in it, as ordinary users see it."""
    names = ('PCI Bus 0000:3a', CARD, *names)
    kernel.write_file(
        'proc/iomem',
        ''.join(
            f'{"  " * depth}00000000-00000000 : {name}\n'
            for depth, name in enumerate(names)
        )
        + '00000000-00000000 : System RAM\n',
    )


def frame_buffer(kernel) -> None:
    card(kernel, 'i915', 0x038000)
    path = kernel.file(CARD, '').resolve()
    add_device(kernel, path, 'graphics/fb0')


def _boots_over_network(kernel) -> None:
    path = card(kernel, 'bnx2i', 0x020000, net='eth9')
    directory = kernel.sys / 'firmware/ibft/ethernet0'
    directory.mkdir(parents=True)
    (directory / 'device').symlink_to(path)


def default_route(kernel, name: str = 'eth9') -> None:
    card(kernel, 'e1000e', 0x020000, net=name)
    kernel.write_file(
        'proc/net/route',
        'Iface Destination Gateway Flags RefCnt Use Metric Mask\n'
        f'{name} 00000000 010200C0 3 0 0 0 00000000 0 0 0\n',
    )


def elsewhere(kernel) -> None:
    card(kernel, 'e1000e', 0x020000, net='eth9')
    kernel.leave_namespace('eth9')


def infiniband(kernel, contexts: int | None = 0, **made) -> pathlib.Path:
    """An InfiniBand function without an interface, and its files."""
    path = card(kernel, 'mlx5_core', 0x020700, '15b3:101e', **made)
    add_device(kernel, path, 'infiniband/mlx5_1')
    if contexts is not None:
        kernel.rdma_contexts['mlx5_1'] = contexts
    for number, place in (
        ('231:192', 'infiniband_verbs/uverbs0'),
        ('231:0', 'infiniband_mad/umad0'),
        ('231:64', 'infiniband_mad/issm0'),
    ):
        directory = add_device(kernel, path, place)
        name = f'infiniband/{directory.name}'
        (directory / 'uevent').write_text(f'DEVNAME={name}\n')
        char = kernel.sys / 'dev/char'
        char.mkdir(parents=True, exist_ok=True)
        (char / number).symlink_to(directory)
        kernel.add_node(f'/dev/{name}', f'c {number}')
    return path


def variable(kernel, name: str, value: bytes, vendor: str = '') -> None:
    vendor = vendor or '8be4df61-93ca-11d2-aa0d-00e098032b8c'
    path = kernel.sys / f'firmware/efi/efivars/{name}-{vendor}'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes((6, 0, 0, 0)) + value)


def boot_option(signature: bytes, form: int, number: int = 1) -> bytes:
    """A boot option of the firmware: a partition, and a file on it."""
    drive = struct.pack('<IQQ16sBB', number, 2048, 4096, signature, 2, form)
    return boot_path(
        (2, 1, bytes(8)),  # the root of PCI
        (4, 1, drive),
        (4, 4, '\\EFI\\BOOT.EFI\0'.encode('utf-16-le')),
    )


def adapter_option(*places: tuple[int, int], root: int = 0) -> bytes:
    """A boot option that names an adapter and a disk, and no partition.

    Such as PciRoot(0x0)/Pci(0x3,0x2)/Pci(0x0,0x0)/Scsi(0x0,0x4000).

    :param places: the device and the function at each bridge
    :param root: the number of the root bus in ACPI
    """
    return boot_path(
        (2, 1, struct.pack('<II', 0x0A0341D0, root)),
        *((1, 1, bytes((function, device))) for device, function in places),
        (3, 2, struct.pack('<HH', 0, 0x4000)),
    )


def boot_path(*nodes: tuple[int, int, bytes]) -> bytes:
    """A boot option with a device path: the nodes and their kinds."""
    nodes += ((0x7F, 0xFF, b''),)
    paths = b''.join(
        struct.pack('<BBH', kind, sub, 4 + len(node)) + node
        for kind, sub, node in nodes
    )
    label = 'debian\0'.encode('utf-16-le')
    return struct.pack('<IH', 1, len(paths)) + label + paths


def partition(kernel) -> pathlib.Path:
    """The disk of CARD, with a partition that is not mounted."""
    path = card(kernel, 'nvme', 0x010802)
    disk = disks.add_block(kernel, path / 'nvme/nvme9/nvme9n1', '259:90')
    part = disks.add_block(kernel, disk / 'nvme9n1p1', '259:91')
    for kind, name in (('partuuid', PARTITION), ('uuid', 'ABCD-1234')):
        directory = kernel.root / f'dev/disk/by-{kind}'
        directory.mkdir(parents=True)
        (directory / name).symlink_to('../../nvme9n1p1')
    return part


def _booted(kernel) -> None:
    partition(kernel)
    option = boot_option(uuid.UUID(PARTITION).bytes_le, 2)
    variable(kernel, 'BootCurrent', bytes((0x1A, 0)))
    variable(kernel, 'Boot001A', option)


def bios(kernel) -> None:
    """The disk from which a BIOS has booted: module edd."""
    path = card(kernel, 'ahci', 0x010601)
    directory = kernel.sys / 'firmware/edd/int13_dev80'
    directory.mkdir(parents=True)
    (directory / 'pci_dev').symlink_to(path)


def _hibernates(kernel) -> None:
    partition(kernel)
    kernel.write_file('sys/power/resume', '259:91\n')


def crash_kernel(kernel, text: str = 'raw /dev/nvme9n1p1\n') -> None:
    partition(kernel)
    kernel.write_file('sys/kernel/kexec_crash_loaded', '1\n')
    kernel.write_file('etc/kdump.conf', f'# kdump\n\n{text}')


def algorithm(kernel, module: str, count: int, more: str = '') -> None:
    """What /proc/crypto shows."""
    kernel.write_file(
        'proc/crypto',
        'name         : xts(aes)\n'
        'driver       : xts-aes-aesni\n'
        'module       : aesni_intel\n'
        'refcnt       : 3\n\n'
        'name         : xts(aes)\n'
        'driver       : qat_aes_xts\n'
        f'module       : {module}\n'
        'priority     : 4001\n'
        f'refcnt       : {count}\n' + more,
    )


def holder(kernel, module: str, by: str) -> None:
    (kernel.sys / f'module/{module}/holders/{by}').mkdir(parents=True)


def _crypto(kernel) -> None:
    card(kernel, '4xxx', 0x0B4000)
    holder(kernel, 'intel_qat', '4xxx')
    algorithm(kernel, 'intel_qat', 2)


def cxl_memory(kernel, number: int | None = 1) -> None:
    path = card(kernel, 'cxl_pci', 0x050210)
    (path / 'mem0').mkdir()
    place = kernel.sys / 'devices/platform/ACPI0017:00/root0/port1/endpoint2'
    place.mkdir(parents=True)
    (place / 'uport').symlink_to(path / 'mem0')
    if number is not None:
        (place / 'decoders_committed').write_text(f'{number}\n')
    directory = kernel.sys / 'bus/cxl/devices'
    directory.mkdir(parents=True)
    (directory / 'endpoint2').symlink_to(place)


def _sev(kernel) -> None:
    card(kernel, 'ccp', 0x108000, '1022:1486')
    kernel.write_file('sys/module/kvm_amd/parameters/sev', 'Y\n')


# By the start of the file of the sign: what shows it, and what the refusal
# says of CARD.
SIGNS = {
    '/sys/bus/pci/devices/ADDRESS/boot_vga': (
        lambda kernel: card(
            kernel, pci_class=0x030000, files={'boot_vga': '1\n'}
        ),
        'it is the boot display',
    ),
    '/sys/class/drm/NAME/boot_display': (
        _of_class('drm/card1', boot_display='1'),
        'the screen on which the host booted',
    ),
    '/sys/bus/pci/devices/ADDRESS/KIND-framebuffer.N': (
        lambda kernel: (card(kernel) / 'efi-framebuffer.0').mkdir(),
        'the frame buffer that the firmware has set up',
    ),
    '/proc/iomem': (
        lambda kernel: [card(kernel), iomem(kernel, 'simpledrm')],
        'in its memory (simpledrm)',
    ),
    '/sys/class/graphics/fbN': (frame_buffer, 'on its frame buffer fb0'),
    '/sys/class/drm/NAME/enabled': (
        _of_class('drm/card1-DP-1', enabled='enabled'),
        'a picture on its connector card1-DP-1',
    ),
    '/sys/class/tty/console/active': (line, 'ttyS4 on it is a console'),
    '/proc/bus/input/devices': (keyboard, 'connected to it: Virtual HID'),
    '/sys/class/ipmi': (_of_class('ipmi/ipmi0'), '(BMC) through it (ipmi0)'),
    '/sys/class/watchdog': (
        _of_class('watchdog/watchdog0', state='active'),
        'watchdog watchdog0 on it runs',
    ),
    '/sys/class/tpm': (_of_class('tpm/tpm0'), 'TPM tpm0 of the host'),
    '/sys/firmware/ibft': (_boots_over_network, 'boots the host through it'),
    '/proc/net/route': (default_route, 'eth9 has the default route'),
    '/sys/bus/pci/devices/ADDRESS/net': (
        elsewhere,
        'an interface of it is in another network namespace',
    ),
    '/sys/class/infiniband/NAME': (
        lambda kernel: infiniband(kernel, 2),
        'RDMA device mlx5_1: it has 2 user contexts',
    ),
    '/sys/firmware/efi/efivars': (_booted, 'has booted the host from block'),
    '/sys/firmware/edd': (bios, 'has booted the host from one of its disks'),
    '/sys/power/resume': (_hibernates, 'hibernates to block device nvme9n1p1'),
    '/sys/kernel/kexec_crash_loaded': (crash_kernel, 'crash kernel (kdump)'),
    '/sys/class/dma': (_of_class('dma/dma0chan0', in_use='1'), 'dma0chan0'),
    '/proc/crypto': (_crypto, 'xts(aes), which driver qat_aes_xts runs'),
    '/sys/bus/cxl': (cxl_memory, '1 decoders are committed'),
    '/sys/bus/pci/devices/ADDRESS/memN': (
        lambda kernel: cxl_memory(kernel, None),
        'does not show whether memory of CXL device mem0 is mapped',
    ),
    '/sys/module/kvm_amd': (_sev, "AMD's SEV"),
}
