# SPDX-License-Identifier: Apache-2.0

"""Accelerators that a flavor requests without Cyborg, in the compute driver.

See test_nova_driver.py for the stand-in for Nova.
"""

from __future__ import annotations

import types
import uuid

from keystoneauth1 import exceptions as keystone
import nova_double
import pytest
import test_nova_driver

import os_acc
from os_acc import exception
from os_acc import objects

site = test_nova_driver.site
OTHER_NODE = 'c0de0000-0000-4000-8000-000000000002'
#: The providers of the devices, by resource class.
PROVIDERS = {
    name: str(uuid.uuid4())
    for name in ('CUSTOM_FPGA', 'CUSTOM_DSA', 'CUSTOM_LICENCE')
}


def _device(resource_class, **values):
    return objects.Device(
        address=resource_class.lower(),
        driver='recording',
        resource_class=resource_class,
        handles_total=8,
        handles_free=8,
        **values,
    )


@pytest.fixture
def offer(site, monkeypatch):
    """The host has FPGAs, and a device of another class."""
    found = [
        _device('CUSTOM_FPGA', traits=['CUSTOM_BIG'], programming='single'),
        _device('CUSTOM_DSA'),
    ]
    monkeypatch.setattr(site.host.driver, 'get_devices', lambda: found)
    site.placement.names[OTHER_NODE] = 'node-2'
    for name, provider in PROVIDERS.items():
        site.placement.names[provider] = f'node-1_os-acc_{name.lower()}'
    site.placement.names[PROVIDERS['CUSTOM_LICENCE']] = 'licences'
    os_acc.CONF.set_override('resource_classes', ['*'], 'os_acc_nova')
    yield found
    os_acc.CONF.clear_override('resource_classes', 'os_acc_nova')


def instance_of(**extra_specs):
    made = test_nova_driver.new_instance()
    made.flavor = types.SimpleNamespace(extra_specs=extra_specs)
    return made


def image(*traits):
    return types.SimpleNamespace(properties={'traits_required': list(traits)})


def on(node=nova_double.NODE, **resources):
    """Allocations of a node: each class is of a device of its own."""
    found = {node: {'resources': {'VCPU': 2}}}
    for name, amount in resources.items():
        provider = PROVIDERS[name] if node == nova_double.NODE else node
        there = found.setdefault(provider, {'resources': {}})
        there['resources'][name] = amount
    return found


def spawn(site, instance, allocations, image_meta=None, arqs=()):
    site.driver.spawn(
        None,
        instance,
        image_meta or image(),
        None,
        None,
        allocations,
        network_info=[],
        accel_info=list(arqs),
    )


def plugged(instance):
    entries = os_acc._host.journal.entries(instance.uuid)
    return [
        (each.request.resource_class, each.request.traits) for each in entries
    ]


def two():
    return instance_of(
        **{
            'resources:CUSTOM_FPGA': '1',
            'trait:CUSTOM_BIG': 'required',
            'trait:COMPUTE_NET_VIRTIO': 'required',
            'resources1:CUSTOM_DSA': '1',
            'resources1:VGPU': '1',
        }
    )


TWO = {'CUSTOM_FPGA': 1, 'CUSTOM_DSA': 1}
PLUGGED = [('CUSTOM_FPGA', ['CUSTOM_BIG']), ('CUSTOM_DSA', [])]


def test_spawn_and_delete(site, offer):
    instance = two()
    spawn(site, instance, on(**TWO))
    assert plugged(instance) == PLUGGED
    assert {van.uuid for van in os_acc.get_vans(instance.uuid)} == {
        str(uuid.uuid5(uuid.UUID(instance.uuid), f'accelerator {number}'))
        for number in range(2)
    }
    assert {van.owner for van in os_acc.get_vans()} == {'nova'}
    site.driver.destroy(None, instance, [])
    assert plugged(instance) == []


