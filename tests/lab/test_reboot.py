# SPDX-License-Identifier: Apache-2.0

"""A reboot of the host removes mediated devices; os-acc makes them again.

VFs over a reboot: see test_apply and test_dfl.
"""

from __future__ import annotations

import pytest
import use

import os_acc
from os_acc.kernel import mdev

INSTANCE = '2b0a6bb0-1111-4222-8333-444455556666'
MDEV = '6f6a7b8c-1111-4222-8333-444455556666'


@pytest.mark.boot1
def test_before_the_reboot(lab_state, leave_all):
    use.configure(lab_state / 'os-acc')
    os_acc.plug(
        use.instance(INSTANCE),
        [use.mdev_request('mtty-1', MDEV)],
    )
    use.close()


@pytest.mark.boot2
def test_after_the_reboot(lab_state, snapshot):
    before = snapshot()
    assert mdev.devices() == []
    use.configure(lab_state / 'os-acc')
    (van,) = os_acc.get_vans()
    assert van.handle.identity == f'mdev/{MDEV}'
    assert van.state == 'plugged'
    assert mdev.find(MDEV) == mdev.Mdev(MDEV, use.MTTY, 'mtty-1')
    assert os_acc.unplug(use.instance(INSTANCE)) == 1
    use.close()
    assert snapshot() == before
