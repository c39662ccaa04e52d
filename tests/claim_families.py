# SPDX-License-Identifier: Apache-2.0

"""Devices of one kind each, for the matrix of who excludes whom.

The order of the options is that of the rows in test_claims_matrix.
"""

from __future__ import annotations

import claim_hosts

from os_acc import objects
from os_acc.powervm import inventory

UUIDS = [f'00000000-0000-4000-8000-00000000000{n}' for n in range(3)]


def drm(host, address, name='card0'):
    return host.number(f'pci0000:00/{address}/drm/{name}', 'drm')


def vfio(host, path):
    group = (path / 'iommu_group').readlink().name
    return host.number(f'virtual/vfio/{group}', 'vfio')


def of_sriov(host):
    pf = '0000:10:00.0'
    host.function(pf, totalvfs=4)
    one, two = host.vfs(pf, [None, None])
    for each in (pf, one, two):
        host.offer(host.pci, 'pci', each)
    for each in (pf, one):
        host.files('file', drm(host, each))
        host.files('file', drm(host, each, 'renderD128'))


def of_mdevs(host):
    parent = '0000:20:00.0'
    path = host.function(parent)
    host.kernel.add_mdev_parent(path, {'t': 1}, 4)
    host.kernel.create_mdev(path / 'mdev_supported_types/t', UUIDS[0])
    host.offer(host.pci, 'pci', parent)
    for uuid in UUIDS[:2]:
        host.offer(host.mdev, uuid, parent)
    host.files('file', vfio(host, path / UUIDS[0]))
    host.files('file', drm(host, parent))


def of_vf_mdevs(host):
    """As of NVIDIA's cards of the generation Ampere."""
    pf = '0000:28:00.0'
    host.function(pf, totalvfs=4)
    vf, other = host.vfs(pf, [None, None])
    path = (host.kernel.pci / 'devices' / vf).resolve()
    host.kernel.add_mdev_parent(path, {'t': 1}, 4)
    for each in (pf, vf, other):
        host.offer(host.pci, 'pci', each)
    host.offer(host.mdev, UUIDS[2], vf)
    host.files('file', drm(host, pf))
    host.files('file', drm(host, other))


def of_group(host):
    path = host.function('0000:30:00.0', 7, pci_class=claim_hosts.GPU)
    host.function('0000:30:00.1', 7, pci_class=claim_hosts.SOUND)
    host.function('0000:31:00.0', 7)
    host.named('0000:30:00.0', companions=True)
    for each in ('0000:30:00.0', '0000:30:00.1', '0000:31:00.0'):
        host.offer(host.pci, 'gpu', each)
    host.files('file', drm(host, '0000:31:00.0'))
    host.files('file', vfio(host, path))


def of_fpga(host):
    nic = claim_hosts.NIC
    for number, pci_class in enumerate((claim_hosts.FPGA, nic, nic)):
        address = f'0000:40:00.{number}'
        host.function(
            address, ids='10ee:5000', pci_class=pci_class, totalvfs=2
        )
        host.offer(host.pci, 'pci', address)
    (vf,) = host.vfs('0000:40:00.0', [None], ids='10ee:5001')
    host.offer(host.pci, 'pci', vf)
    (vf,) = host.vfs('0000:40:00.1', [None], ids='10ee:5001', pci_class=nic)
    host.offer(host.pci, 'pci', vf)
    host.files('file', drm(host, '0000:40:00.0'))
    path = (host.kernel.pci / 'devices/0000:40:00.0').resolve()
    host.kernel.add_mdev_parent(path, {'t': 1}, 4)
    made = UUIDS[0].replace('0000-4000', '0000-4040')
    host.kernel.create_mdev(path / 'mdev_supported_types/t', made)
    host.offer(host.mdev, made, '0000:40:00.0')
    host.files('file', vfio(host, path / made))


def of_cards(host):
    """A card of Xilinx as Cyborg reports it, and NVIDIA's vGPUs."""
    for number in range(2):
        address = f'0000:48:00.{number}'
        host.function(address, ids='10ee:5000', pci_class=claim_hosts.NIC)
        host.offer(host.pci, 'cyborg', address, '0000:48:00.0')


def of_vgpus(host):
    pf, gpu = '0000:50:00.0', claim_hosts.GPU
    files = {
        'nvidia/current_vgpu_type': '0\n',
        'nvidia/creatable_vgpu_types': '558 : A\n',
    }
    host.function(pf, ids='10de:2236', pci_class=gpu, totalvfs=4)
    host.offer(host.pci, 'pci', pf)
    for vf in host.vfs(pf, [None, 8, 8], ids='10de:2236', files=files):
        host.offer(host.vgpu, vf)