def test_arqs_and_resources_of_one_flavor(site, offer):
    instance = two()
    arq = test_nova_driver.pci(instance)
    spawn(site, instance, on(**TWO), arqs=[arq])
    assert plugged(instance) == [(None, []), *PLUGGED]


def test_the_traits_of_the_image_count_too(site, offer):
    instance = instance_of(**{'resources:CUSTOM_FPGA': '1'})
    spawn(site, instance, on(CUSTOM_FPGA=1), image('CUSTOM_BIG'))
    assert plugged(instance) == [('CUSTOM_FPGA', ['CUSTOM_BIG'])]


def test_a_function_is_programmed(site, offer):
    site.host.driver.programs = True
    site.host.calls.on(
        'prepareVAN', lambda van: setattr(van, 'function_id', 'aes')
    )
    instance = instance_of(
        **{'resources:CUSTOM_FPGA': '1', 'os_acc:function_id': 'aes'}
    )
    spawn(site, instance, on(CUSTOM_FPGA=1))
    (entry,) = os_acc._host.journal.entries(instance.uuid)
    assert entry.request.function_id == 'aes'


@pytest.mark.parametrize(
    'allocations',
    [
        None,
        {},
        {nova_double.NODE: {'resources': {'VGPU': 1}}},
        on(CUSTOM_LICENCE=1),
        # During an evacuation the source is there too. Devices of Nova and
        # Cyborg have providers of their own.
        on(OTHER_NODE, **TWO),
    ],
)
def test_what_is_not_of_os_acc_is_left_to_nova(site, offer, allocations):
    instance = two()
    instance.flavor.extra_specs['resources:CUSTOM_LICENCE'] = '1'
    spawn(site, instance, allocations)
    assert plugged(instance) == []


def test_an_evacuation_plugs_what_is_allocated_here(site, offer):
    instance = two()
    spawn(site, instance, on(**TWO) | on(OTHER_NODE, **TWO))
    assert plugged(instance) == PLUGGED


def test_the_devices_are_not_looked_for_without_need(site, monkeypatch):
    monkeypatch.setattr(
        site.host.driver, 'get_devices', lambda: pytest.fail('not needed')
    )
    for flavor in ({}, {'resources:VGPU': '1'}):
        spawn(site, instance_of(**flavor), on(CUSTOM_FPGA=1))


def test_a_rebuild_plugs_again(site, offer):
    instance = two()
    for _ in range(2):
        spawn(site, instance, on(**TWO))
        first = os_acc.get_vans(instance.uuid)
        # Nova destroys the old guest before it spawns the new one.
        site.driver.destroy(None, instance, [])
    assert len(first.objects) == 2


def test_a_hard_reboot_keeps_them(site, offer):
    instance = two()
    spawn(site, instance, on(**TWO))
    site.log.clear()
    site.hard_reboot(instance)
    assert plugged(instance) == PLUGGED
    assert site.log == ['destroy', 'cleanup', 'guest config', 'launch']


def unplug_by_hand(instance, *vans):
    os_acc.unplug(objects.InstanceInfo(uuid=instance.uuid), list(vans) or None)


def test_a_hard_reboot_plugs_what_is_missing(site, offer):
    instance = two()
    spawn(site, instance, on(**TWO))
    before = os_acc.get_vans(instance.uuid).objects
    site.placement.allocations = on(**TWO)
    for missing in (before, before[:1], before[1:]):
        unplug_by_hand(instance, *missing)
        site.hard_reboot(instance)
        assert sorted(plugged(instance)) == sorted(PLUGGED)
        assert {van.uuid for van in os_acc.get_vans(instance.uuid)} == {
            van.uuid for van in before
        }


def test_placement_is_not_asked_if_nothing_is_missing(site, offer):
    instance = two()
    # Nova's own resource of the flavor is not custom.
    spawn(site, instance, on(**TWO))
    site.placement.allocations = RuntimeError('asked')
    site.hard_reboot(instance)
    assert plugged(instance) == PLUGGED


