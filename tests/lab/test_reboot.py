# SPDX-License-Identifier: Apache-2.0

"""A reboot of the host removes VFs and mdevs; os-acc creates them again."""

from __future__ import annotations

import lab_devices
import pytest
import use

import os_acc
from os_acc.kernel import mdev
from os_acc.kernel import sriov

INSTANCE = '2b0a6bb0-1111-4222-8333-444455556666'
MDEV = '6f6a7b8c-1111-4222-8333-444455556666'


@pytest.mark.boot1
def test_before_the_reboot(lab_state, leave_all):
    use.configure(lab_state / 'os-acc')
    os_acc.plug(
        use.instance(INSTANCE),
        [
            use.pci_request(use.VFS[1]),
            use.pci_request(use.VFS[3]),
            use.mdev_request('mtty-1', MDEV),
        ],
    )
    use.close()


@pytest.mark.boot2
def test_after_the_reboot(lab_state, snapshot):
    before = snapshot()
    assert sriov.count(lab_devices.NVME_PF) == 0
    assert mdev.devices() == []
    use.configure(lab_state / 'os-acc')
    vans = os_acc.get_vans()
    assert [van.handle.identity for van in vans] == [
        f'pci/{use.VFS[1]}',
        f'pci/{use.VFS[3]}',
        f'mdev/{MDEV}',
    ]
    assert {van.state for van in vans} == {'plugged'}
    assert use.driver_of(use.VFS[1]) == 'vfio-pci'
    assert use.driver_of(use.VFS[3]) == 'vfio-pci'
    assert mdev.find(MDEV) == mdev.Mdev(MDEV, use.MTTY, 'mtty-1')
    assert os_acc.unplug(use.instance(INSTANCE)) == 3
    use.close()
    assert snapshot() == before
