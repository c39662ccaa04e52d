# SPDX-License-Identifier: Apache-2.0

"""What the host uses a function for, and how functions are named."""

from __future__ import annotations

import errno
import os

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import sysfs


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.initialize()
    return kernel


def refused(address) -> str:
    error = devices.refused(devices.pci(address))
    assert isinstance(error, exception.DeviceInUseByHost)
    return str(error)


def test_a_mount_is_found_by_the_number_of_the_device(here):
    """The root file system may have /dev/root as its source."""
    number = (here.sys / 'class/block/nvme0n1/dev').read_text().strip()
    here.write_file(
        'proc/self/mountinfo', f'36 35 {number} / / rw - ext4 /dev/root rw\n'
    )
    assert 'block device nvme0n1 is mounted on /' in refused(devices.DISK)


def test_a_mount_is_found_by_the_source(here):
    """btrfs has a device number of its own."""
    here.write_file(
        'proc/self/mountinfo',
        '36 35 0:42 / /pool rw - btrfs /dev/nvme0n1 rw\n',
    )
    assert 'nvme0n1 is mounted on /pool' in refused(devices.DISK)


@pytest.mark.parametrize('ours', [True, False])
def test_nvme_with_native_multipath(here, ours):
    """The block device is below the subsystem, not below the function."""
    path = here.add_function('0000:07:00.0', '1b36:0010', 0x010802, 'nvme')
    (path / 'nvme/nvme7').mkdir(parents=True)
    subsystem = here.sys / 'devices/virtual/nvme-subsystem/nvme-subsys7'
    head = subsystem / 'nvme7n1'
    (head / 'holders').mkdir(parents=True)
    (head / 'dev').write_text('259:77\n')
    ours_or_not = path if ours else subsystem.parent
    (subsystem / 'nvme7').symlink_to(ours_or_not / 'nvme/nvme7')
    classes = here.sys / 'class/nvme-subsystem'
    classes.mkdir()
    (classes / 'nvme-subsys7').symlink_to(subsystem)
    (here.sys / 'class/block/nvme7n1').symlink_to(head)
    here.write_file(
        'proc/swaps', 'Filename Type Size\n/dev/nvme7n1 partition 8 0 -2\n'
    )
    if ours:
        assert 'nvme7n1 is swap space' in refused('0000:07:00.0')
    else:
        instance = devices.instance()
        os_acc.plug(instance, [devices.pci('0000:07:00.0')])
        assert os_acc.unplug(instance) == 1


def test_what_a_network_vf_and_a_crypto_function_are_called(here):
    here.add_function(
        '0000:21:00.0', '8086:1592', 0x020000, 'ice', net='eth9', totalvfs=1
    )
    pf = here.pci / 'devices/0000:21:00.0'
    here.write(str(pf / 'sriov_drivers_autoprobe'), '0')
    here.write(str(pf / 'sriov_numvfs'), '1')
    here.add_function('0000:22:00.0', '177d:a0fd', 0x100000, 'cpt')
    found = {each.address: each for each in os_acc.get_devices()}
    assert '0000:22:00.0' in found
    vf = devices.pci('0000:21:00.1')
    assert vf.handle.address not in found  # it is a handle of its PF
    request = devices.wanted('SRIOV_NET_VF', 'HW_NIC_SRIOV')
    request.driver = 'pci'
    (van,) = os_acc.plug(devices.instance(), [request])
    assert van.handle.address == '0000:21:00.1'


def test_an_interface_that_is_being_removed(here, monkeypatch):
    """Another process unbinds the NIC: its files answer EINVAL by then."""
    here.add_function('0000:07:00.0', '8086:10d3', 0x020000, 'e1000e', net='g')
    read = sysfs.read

    def going(path):
        if path.endswith('/net/g/flags'):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return read(path)

    monkeypatch.setattr(sysfs, 'read', going)
    (van,) = os_acc.plug(devices.instance(), [devices.pci('0000:07:00.0')])
    assert van.handle.address == '0000:07:00.0'
