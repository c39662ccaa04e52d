# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""vGPUs on VFs: the driver nvidia_vgpu, on a kernel of files."""

from __future__ import annotations

import errno

import devices
import pytest

import os_acc
from os_acc import exception

PF = '0000:41:00.0'
VF, OTHER = '0000:41:00.4', '0000:41:00.5'


@pytest.fixture
def here(kernel):
    kernel.add_function(PF, '10de:2235', 0x030200, 'nvidia', numa=0)
    for address in (VF, OTHER):
        kernel.add_function(
            address,
            '10de:2235',
            0x030200,
            'nvidia',
            physfn=PF,
            files={
                'nvidia/current_vgpu_type': '0\n',
                'nvidia/creatable_vgpu_types': '558 : NVIDIA A40-1Q\n'
                '559 : NVIDIA A40-2Q\n',
            },
        )
        kernel._bind(address, 'nvidia')
    devices.spec({'vendor_id': '10de', 'vgpu_type': 'NVIDIA A40-1Q'})
    os_acc.initialize()
    return kernel


def kind_of(kernel, address: str) -> str:
    path = kernel.pci / 'devices' / address / 'nvidia/current_vgpu_type'
    return path.read_text().strip()


def cause(*requests) -> Exception:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def test_set_and_taken_away(here):
    before = here.snapshot()
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(VF)])
    # The specific driver goes before pci.
    assert (van.driver, van.device) == ('nvidia_vgpu', PF)
    assert kind_of(here, VF) == '558'
    # A managed one would take the node down.
    assert van.handle.managed is False
    assert 'managed="no"' in van.guest_config
    assert here.driver_of(VF) == 'nvidia'
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before


def test_selected(here):
    (device,) = os_acc.get_devices()
    assert (device.address, device.resource_class) == (PF, 'VGPU')
    assert (device.handles_total, device.handles_free) == (2, 2)
    assert device.traits == ['CUSTOM_VGPU_NVIDIA_A40_1Q']
    instance = devices.instance()
    vans = os_acc.plug(
        instance, [devices.wanted('VGPU', *device.traits) for _ in range(2)]
    )
    assert {van.handle.address for van in vans} == {VF, OTHER}
    assert os_acc.get_devices()[0].handles_free == 0
    assert isinstance(cause(devices.wanted('VGPU')), exception.DeviceNotFound)
    os_acc.unplug(instance)


def test_one_that_has_a_vgpu_already(here):
    path = here.pci / 'devices' / VF / 'nvidia/current_vgpu_type'
    path.write_text('559\n')
    err = cause(devices.pci(VF))
    assert isinstance(err, exception.DeviceBusy)
    assert '559' in str(err)
    assert kind_of(here, VF) == '559'


def test_a_type_that_siblings_leave_no_room_for(here):
    path = here.pci / 'devices' / VF / 'nvidia/creatable_vgpu_types'
    path.write_text('NVIDIA A40-2Q 559\n')
    err = cause(devices.pci(VF))
    assert isinstance(err, exception.DeviceNotFound)
    assert '559 (NVIDIA A40-2Q)' in str(err)
    devices.spec({'vendor_id': '10de', 'vgpu_type': '558'})
    path.write_text('')
    assert 'none' in str(cause(devices.pci(VF)))


def test_a_bad_id_reads_back_as_0(here):
    def gone():
        path = here.pci / 'devices' / VF / 'nvidia/creatable_vgpu_types'
        path.write_text('559 : NVIDIA A40-2Q\n')

    here.fail('*/current_vgpu_type', gone)
    err = cause(devices.pci(VF))
    assert isinstance(err, exception.DeviceError)
    assert kind_of(here, VF) == '0'


def test_not_taken_from_the_next_owner(here):
    """A stale release must not kill another's vGPU on the same VF."""
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    path = here.pci / 'devices' / VF / 'nvidia/current_vgpu_type'
    path.write_text('559\n')
    assert os_acc.unplug(instance) == 1
    assert kind_of(here, VF) == '559'


def test_refused_while_the_guest_goes_down(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    here.fail('*/current_vgpu_type', errno.EPERM)
    assert os_acc.unplug(instance) == 1
    assert kind_of(here, VF) == '0'


def test_after_a_reboot(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VF)])
    path = here.pci / 'devices' / VF / 'nvidia/current_vgpu_type'
    path.write_text('0\n')
    here.boot()
    assert len(os_acc.recover().restored) == 1
    assert kind_of(here, VF) == '558'
    assert os_acc.unplug(instance) == 1


def test_without_a_type_in_device_spec(here):
    devices.spec({'vendor_id': '10de'})
    err = cause(devices.pci(VF))
    assert 'vgpu_type' in str(err)