@pytest.mark.parametrize(
    ('allocations', 'text'),
    [
        ({}, 'resources:CUSTOM_DSA=1, and Placement has no allocation'),
        (on(CUSTOM_DSA=1), 'resources:CUSTOM_FPGA=1'),
        (keystone.ConnectFailure('no route'), 'from Placement: no route'),
    ],
)
def test_no_guest_starts_without_its_accelerators(
    site, offer, allocations, text
):
    instance = two()
    spawn(site, instance, on(**TWO))
    unplug_by_hand(instance)
    site.placement.allocations = allocations
    with pytest.raises(nova_double.NovaException, match=text):
        site.hard_reboot(instance)
    assert plugged(instance) == []


def test_a_class_that_os_acc_does_not_offer_may_be_missing(site, offer):
    instance = instance_of(**{'resources:CUSTOM_LICENCE': '1'})
    spawn(site, instance, {})
    site.hard_reboot(instance)
    assert plugged(instance) == []


def test_a_reverted_resize_plugs_again(site, offer):
    instance = two()
    spawn(site, instance, on(**TWO))
    # A resize to another cell destroys the guest, and does not ask.
    site.driver.destroy(None, instance, [])
    site.placement.allocations = on(**TWO)
    site.driver.finish_revert_migration(None, instance, [], None)
    assert plugged(instance) == PLUGGED


def test_a_failed_spawn_leaves_nothing(site, offer):
    instance = two()
    site.driver.fail_at = 'launch'
    with pytest.raises(RuntimeError, match='no'):
        spawn(site, instance, on(**TWO))
    assert plugged(instance) == []


def test_another_host_is_tried_if_the_device_is_busy(site, offer):
    site.fails(
        'prepareVAN', exception.DeviceBusy(device='fpga', holder='VAN 1')
    )
    with pytest.raises(nova_double.NovaException, match='busy') as caught:
        spawn(site, two(), on(**TWO))
    assert not isinstance(caught.value, nova_double.BuildAbortException)


def test_another_host_is_tried_if_the_device_is_gone(site, offer):
    del offer[1]
    with pytest.raises(nova_double.NovaException) as caught:
        spawn(site, two(), on(**TWO))
    assert not isinstance(caught.value, nova_double.BuildAbortException)
    assert 'CUSTOM_DSA on device custom_dsa: ' in str(caught.value)


def test_another_host_is_tried_if_the_devices_are_unknown(
    site, offer, monkeypatch
):
    def fails():
        raise exception.DiscoveryFailed(offer[:1], errors='it broke')

    monkeypatch.setattr(site.host.driver, 'get_devices', fails)
    with pytest.raises(nova_double.NovaException, match='it broke') as caught:
        spawn(site, two(), on(**TWO))
    assert not isinstance(caught.value, nova_double.BuildAbortException)
    instance = instance_of(**{'resources:CUSTOM_FPGA': '1'})
    spawn(site, instance, on(CUSTOM_FPGA=1))
    assert plugged(instance) == [('CUSTOM_FPGA', [])]


def test_no_other_host_is_tried_if_the_flavor_is_wrong(site, offer):
    for wrong, allocated in (
        ({'resources:CUSTOM_FPGA': '2'}, 1),
        ({'resources:CUSTOM_FPGA': '1', 'os_acc:functoin': 'aes'}, 1),
    ):
        with pytest.raises(nova_double.BuildAbortException):
            spawn(site, instance_of(**wrong), on(CUSTOM_FPGA=allocated))


def test_no_suspend(site, offer):
    site.driver.suspend(None, two())
    assert site.log == ['suspend']
    instance = two()
    spawn(site, instance, on(**TWO))
    site.log.clear()
    with pytest.raises(
        nova_double.InstanceFaultRollback, match='has 2 accelerators'
    ) as caught:
        site.driver.suspend(None, instance)
    assert site.log == []
    # Nova sets the instance back to the state that it had.
    assert isinstance(
        caught.value.inner_exception, nova_double.InstanceSuspendFailure
    )
