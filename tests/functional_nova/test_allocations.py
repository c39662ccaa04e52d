# SPDX-License-Identifier: Apache-2.0

"""Accelerators without Cyborg: what a flavor requests of which device."""

from __future__ import annotations

import types
from unittest import mock

from conftest import NODE
from conftest import NODE_UUID
from conftest import PF
from conftest import PROVIDER
from keystoneauth1 import exceptions as keystone
from lxml import etree
from nova import exception as nova_exception
from nova import objects as nova_objects
from nova.api.validation.extra_specs import validators
from nova.compute import provider_tree
import nova.conf
from nova.scheduler.client import report
import os_traits
import pytest

import os_acc
from os_acc_nova import allocations
from os_acc_nova import errors
from os_acc_nova import providers

CONF = nova.conf.CONF
CLASS = 'CUSTOM_PCI_8086_4940'
FLAVOR = {
    f'resources:{CLASS}': '1',
    'trait:CUSTOM_PCI_VENDOR_8086': 'required',
    'trait:COMPUTE_NET_VIRTIO': 'required',
}


@pytest.fixture
def placement(monkeypatch):
    """What Placement answers; no allocations: it does not answer.

    The names of the resource providers are by UUID.
    """
    answers = types.SimpleNamespace(
        allocations={PROVIDER: {'resources': {CLASS: 1}}},
        names={
            PROVIDER: providers.name_of(NODE, PF),
            NODE_UUID: NODE,
            'another': 'another',
        },
    )

    def ask(context, uuid):
        if answers.allocations is None:
            raise keystone.ConnectFailure('no route to host')
        return {'allocations': answers.allocations}

    client = types.SimpleNamespace(
        get_allocs_for_consumer=ask,
        get_resource_provider_name=lambda context, uuid: answers.names[uuid],
    )
    monkeypatch.setattr(report, 'report_client_singleton', lambda: client)
    return answers


@pytest.fixture
def reported(site, placement):
    """nova-compute reports the devices."""
    CONF.set_override('resource_classes', ['*'], 'os_acc_nova')
    yield
    CONF.clear_override('resource_classes', 'os_acc_nova')


@pytest.fixture
def instance(site):
    return site.instance(**FLAVOR)


def hostdevs(site, instance):
    return [
        etree.tostring(each, encoding='unicode')
        for each in etree.fromstring(site.xml(instance)).iter('hostdev')
    ]


def tree():
    made = provider_tree.ProviderTree()
    made.new_root(NODE, NODE_UUID)
    made.update_traits(NODE, [os_traits.COMPUTE_NODE])
    made.update_inventory(NODE, {'VCPU': {'total': 4}})
    return made


def test_each_device_is_a_provider_of_nova_s_tree(reported):
    made = tree()
    providers.update(made, NODE, providers.look())
    data = made.data(providers.name_of(NODE, PF))
    assert data.parent_uuid == NODE_UUID
    assert data.inventory == {
        CLASS: {
            'total': 4,
            'reserved': 0,
            'min_unit': 1,
            'max_unit': 4,
            'step_size': 1,
            'allocation_ratio': 1.0,
        }
    }
    assert 'CUSTOM_PCI_VENDOR_8086' in data.traits
    assert made.data(NODE).inventory == {'VCPU': {'total': 4}}


@pytest.mark.parametrize(
    'key',
    [
        f'resources:{CLASS}',
        f'resources1:{CLASS}',
        f'resources_QAT:{CLASS}',
        'os_acc:function_id',
        'os_acc_QAT:bitstream',
    ],
)
def test_nova_accepts_the_keys_of_a_flavor(key):
    validators.validate(key, '1')


def test_spawn_reboot_and_delete(site, reported, instance):
    site.spawn(instance, [], {CLASS: 1, 'VCPU': 2})
    (van,) = os_acc.get_vans(instance.uuid)
    (device,) = hostdevs(site, instance)
    assert f'ua-acc-{van.uuid}' in device
    assert site.kernel.driver_of(van.handle.address) == 'vfio-pci'
    site.hard_reboot(instance, [])
    assert hostdevs(site, instance) == [device]
    site.driver.destroy(site.context, instance, [])
    assert os_acc.get_vans(instance.uuid).objects == []


