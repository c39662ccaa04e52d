# SPDX-License-Identifier: Apache-2.0

"""The cards of generated hosts: see claim_hosts."""

from __future__ import annotations

from collections.abc import Callable
import random
from typing import Any
import uuid

import claim_hosts

from os_acc import objects
from os_acc.powervm import inventory
from os_acc.testing import kernel as kernel_module

Host = claim_hosts.Host
put = kernel_module.put
#: IOMMU groups that several cards have in common; None: one of its own.
GROUPS = (None, None, 7, 8)


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128)))


def _drm(host: Host, address: str, place: str, draw: random.Random) -> None:
    """The files of a function: a card, its render node, and both."""
    directory = f'{place}/drm'
    card = host.number(f'{directory}/card0', 'drm')
    render = host.number(f'{directory}/renderD128', 'drm')
    shares = draw.choice(((None,), (None, 2), (0,)))
    kind = 'file of a VF' if _is_vf(host, address) else 'file of a function'
    if draw.random() < 0.5:
        host.files(kind, card, render, shares=shares)
    else:
        host.files(kind, card, shares=shares)
        host.files(kind, render)


def _is_vf(host: Host, address: str) -> bool:
    return host.kernel.file(address, 'physfn').is_symlink()


def _place(address: str) -> str:
    return f'pci0000:00/{address}'


def plain(host: Host, draw: random.Random) -> None:
    """A function, with or without device files."""
    address = f'{host.slot()}.0'
    host.function(address, draw.choice(GROUPS))
    host.offer(host.pci, 'pci', address)
    if draw.random() < 0.5:
        _drm(host, address, _place(address), draw)


def pf(host: Host, draw: random.Random) -> None:
    """A PF with VFs, some of which have device files."""
    address = f'{host.slot()}.0'
    host.function(address, draw.choice(GROUPS), totalvfs=4)
    groups = [draw.choice(GROUPS) for _ in range(draw.randint(0, 3))]
    vfs = host.vfs(address, groups)
    host.offer(host.pci, 'pci PF', address)
    for vf in vfs:
        host.offer(host.pci, 'pci VF', vf)
    for each in (address, *vfs):
        if draw.random() < 0.4:
            _drm(host, each, _place(each), draw)


def fpga(host: Host, draw: random.Random) -> None:
    """An FPGA with several PFs, one of which may be of another class.

    Those in another slot show the same serial number.
    """
    slots = [host.slot()]
    if draw.random() < 0.3:
        slots.append(host.slot())
    serial = f'00-0a-35-00-01-02-03-{slots[0][5:7]}'
    for number in range(draw.randint(2, 3)):
        address = f'{slots[number % len(slots)]}.{number}'
        other = number and draw.random() < 0.3
        host.function(
            address,
            draw.choice(GROUPS),
            ids='10ee:5000',
            pci_class=claim_hosts.NIC if other else claim_hosts.FPGA,
            totalvfs=2,
            files={'serial_number': f'{serial}\n'},
        )
        host.offer(host.pci, 'fpga PF', address)
        if draw.random() < 0.3:
            host.named(address, programmer='command')
        if number == 0 and draw.random() < 0.6:
            for vf in host.vfs(address, [None, None], ids='10ee:5001'):
                host.offer(host.pci, 'fpga VF', vf)
        if draw.random() < 0.3:
            _drm(host, address, _place(address), draw)
        if draw.random() < 0.2:
            _mdevs(host, address, draw)


def xilinx(host: Host, draw: random.Random) -> None:
    """A card as Cyborg reports it: below its management function."""
    slot = host.slot()
    for number in range(2):
        address = f'{slot}.{number}'
        host.function(address, draw.choice(GROUPS), ids='10ee:5000')
        host.offer(host.pci, 'cyborg', address, f'{slot}.0')


def gpu(host: Host, draw: random.Random) -> None:
    """A GPU with its companions in one IOMMU group."""
    slot = host.slot()
    group = 20 + int(slot[5:7], 16)
    host.function(f'{slot}.0', group, pci_class=claim_hosts.GPU)
    host.function(f'{slot}.1', group, pci_class=claim_hosts.SOUND)
    host.named(f'{slot}.0', companions=draw.random() < 0.7)
    host.offer(host.pci, 'gpu', f'{slot}.0')
    host.offer(host.pci, 'companion', f'{slot}.1')
    if draw.random() < 0.5:
        _drm(host, f'{slot}.1', _place(f'{slot}.1'), draw)


