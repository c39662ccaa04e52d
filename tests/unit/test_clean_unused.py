# SPDX-License-Identifier: Apache-2.0

"""What is cleaned while it is not bound to VFIO, as after a reboot."""

from __future__ import annotations

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import pci
from os_acc.privileged.pci import functions as privileged

CARD = '0000:09:00.0'
NVME_PF = '0000:0a:00.0'
RESET = {'reset': '', 'reset_method': 'flr\n'}
ANY = {'address': '*', 'command_empties': True}


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    kernel.add_function(
        CARD, '8086:4940', 0x0B4000, 'qat', totalvfs=4, files=RESET
    )
    kernel.add_function(
        NVME_PF, '1b36:0010', 0x010802, 'nvme', totalvfs=4, files=RESET
    )
    devices.spec(ANY)
    os_acc.initialize()
    return kernel


def clean(address: str, **kwargs) -> bool:
    ids = pci.get(address).ids
    with devices.acting():
        return privileged.clean(address, ids, 'auto', 0, 2.0, **kwargs)


def test_a_pf_whose_vf_a_guest_has(here):
    here.write_numvfs(CARD, 4)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci('0000:09:00.1')])
    here.hold(here.node('0000:09:00.1'))
    before = len(here.writes)
    with pytest.raises(exception.DeviceInUseByHost, match='has 4 VFs'):
        clean(CARD)
    assert here.resets == []
    assert here.writes[before:] == []


def test_a_drive_that_has_vfs(here):
    drive = here.drives.at(NVME_PF)
    here.write_numvfs(NVME_PF, 4)
    before = here.snapshot()
    with pytest.raises(exception.DeviceBusy, match='has 4 VFs'):
        clean(NVME_PF)
    assert here.snapshot() == before
    assert drive.formatted == []


@pytest.mark.parametrize('plugged', [False, True])
def test_a_drive_that_a_process_has_open(here, plugged):
    """Without O_EXCL, as a guest does that has it as a block device."""
    drive = here.drives.at(devices.DISK)
    instance = devices.instance()
    if plugged:
        os_acc.plug(instance, [devices.pci(devices.DISK)])
        here.reboot()
    pid = here.hold(here.root / 'dev/nvme0n1', 'qemu', number='b 259:0')
    before = here.snapshot()
    if plugged:
        with pytest.raises(exception.UnplugException, match=f'process {pid}'):
            os_acc.unplug(instance)
    with pytest.raises(exception.DeviceBusy, match=f'process {pid}'):
        clean(devices.DISK)
    assert here.snapshot() == before
    assert drive.formatted == []
    here.end(pid)
    clean(devices.DISK)
    assert len(drive.formatted) == 1


def test_a_drive_whose_group_the_host_uses(here):
    here.add_function('0000:0b:00.0', '1b36:0010', 0x010802, 'nvme', group=90)
    here.add_function(
        '0000:0b:00.1', '8086:10d3', 0x020000, 'e1000e', group=90, net='eth9'
    )
    os_acc.CONF.set_override('cleaning_command', 'true', 'os_acc')
    flags = here.sys / 'class/net/eth9/flags'
    flags.write_text('0x1003\n')
    before = here.snapshot()
    with pytest.raises(exception.DeviceInUseByHost, match='eth9 is up'):
        clean('0000:0b:00.0')
    assert here.snapshot() == before
    # Its driver alone is no reason: another VAN of the instance may have it.
    flags.write_text('0x1002\n')
    clean('0000:0b:00.0')
    assert here.driver_of('0000:0b:00.0') == 'vfio-pci'


def test_a_card_that_a_process_has_open(here):
    link = here.sys / 'dev/char/240:0'
    link.parent.mkdir(parents=True)
    path = (here.pci / 'devices' / CARD).resolve() / 'uio/uio0'
    path.mkdir(parents=True)
    (path / 'uevent').write_text('DEVNAME=uio0\n')
    link.symlink_to(f'../..{str(path).removeprefix(str(here.sys))}')
    here.hold(here.root / 'dev/uio0', 'dpdk', number='c 240:0')
    with pytest.raises(exception.DeviceInUseByHost, match='dpdk'):
        clean(CARD)
    assert here.resets == []


def test_the_domain_of_the_instance_may_still_name_it(here):
    """libvirt has given it back, and writes its state a moment later."""
    instance = devices.instance()
    bus, device = CARD[5:7], CARD[8:10]
    here.write_file(
        'libvirt/guest.xml',
        f'<domstatus pid="1"><domain><name>guest</name><uuid>{instance.uuid}'
        '</uuid><devices><hostdev type="pci"><source><address domain="0x0000"'
        f' bus="0x{bus}" slot="0x{device}" function="0x0"/></source>'
        '</hostdev></devices></domain></domstatus>',
    )
    with pytest.raises(exception.DeviceInUseByHost, match='domain guest'):
        clean(CARD)
    assert clean(CARD, instance_uuid=instance.uuid)
    assert here.resets == [CARD]
