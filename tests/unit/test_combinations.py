# SPDX-License-Identifier: Apache-2.0

"""Options of device_spec that meet each other, and a denial meanwhile."""

from __future__ import annotations

import os
import pathlib

import command
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.privileged import notes as root_notes
from os_acc.privileged.pci import functions as privileged_pci
from os_acc.privileged.pci import network as privileged_network
from os_acc.privileged.pci import vfs as privileged_vfs

CARD = '0000:3b:00.0'
SOUND = '0000:3b:00.1'
NIC_PF = '0000:08:00.0'
NIC_VF = '0000:08:00.1'
VGPU_PF = '0000:41:00.0'
VGPU = '0000:41:00.4'


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    kernel.add_function(CARD, '10de:1e30', 0x030000, 'nvidia', 70)
    kernel.add_function(SOUND, '10de:10f7', 0x040300, 'snd_hda_intel', 70)
    os_acc.initialize()
    return kernel


@pytest.fixture
def run(here, capsys, monkeypatch):
    path = os_acc.CONF.os_acc.state_path
    return command.Command(path, capsys, monkeypatch)


def plug(request) -> objects.InstanceInfo:
    instance = devices.instance()
    os_acc.plug(instance, [request])
    return instance


def notes() -> list[str]:
    directory = pathlib.Path(root_notes.FOLDER)
    return sorted(os.listdir(directory)) if directory.exists() else []


# --- between_tenants


def test_companions_stay_on_vfio_too(here, run):
    devices.spec(
        {'address': CARD, 'companions': True, 'between_tenants': 'vfio'}
    )
    before = here.snapshot()
    for _ in range(2):
        os_acc.unplug(plug(devices.pci(CARD)))
        assert here.driver_of(CARD) == 'vfio-pci'
        assert here.driver_of(SOUND) == 'vfio-pci'
        assert notes() == []
    result = run('device', 'free', CARD)
    assert result.code == 0, result.err
    assert 'it is bound to nvidia again' in result.out
    assert f'{SOUND} is bound to snd_hda_intel again' in result.out
    assert here.snapshot() == before


def test_a_denied_function_goes_back_to_the_host(here):
    devices.spec({'address': devices.NIC, 'between_tenants': 'vfio'})
    before = here.snapshot()
    instance = plug(devices.pci(devices.NIC))
    devices.spec()
    os_acc.unplug(instance)
    assert here.snapshot() == before
    assert notes() == []


def test_a_function_that_is_denied_later_can_be_freed(here, run):
    devices.spec({'address': devices.NIC, 'between_tenants': 'vfio'})
    before = here.snapshot()
    os_acc.unplug(plug(devices.pci(devices.NIC)))
    assert here.driver_of(devices.NIC) == 'vfio-pci'
    devices.spec()
    result = run('device', 'free', devices.NIC)
    assert result.code == 0, result.err
    assert here.snapshot() == before


def test_denied_companions_come_back_after_a_reboot(here):
    devices.spec({'address': CARD, 'companions': True})
    before = here.snapshot()
    instance = plug(devices.pci(CARD))
    plugged = here.snapshot()
    devices.spec()
    here.reboot()
    report = os_acc.recover()
    assert report.failed == []
    assert here.snapshot() == plugged
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before
    assert notes() == []


# --- a second call of the privileged half


def test_a_function_is_taken_twice(here):
    """The record keeps what was there before the first call."""
    before = here.snapshot()
    instance = devices.instance().uuid
    for _ in range(2):
        privileged_pci.take(devices.NIC, 'vfio-pci', [], instance, 2.0)
    assert privileged_pci.give_back(devices.NIC, '8086:10d3', 2.0)
    assert here.snapshot() == before


def test_the_settings_of_a_vf_that_is_not_offered(here):
    here.add_function(
        NIC_PF, '8086:1572', 0x020000, 'i40e', totalvfs=2, net='ens8f0'
    )
    spec = {'address': NIC_PF, 'num_vfs': 2}
    devices.spec(spec)
    privileged_vfs.create_vfs(NIC_PF, 2, 5.0)
    before = dict(here.ports[NIC_PF][0])
    ours = {'mac_address': 'fa:16:3e:00:00:01'}
    devices.spec()
    with pytest.raises(exception.DeviceNotFound, match='device allow'):
        privileged_network.set_port(NIC_VF, ours, 2.0)
    assert here.ports[NIC_PF][0] == before
    # What somebody else has set stays.
    here.ports[NIC_PF][0].update(ours)
    (said,) = privileged_network.restore_port(NIC_VF, ours, 2.0)
    assert 'os-acc has no record that it has set it' in said
    assert here.ports[NIC_PF][0] == before | ours
    # What os-acc has set is restored.
    here.ports[NIC_PF][0].update(before)
    devices.spec(spec)
    privileged_network.set_port(NIC_VF, ours, 2.0)
    devices.spec()
    assert privileged_network.restore_port(NIC_VF, ours, 2.0) == []
    assert here.ports[NIC_PF][0] == before


# --- a preset vGPU


def test_a_preset_vgpu_is_released_after_a_denial(here):
    pf = here.add_function(VGPU_PF, '10de:2235', 0x030200, 'nvidia')
    vf = here.add_function(
        VGPU,
        '10de:2235',
        0x030200,
        'nvidia',
        physfn=VGPU_PF,
        files={
            'nvidia/current_vgpu_type': '558\n',
            'nvidia/creatable_vgpu_types': '',
        },
    )
    here.bind(VGPU, 'nvidia')
    (pf / 'virtfn0').symlink_to(vf)
    devices.spec({'address': VGPU, 'bind': 'none'})
    before = here.snapshot()
    instance = plug(devices.pci(VGPU))
    assert notes() == [f'vgpu-{VGPU}']
    devices.spec()
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before
    assert notes() == []


# --- one-time use


def test_a_vf_that_does_not_exist_yet_is_shown_as_reserved(here, run):
    devices.spec({'address': devices.PF, 'num_vfs': 2, 'one_time_use': True})
    os_acc.unplug(plug(devices.pci(devices.VFS[0])))
    shown = run('device', 'show', devices.PF, '-f', 'json').json
    states = {each['handle']: each['state'] for each in shown['handles']}
    assert states == {
        f'pci/{devices.VFS[0]}': 'reserved',
        f'pci/{devices.VFS[1]}': 'free',
    }
