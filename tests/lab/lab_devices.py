# SPDX-License-Identifier: Apache-2.0

"""The devices of the lab: their addresses and their QEMU options.

The addresses are fixed, because every root port has its own slot, and the
firmware numbers the buses in the order of the slots. The numbers of the IOMMU
groups are not fixed: they depend on how many devices virtme-ng adds.
"""

from __future__ import annotations

import pathlib

# SR-IOV, 4 VFs of it, driver nvme, no namespace. A group of its own.
NVME_PF = '0000:01:00.0'
NVME_PF_VFS = 4
# NVMe with one namespace of 64 MiB, driver nvme. A group of its own.
NVME_DISK = '0000:02:00.0'
# Driver e1000e, a group of its own; down until a test sets it up.
NIC = '0000:03:00.0'
# Behind a PCIe-to-PCI bridge, so all three share a group.
BRIDGE = '0000:04:00.0'
SHARED_FREE = '0000:05:01.0'  # no driver
SHARED_NIC = '0000:05:02.0'  # driver e1000
# Two functions of one device without ACS share a group: nvme and e1000e.
MULTI_NVME = '0000:06:00.0'
MULTI_NIC = '0000:06:00.1'
# SR-IOV, 2 VFs of it. It becomes a simulated FPGA card while the module
# dfl_card is loaded, see dfl/dfl_card.c; until then it has the driver nvme.
DFL_PF = '0000:07:00.0'
DFL_PF_VFS = 2
# The boot display (boot_vga is 1), without a driver.
DISPLAY = '0000:00:16.0'
# A function that has no driver in Linux. A group of its own.
PLAIN = '0000:00:17.0'
# The memory of the simulated FPGA card, without a driver.
MEMORY = '0000:00:19.0'

# vendor:device, and the driver that it is bound to when a test starts.
EXPECTED = {
    NVME_PF: ('1b36:0010', 'nvme'),
    NVME_DISK: ('1b36:0010', 'nvme'),
    NIC: ('8086:10d3', 'e1000e'),
    BRIDGE: ('1b36:000e', None),
    SHARED_FREE: ('1234:11e8', None),
    SHARED_NIC: ('8086:100e', 'e1000'),
    MULTI_NVME: ('1b36:0010', 'nvme'),
    MULTI_NIC: ('8086:10d3', 'e1000e'),
    DISPLAY: ('1234:1111', None),
    PLAIN: ('1234:11e8', None),
    DFL_PF: ('1b36:0010', 'nvme'),
    MEMORY: ('1af4:1110', None),
}

# The disk that is kept over a reboot: /lab/state.
STATE_SERIAL = 'lab-state'


def _root_port(number: int) -> str:
    return (
        f'pcie-root-port,id=rp{number},chassis={number},slot={number},'
        f'addr=0x{0x10 + number:x}'
    )


def _drive(name: str, path: pathlib.Path) -> str:
    return f'if=none,id={name},format=raw,file={path}'


def qemu_options(
    namespace: pathlib.Path, state: pathlib.Path, boot: int
) -> list[str]:
    """Options for QEMU 7.2 and later.

    :param namespace: the file behind the namespace of NVME_DISK
    :param state: the file behind the disk that is kept over a reboot
    :param boot: the number of the boot, from 1 on. At each boot, another
        drive is at NVME_DISK, as if the drives had changed their addresses
    """
    # An SR-IOV function of QEMU's takes its queues and vectors from a pool.
    pf = (
        'nvme,serial=acc%d,bus=rp%d,subsys=s%d,sriov_max_vfs=%d,'
        'sriov_vq_flexible=8,sriov_vi_flexible=4,max_ioqpairs=16,msix_qsize=16'
    )
    options = [
        ('-nodefaults',),
        ('-machine', 'q35,kernel_irqchip=split'),
        ('-device', 'intel-iommu,intremap=on,caching-mode=on'),
        # Less than virtme-ng's "max", so faster where it is emulated.
        ('-cpu', 'qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+svm,+npt'),
        ('-drive', _drive('state', state)),
        ('-device', f'virtio-blk,drive=state,serial={STATE_SERIAL},addr=0x10'),
        *(('-device', _root_port(number)) for number in (1, 2, 3, 4, 5, 8)),
        ('-device', 'nvme-subsys,id=s0'),
        ('-device', pf % (0, 1, 0, NVME_PF_VFS)),
        ('-drive', _drive('namespace', namespace)),
        ('-device', f'nvme,serial=disk{boot},bus=rp2,drive=namespace'),
        # All three interfaces are on one isolated hub.
        *(('-netdev', f'hubport,id=net{n},hubid=0') for n in range(3)),
        ('-device', 'e1000e,bus=rp3,netdev=net0'),
        ('-device', 'pcie-pci-bridge,id=bridge,bus=rp4'),
        ('-device', 'edu,bus=bridge,addr=1'),
        ('-device', 'e1000,bus=bridge,addr=2,netdev=net1'),
        ('-device', 'nvme,serial=multi,bus=rp5,addr=0.0,multifunction=on'),
        ('-device', 'e1000e,bus=rp5,addr=0.1,netdev=net2'),
        ('-device', 'VGA,addr=0x16'),
        ('-device', 'edu,addr=0x17'),
        ('-device', 'nvme-subsys,id=s1'),
        ('-device', pf % (1, 8, 1, DFL_PF_VFS)),
        ('-object', 'memory-backend-ram,id=dfl,size=1M'),
        ('-device', 'ivshmem-plain,memdev=dfl,addr=0x19'),
    ]
    return [part for option in options for part in option]