def of_queues(host):
    address = '0000:60:00.0'
    directory = host.function(address)
    host.queues(directory, True, 2)
    host.offer(host.pci, 'pci', address)
    place = f'pci0000:00/{address}/dsa0'
    host.offer(host.queue, address, 0, '')
    host.files('file', host.number(f'{place}/wq0.0/dsa!wq0.0', 'dsa'))
    # Another device had this number earlier in this boot.
    host.offer(host.queue, address, 1, 'c 241:9')
    host.files('file', 'c 241:9', name='virtual+before')


def of_new_queues(host):
    """Of a device that is not set up."""
    address = '0000:61:00.0'
    host.queues(host.function(address), False, 2)
    place = f'pci0000:00/{address}/dsa0'
    file = host.number(f'{place}/wq0.0/dsa!wq0.0', 'dsa')
    for number in range(2):
        host.offer(host.queue, address, number, '')
    host.files('file', file)


def of_npu(host):
    """An accelerator of the class accel, and another function of its group."""
    npu, neighbour = '0000:64:00.0', '0000:65:00.0'
    for each in (npu, neighbour):
        host.function(each, 9)
        host.offer(host.pci, 'pci', each)
    file = host.number(f'pci0000:00/{npu}/accel/accel0', 'accel')
    host.offer(host.npu, npu, file)
    host.files('file', file)
    host.files('file', drm(host, npu, 'renderD128'))
    host.files('file', drm(host, neighbour))
    # Another device had this number earlier in this boot.
    host.files('file', file, name='virtual+before+npu')


def of_a_disk(host):
    host.function('0000:68:00.0')
    place = 'pci0000:00/0000:68:00.0/ata1/host0/target0:0:0/0:0:0:0'
    host.offer(host.pci, 'pci', '0000:68:00.0')
    for name in ('sda', 'sda/sda1', 'sda/sda2'):
        number = host.number(f'{place}/block/{name}', 'block', 'b')
        host.files('file', number)
    sg = host.number(f'{place}/scsi_generic/sg0', 'scsi_generic')
    host.files('file', sg)


def of_usb(host):
    place = 'platform/soc/1000.usb/usb1/1-4'
    host.files('file', host.number(place, 'usb'), shares=(None, 2))
    video = host.number(f'{place}/1-4:1.0/video4linux/video0', 'video4linux')
    host.files('file', video)
    # Another device had this number earlier in this boot.
    host.files('file', video, name='virtual+earlier')
    for name in ('', 'virtual+other'):
        # The kernel shows no directory of it.
        host.files('file', 'c 195:7', name=name)


def of_a_namespace(host):
    name, wwn = 'nvme7n1', f'uuid.{UUIDS[0]}'
    place = f'virtual/nvme-subsystem/nvme-subsys7/{name}'
    host.offer(host.namespace, wwn)
    for part in ('', f'/{name}p1', f'/{name}p2'):
        host.files('file', host.number(f'{place}{part}', 'block', 'b'))
    path = host.kernel.sys / 'devices' / place / 'wwid'
    path.write_text(f'{wwn}\n')


def of_vmd(host):
    above = '0000:70:00.0'
    host.kernel.add_driver('vmd')
    host.function(above, driver='vmd')
    behind = host.behind(above, None)
    host.offer(host.pci, 'pci', above)
    host.offer(host.pci, 'pci', behind)


def of_a_switch(host):
    """Two cards below one bridge, of which one has VFs."""
    bridge = '0000:77:00.0'
    cards = ('0000:78:00.0', '0000:79:00.0')
    host.function(bridge, pci_class=0x060400)
    for address in cards:
        host.function(address, totalvfs=2)
    (vf,) = host.vfs(cards[0], [None])
    for address in (*cards, vf):
        host.below(bridge, address)
    for address in (*cards, vf):
        host.offer(host.pci, 'pci', address)
    for address in (cards[0], vf):
        place = f'pci0000:00/{bridge}/{address}/drm'
        host.files('file', host.number(f'{place}/card0', 'drm'))


def of_power(host):
    for number, (bus, moves_all) in enumerate(
        (('1', True), ('1', False), ('1', False), ('2', False), (None, True))
    ):
        handle = objects.DRCHandle(
            drc_index=f'2101000{number}', bus_grp_required=moves_all
        )
        slot = inventory.Slot(handle, '', '', '', None, None, bus)
        host.offer(host.io_slot, slot)


def of_others(host):
    """What nothing but its handle tells from others."""
    host.kernel.add_mtty()
    for uuid in (UUIDS[1].replace('1', '8'), UUIDS[2].replace('2', '9')):
        host.offer(host.mdev, uuid, 'mtty')
    host.offer(host.plain, 'fake', 'test/fake-1', 'fake')
    host.offer(host.plain, 'fake', 'test/fake-2', 'fake')
