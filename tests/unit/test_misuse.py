# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Misuses of the privileged calls: each is refused and changes nothing."""

from __future__ import annotations

import devices
import misuse
import pytest

import os_acc

UNNAMED = '0000:60:00.0'


@pytest.fixture
def place(kernel):
    devices.furnish(kernel)
    kernel.add_function(UNNAMED)
    devices.spec(
        {'address': devices.PF, 'num_vfs': 4},
        {'address': {'domain': '0000', 'bus': '0[1-6]', 'slot': '00'}},
        {'address': 'mtty'},
    )
    # What an administrator has set up.
    kernel.write_file(
        'proc/self/mountinfo',
        '36 35 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n',
    )
    for name in ('eth0', 'eth1'):
        (kernel.sys / f'class/net/{name}/flags').write_text('0x1003\n')
    path = kernel.pci / 'devices' / devices.GPU
    kernel.write(f'{path}/driver_override', 'vfio-pci')
    kernel.write(str(kernel.pci / 'drivers_probe'), devices.GPU)
    pf = kernel.pci / 'devices' / devices.PF
    kernel.write(f'{pf}/sriov_numvfs', '2')
    kernel.write(
        str(
            kernel.sys
            / 'class/mdev_bus/mtty/mdev_supported_types/mtty-1/create'
        ),
        misuse.INSTANCE,
    )
    os_acc.CONF.set_override('cleaning_command', 'false {address}', 'os_acc')
    return misuse.Place(
        bound=devices.GPU,
        bound_ids='10de:1eb8',
        disk=devices.DISK,
        disk_ids='1b36:0010',
        nic=devices.NIC,
        nic_ids='8086:10d3',
        bridge=devices.BRIDGE,
        pf=devices.PF,
        shared=devices.SHARED,
        shared_nic=devices.SHARED_NIC,
        unnamed=UNNAMED,
        mdev=misuse.INSTANCE,
        mdev_parent='mtty',
        mdev_type='mtty-1',
    )


def tree(kernel) -> dict[str, str | bytes]:
    """All of /sys, byte for byte, and the record of the privileged half."""
    found: dict[str, str | bytes] = {}
    for top in (kernel.sys, kernel.root / 'run'):
        for path in sorted(top.rglob('*')):
            if path.is_symlink():
                found[str(path)] = str(path.readlink())
            elif path.is_file() and path.parent.name != 'locks':
                found[str(path)] = path.read_bytes()
    return found


@pytest.mark.parametrize('name', misuse.MISUSES)
def test_a_misuse(kernel, place, name):
    before, writes = tree(kernel), list(kernel.writes)
    assert misuse.outcome(name, place) == misuse.MISUSES[name][1]
    assert kernel.writes == writes
    assert kernel.resets == []
    assert tree(kernel) == before


def test_there_are_enough_of_them():
    assert len(misuse.MISUSES) >= 30
