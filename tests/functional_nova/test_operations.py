# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Nova's operations on an instance with a VF and a vGPU."""

from __future__ import annotations

from lxml import etree
from nova import exception as nova_exception
import nova.conf
from nova.virt.libvirt import driver as libvirt_driver
import pytest

import os_acc
from os_acc_nova import compatibility

CONF = nova.conf.CONF


def hostdevs(site, instance):
    return [
        etree.tostring(each, encoding='unicode').strip()
        for each in etree.fromstring(site.xml(instance)).iter('hostdev')
    ]


def guest_configs(instance):
    return [
        etree.tostring(
            etree.fromstring(van.guest_config), encoding='unicode'
        ).strip()
        for van in os_acc.get_vans(instance.uuid)
    ]


@pytest.fixture
def instance(site):
    return site.instance()


def test_this_nova_is_supported():
    # The fixtures of the other tests replace some of the methods.
    compatibility.check(libvirt_driver.LibvirtDriver)


def test_spawn_and_delete(site, instance, vf, vgpu):
    arqs = [vf(instance), vgpu(instance)]
    site.spawn(instance, arqs)
    assert site.kernel.driver_of('0000:01:00.1') == 'vfio-pci'
    assert (site.kernel.mdev / arqs[1]['attach_handle_uuid']).exists()
    assert hostdevs(site, instance) == guest_configs(instance)
    assert len(hostdevs(site, instance)) == 2
    for arq, device in zip(arqs, hostdevs(site, instance), strict=True):
        assert f'ua-acc-{arq["uuid"]}' in device
    site.driver.destroy(site.context, instance, [])
    assert os_acc.get_vans(instance.uuid).objects == []
    assert not (site.kernel.mdev / arqs[1]['attach_handle_uuid']).exists()
    assert site.kernel.driver_of('0000:01:00.1') != 'vfio-pci'


def test_a_failed_spawn_leaves_nothing(site, instance, vf, vgpu):
    site.fail_start = RuntimeError('no')
    with pytest.raises(RuntimeError, match='no'):
        site.spawn(instance, [vf(instance), vgpu(instance)])
    assert os_acc.get_vans().objects == []
    assert list(site.kernel.mdev.iterdir()) == []


def test_a_device_that_another_instance_has(site, instance, vf):
    site.spawn(instance, [vf(instance)])
    other = site.instance()
    with pytest.raises(nova_exception.NovaException) as caught:
        site.spawn(other, [vf(other)])
    assert not isinstance(caught.value, nova_exception.BuildAbortException)
    assert caught.value.code == 500
    assert 'busy' in caught.value.format_message()[:255]


def test_a_malformed_arq_aborts_the_build(site, instance, vf):
    arq = vf(instance)
    arq['attach_handle_info']['bus'] = 'zz'
    with pytest.raises(
        nova_exception.BuildAbortException, match=r'attach_handle_info\.bus'
    ):
        site.spawn(instance, [arq])


def test_a_hard_reboot_keeps_the_devices(site, instance, vf, vgpu):
    arqs = [vf(instance), vgpu(instance)]
    site.spawn(instance, arqs)
    before = hostdevs(site, instance)
    writes = len(site.kernel.writes)
    site.hard_reboot(instance, arqs)
    assert hostdevs(site, instance) == before
    assert len(site.kernel.writes) == writes


def test_a_hard_reboot_repairs(site, instance, vgpu):
    arq = vgpu(instance)
    site.spawn(instance, [arq])
    path = site.kernel.mdev / arq['attach_handle_uuid']
    site.kernel.write(str(path / 'remove'), '1')
    assert not path.exists()
    site.hard_reboot(instance, [arq])
    assert path.exists()
    assert hostdevs(site, instance) == guest_configs(instance)


def test_the_host_boots(site, instance, vf, vgpu):
    arqs = [vf(instance), vgpu(instance)]
    site.spawn(instance, arqs)
    before = hostdevs(site, instance)
    os_acc._host.close()
    os_acc._host = None
    site.kernel.reboot()
    assert list(site.kernel.mdev.iterdir()) == []
    site.driver = site.start()
    site.driver.process_instances_at_startup(site.context, [instance])
    site.driver._hard_reboot(site.context, instance, [], None)
    assert hostdevs(site, instance) == before
    assert site.kernel.driver_of('0000:01:00.1') == 'vfio-pci'


def test_nova_does_not_take_our_mdev(site, instance, vgpu):
    arq = vgpu(instance)
    site.spawn(instance, [arq])
    assigned = site.driver._get_all_assigned_mediated_devices
    assert assigned(instance) == {}
    site.hypervisor.domains.clear()
    assert assigned() == {arq['attach_handle_uuid']: instance.uuid}


def test_vans_of_a_lost_instance_are_released(site, instance, vf):
    kept = site.instance()
    site.spawn(instance, [vf(instance, 1)])
    site.spawn(kept, [vf(kept, 2)])
    site.hypervisor.domains.clear()
    site.driver = site.start()
    site.driver.process_instances_at_startup(site.context, [kept])
    assert {v.instance_uuid for v in os_acc.get_vans()} == {kept.uuid}


def test_the_journal_is_where_nova_may_write(site):
    assert CONF.os_acc.state_path == f'{CONF.state_path}/os-acc'
    assert CONF.os_acc.host == 'node-1'
