# SPDX-License-Identifier: Apache-2.0

"""A card that leaves the PCI bus and comes back after its programming.

QEMU's NVMe with SR-IOV stands for the card. A command in the place of the
vendor's tool programs nothing.
"""

from __future__ import annotations

import lab_devices
import pytest
import use

import os_acc
from os_acc.deadlines import waiting
from os_acc.kernel import pci

PF = lab_devices.NVME_PF

# Removes the card itself, and has the kernel find it again. Its VFs go first:
# driver nvme leaves them in the kernel when it is unbound from their PF.
_TOOL = """#!/bin/sh
echo 0 > /sys/bus/pci/devices/$1/sriov_numvfs
echo 1 > /sys/bus/pci/devices/$1/remove
echo 1 > /sys/class/pci_bus/0000:01/rescan
"""


@pytest.fixture(params=['tool', 'os-acc'])
def bitstream(request, tmp_path):
    """A card whose tool, or else os-acc, removes it from the bus."""
    tool = tmp_path / 'tool'
    tool.write_text(_TOOL if request.param == 'tool' else '#!/bin/sh\n')
    tool.chmod(0o755)
    spec = {
        'address': PF,
        'resource_class': 'FPGA',
        'num_vfs': lab_devices.NVME_PF_VFS,
        'program': f'{tool} {{address}} {{file}}',
        'activation': 'reenumerate',
    }
    use.configure(tmp_path / 'state', [spec])
    path = tmp_path / 'aes.bin'
    path.write_text('aes')
    os_acc.CONF.set_override(
        'allowed_folders', [str(tmp_path)], 'os_acc_bitstreams'
    )
    yield str(path)
    use.close()


def wait_for_the_driver():
    waiting.until(lambda: use.driver_of(PF), 60, 'driver nvme')


def test_ahead_of_time(bitstream):
    before = pci.inode(PF)
    assert os_acc.program_device(PF, bitstream, 'aes') is True
    assert pci.inode(PF) not in (None, before)
    assert pci.answers(PF)
    (device,) = os_acc.get_devices()
    assert (device.health, device.function_id) == ('ok', 'aes')
    wait_for_the_driver()