def _mdevs(host: Host, parent: str, draw: random.Random) -> None:
    """Mediated devices of a parent: some exist, one is still to be made."""
    path = (host.kernel.pci / 'devices' / parent).resolve()
    host.kernel.add_mdev_parent(path, {'type-1': 1}, 8)
    for _ in range(draw.randint(0, 2)):
        made = _uuid(draw)
        host.kernel.create_mdev(path / 'mdev_supported_types/type-1', made)
        host.offer(host.mdev, made, parent)
        if draw.random() < 0.5:
            _vfio_group(host, path / made, 'file of an mdev')
    host.offer(host.mdev, _uuid(draw), parent)


def _vfio_group(host: Host, device: Any, kind: str) -> None:
    group = (device / 'iommu_group').readlink().name
    if not (host.kernel.sys / f'devices/virtual/vfio/{group}').exists():
        number = host.number(f'virtual/vfio/{group}', 'vfio')
        host.files(kind, number)


def mdev_parent(host: Host, draw: random.Random) -> None:
    """A parent of mediated devices: a function, or the VFs of a PF."""
    address = f'{host.slot()}.0'
    host.function(address, draw.choice(GROUPS), totalvfs=4)
    host.offer(host.pci, 'mdev parent', address)
    if draw.random() < 0.4:
        _drm(host, address, _place(address), draw)
    if draw.random() < 0.6:
        _mdevs(host, address, draw)
        return
    for vf in host.vfs(address, [draw.choice(GROUPS), None]):
        host.offer(host.pci, 'mdev parent VF', vf)
        _mdevs(host, vf, draw)


def mtty(host: Host, draw: random.Random) -> None:
    """A parent that is no PCI function."""
    if (host.kernel.sys / 'class/mdev_bus/mtty').exists():
        return
    host.kernel.add_mtty()
    path = host.kernel.sys / 'devices/virtual/mtty/mtty'
    made = _uuid(draw)
    host.kernel.create_mdev(path / 'mdev_supported_types/mtty-1', made)
    host.offer(host.mdev, made, 'mtty')
    host.offer(host.mdev, _uuid(draw), 'mtty')
    _vfio_group(host, path / made, 'file of an mdev')


def vgpu(host: Host, draw: random.Random) -> None:
    """A card with NVIDIA's vGPUs."""
    address = f'{host.slot()}.0'
    ids = '10de:2236'
    host.function(
        address, None, ids=ids, pci_class=claim_hosts.GPU, totalvfs=4
    )
    host.named(address, vgpu_type='558')
    groups = [draw.choice(GROUPS) for _ in range(draw.randint(1, 3))]
    files = {
        'nvidia/current_vgpu_type': '0\n',
        'nvidia/creatable_vgpu_types': '558 : A\n',
    }
    vfs = host.vfs(
        address, groups, ids=ids, pci_class=claim_hosts.GPU, files=files
    )
    host.offer(host.pci, 'vgpu card', address)
    for vf in vfs:
        host.offer(host.vgpu, vf)
    if draw.random() < 0.5:
        _drm(host, address, _place(address), draw)


def dsa(host: Host, draw: random.Random) -> None:
    """A DSA whose queues are enabled by the host, by os-acc, or not yet."""
    address = f'{host.slot()}.0'
    directory = host.function(address, draw.choice(GROUPS))
    host.offer(host.pci, 'dsa', address)
    host.queues(directory, draw.random() < 0.6, 3)
    for number in range(3):
        file = ''
        if draw.random() < 0.8:
            file = host.number(
                f'{_place(address)}/dsa0/wq0.{number}/dsa!wq0.{number}', 'dsa'
            )
            host.files(
                'file of a queue', file, shares=draw.choice(((None,), (2,)))
            )
        host.offer(host.queue, address, number, file)