def test_arqs_and_resources(site, reported, instance, vgpu):
    site.spawn(instance, [vgpu(instance)], {CLASS: 1})
    assert len(hostdevs(site, instance)) == 2


def test_more_than_there_are(site, reported):
    for _ in range(4):
        site.spawn(site.instance(**FLAVOR), [], {CLASS: 1})
    with pytest.raises(nova_exception.NovaException) as caught:
        site.spawn(site.instance(**FLAVOR), [], {CLASS: 1})
    # Nova tries another host.
    assert not isinstance(caught.value, nova_exception.BuildAbortException)
    assert 'No device for' in caught.value.format_message()


def test_the_traits_of_an_image(site, reported, instance):
    meta = nova_objects.ImageMeta.from_dict(
        {'properties': {'trait:CUSTOM_PCI_PRODUCT_4940': 'required'}}
    )
    allocated = {PROVIDER: {'resources': {CLASS: 1}}}
    requests = allocations.to_requests(
        site.context, instance, meta, allocated, [NODE]
    )
    (request,) = requests
    assert request.traits == [
        'CUSTOM_PCI_PRODUCT_4940',
        'CUSTOM_PCI_VENDOR_8086',
    ]


def test_no_suspend(site, reported, instance):
    site.spawn(instance, [], {CLASS: 1})
    with pytest.raises(nova_exception.InstanceFaultRollback) as caught:
        site.driver.suspend(site.context, instance)
    assert 'has 1 accelerators' in str(caught.value.inner_exception)
    assert PF in {van.device for van in os_acc.get_vans(instance.uuid)}


def test_a_reverted_resize_has_its_accelerators(
    site, reported, instance, placement, monkeypatch
):
    site.spawn(instance, [], {CLASS: 1})
    # As a resize to another cell does, without asking the driver.
    site.driver.destroy(site.context, instance, [], destroy_disks=False)
    assert os_acc.get_vans(instance.uuid).objects == []
    site.driver.image_backend = mock.MagicMock()
    monkeypatch.setattr(
        site.driver, '_finish_revert_migration_vtpm', mock.Mock()
    )
    site.driver.finish_revert_migration(
        site.context, instance, [], mock.Mock(), power_on=False
    )
    (van,) = os_acc.get_vans(instance.uuid)
    (device,) = hostdevs(site, instance)
    assert f'ua-acc-{van.uuid}' in device


def test_no_start_while_placement_does_not_answer(
    site, reported, instance, placement
):
    site.spawn(instance, [], {CLASS: 1})
    os_acc.unplug(os_acc.objects.InstanceInfo(uuid=instance.uuid))
    placement.allocations = None
    with pytest.raises(errors.AcceleratorPlugFailure, match='no route'):
        site.hard_reboot(instance, [])
    placement.allocations = {PROVIDER: {'resources': {CLASS: 1}}}
    site.hard_reboot(instance, [])
    assert len(hostdevs(site, instance)) == 1


@pytest.mark.parametrize('elsewhere', [True, False])
def test_resources_that_are_not_ours(site, reported, placement, elsewhere):
    licence = 'CUSTOM_LICENCE'
    instance = site.instance(**{f'resources:{licence}': '2'})
    placement.allocations = (
        {'another': {'resources': {licence: 2}}} if elsewhere else {}
    )
    site.spawn(instance, [])
    site.hard_reboot(instance, [])
    assert hostdevs(site, instance) == []


def test_a_part_is_missing(site, reported, placement):
    instance = site.instance(**FLAVOR | {f'resources:{CLASS}': '3'})
    placement.allocations = {PROVIDER: {'resources': {CLASS: 3}}}
    site.spawn(instance, [], {CLASS: 3})
    first, second, third = os_acc.get_vans(instance.uuid)
    os_acc.unplug(os_acc.objects.InstanceInfo(uuid=instance.uuid), [second])
    site.hard_reboot(instance, [])
    assert len(hostdevs(site, instance)) == 3
    assert {van.uuid for van in os_acc.get_vans(instance.uuid)} == {
        first.uuid,
        second.uuid,
        third.uuid,
    }