def disk(host: Host, draw: random.Random) -> None:
    """A SCSI disk with partitions, and its sg file."""
    address = f'{host.slot()}.0'
    host.function(address, draw.choice(GROUPS), pci_class=0x010601)
    host.offer(host.pci, 'disk', address)
    there = f'{_place(address)}/ata1/host0/target0:0:0/0:0:0:0'
    letter = address[6]
    for name in (f'sd{letter}', f'sd{letter}/sd{letter}1'):
        number = host.number(f'{there}/block/{name}', 'block', 'b')
        host.files('block file', number)
    host.files(
        'block file', host.number(f'{there}/scsi_generic/sg1', 'scsi_generic')
    )


def usb(host: Host, draw: random.Random) -> None:
    """A USB device with a file, and a part of it."""
    there = f'platform/soc/{host.slot()[5:7]}.usb/usb1/1-4'
    host.files('usb file', host.number(there, 'usb'), shares=(None, 3))
    video = f'{there}/1-4:1.0/video4linux/video0'
    host.files('usb file', host.number(video, 'video4linux'))


def namespace(host: Host, draw: random.Random) -> None:
    """A namespace of NVMe-oF with a partition."""
    name = f'nvme{int(host.slot()[5:7], 16)}n1'
    wwn = f'uuid.{_uuid(draw)}'
    there = f'virtual/nvme-subsystem/nvme-subsys{name[4:-2]}/{name}'
    if draw.random() < 0.8:
        host.files('file of a namespace', host.number(there, 'block', 'b'))
        part = host.number(f'{there}/{name}p1', 'block', 'b')
        host.files('file of a namespace', part)
        path = host.kernel.sys / 'devices' / there / 'wwid'
        path.write_text(f'{wwn}\n')
    host.offer(host.namespace, wwn)


def group_file(host: Host, draw: random.Random) -> None:
    """Functions of one IOMMU group, and VFIO's file of it."""
    slot = host.slot()
    group = 60 + int(slot[5:7], 16)
    for number in range(draw.randint(1, 2)):
        path = host.function(f'{slot}.{number}', group)
        host.offer(host.pci, 'in group', f'{slot}.{number}')
    _vfio_group(host, path, 'file of a group')


def vmd(host: Host, draw: random.Random) -> None:
    """A function that has a PCI domain with another one."""
    address = f'{host.slot()}.0'
    host.kernel.add_driver('vmd')
    host.function(address, draw.choice(GROUPS), driver='vmd')
    host.offer(host.pci, 'vmd', address)
    behind = host.behind(address, draw.choice(GROUPS))
    host.offer(host.pci, 'behind vmd', behind)
    above = host.kernel.sys / 'devices' / host.kernel.bus / address
    (above / 'pci10000:00').mkdir(exist_ok=True)


def renumbered(host: Host, draw: random.Random) -> None:
    """A device number that another device had earlier in this boot."""
    slot = host.slot()[5:7]
    number = host.number(f'virtual/misc/{slot}', 'misc')
    host.files('renumbered', number, shares=draw.choice(((None,), (2,))))
    before = f'virtual+before+{slot}'
    host.files('renumbered', number, shares=(None, 2), name=before)


def power(host: Host, draw: random.Random) -> None:
    """Slots of Power, some of which must move with their bus."""
    for number in range(draw.randint(2, 4)):
        handle = objects.DRCHandle(
            drc_index=f'2101{host.slot()[5:7]}{number:02x}',
            bus_grp_required=draw.random() < 0.3,
        )
        bus = draw.choice((None, '20000010', '20000011'))
        slot = inventory.Slot(handle, '', '', '', None, None, bus)
        host.offer(host.io_slot, slot)


def other(host: Host, draw: random.Random) -> None:
    """What only its handle identifies."""
    host.offer(host.plain, 'fake', f'test/{host.slot()}', 'fake-1')


CARDS: dict[str, Callable[[Host, random.Random], None]] = {
    each.__name__: each
    for each in (
        plain,
        pf,
        fpga,
        xilinx,
        gpu,
        mdev_parent,
        mtty,
        vgpu,
        dsa,
        disk,
        usb,
        namespace,
        group_file,
        vmd,
        renumbered,
        power,
        other,
    )
}
