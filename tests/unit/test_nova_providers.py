# SPDX-License-Identifier: Apache-2.0

"""What the compute driver reports to Placement, on a stand-in for Nova."""

from __future__ import annotations

import pathlib
import sys
import threading
import types
import uuid

from keystoneauth1 import exceptions as keystone
import nova_double
import provider_tree
import pytest
import test_nova_driver

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.placement import functions
from os_acc.programming import hooks

site = test_nova_driver.site
CLASS = 'CUSTOM_FPGA'
MINE, HIS = 'CUSTOM_MINE', 'CUSTOM_OF_A_DEPLOYER'
AES = functions.trait('aes')


def device(name='fpga0', number=2, state='free', function=None, **values):
    return objects.Device(
        address=name,
        driver='recording',
        resource_class=CLASS,
        traits=[MINE],
        programming='single',
        function_id=function,
        functions={'': function},
        handles=[
            objects.DeviceHandleInfo(
                handle=objects.TestHandle(name=f'{name}-{each}'),
                state=state,
                region='',
            )
            for each in range(number)
        ],
        handles_total=number,
        handles_free=number if state == 'free' else 0,
        **values,
    )


@pytest.fixture
def devices(site, monkeypatch):
    """The devices of the host. An exception is raised."""
    found = types.SimpleNamespace(there=[device()])

    def get():
        if isinstance(found.there, Exception):
            raise found.there
        return found.there

    monkeypatch.setattr(site.host.driver, 'get_devices', get)
    os_acc.CONF.set_override('resource_classes', ['*'], 'os_acc_nova')
    yield found
    os_acc.CONF.clear_override('resource_classes', 'os_acc_nova')


@pytest.fixture
def tree():
    return provider_tree.Tree()


def report(site, tree, allocations=None):
    site.driver.update_provider_tree(tree, 'node-1', allocations)
    return tree.totals()


def child(tree, name='fpga0'):
    return tree.data(f'node-1_os-acc_{name}')


def test_each_device_is_reported(site, devices, tree):
    devices.there.append(device('fpga1', function='aes', health='unhealthy'))
    assert report(site, tree) == {
        'fpga0': {CLASS: (2, 0)},
        'fpga1': {CLASS: (2, 2)},
    }
    assert tree.data('node-1').inventory.keys() == {'VCPU'}
    assert child(tree).traits == {MINE, functions.EMPTY}
    assert child(tree, 'fpga1').traits == {MINE, AES}
    uuid_before = child(tree).uuid
    assert len(report(site, tree)) == 2
    assert child(tree).uuid == uuid_before


@pytest.mark.parametrize('wrong', ['CUSTOM_GPU*', 'VGPU*', 'xCUSTOM_A', '**'])
def test_a_class_that_could_never_match_is_refused(site, wrong):
    with pytest.raises(ValueError, match='regex'):
        os_acc.CONF.set_override('resource_classes', [wrong], 'os_acc_nova')


@pytest.mark.parametrize('chosen', [[], ['CUSTOM_OTHER']])
def test_only_the_chosen_classes_are_reported(site, devices, tree, chosen):
    report(site, tree)
    os_acc.CONF.set_override('resource_classes', chosen, 'os_acc_nova')
    assert report(site, tree) == {}


def test_a_function_changes_and_a_deployer_s_trait_stays(site, devices, tree):
    report(site, tree)
    tree.update_traits(child(tree).name, {*child(tree).traits, HIS, 'HW_X'})
    devices.there = [device(function='aes')]
    report(site, tree)
    assert child(tree).traits == {MINE, AES, HIS, 'HW_X'}


def test_a_trait_of_the_device_that_is_gone_is_removed(site, devices, tree):
    report(site, tree)
    tree.update_traits(child(tree).name, {*child(tree).traits, HIS})
    devices.there[0].traits = []
    before = child(tree).traits
    report(site, tree)
    assert child(tree).traits == {functions.EMPTY, HIS}
    # Placement has refused the change: the next report removes it again.
    tree.update_traits(child(tree).name, before)
    report(site, tree)
    assert child(tree).traits == {functions.EMPTY, HIS}


def test_a_trait_that_the_deployer_set_first_stays_his(site, devices, tree):
    tree.new_child('node-1_os-acc_fpga0', 'node-1')
    tree.update_traits(child(tree).name, {MINE})
    report(site, tree)
    devices.there[0].traits = []
    report(site, tree)
    assert child(tree).traits == {MINE, functions.EMPTY}


def test_without_its_notes_os_acc_removes_its_own_traits_only(
    site, devices, tree
):
    report(site, tree)
    path = f'{os_acc.CONF.os_acc.state_path}/placement-traits.json'
    for text in ('[', '[]', '{"a": 1}'):
        with open(path, 'w') as file:
            file.write(text)
        devices.there = [device(function='aes')]
        report(site, tree)
        assert child(tree).traits == {MINE, AES}


def test_what_is_no_trait_of_placement_is_left_out(site, devices, tree):
    devices.there[0].traits = ['NO_SUCH_TRAIT', 'HW_CPU_X86_AVX2']
    report(site, tree)
    assert child(tree).traits == {'HW_CPU_X86_AVX2', functions.EMPTY}


def test_a_device_that_vanishes_is_removed(site, devices, tree):
    report(site, tree)
    devices.there = [device('fpga1')]
    assert report(site, tree) == {'fpga1': {CLASS: (2, 0)}}


def test_an_allocation_keeps_a_device_that_vanishes(site, devices, tree):
    report(site, tree)
    used = {str(uuid.uuid4()): {'resources': {CLASS: 1}}}
    site.placement.used = {child(tree).uuid: used}
    devices.there = []
    # Just that: nothing more can be allocated.
    assert report(site, tree) == {'fpga0': {CLASS: (1, 0)}}
    assert report(site, tree) == {'fpga0': {CLASS: (1, 0)}}
    site.placement.used = {}
    devices.there = [device('fpga1')]
    assert report(site, tree) == {'fpga1': {CLASS: (2, 0)}}


def test_nothing_changes_if_placement_does_not_answer(site, devices, tree):
    report(site, tree)
    site.placement.used = keystone.ConnectFailure('no route')
    devices.there = []
    assert report(site, tree) == {'fpga0': {CLASS: (2, 0)}}


@pytest.mark.parametrize(
    'error',
    [
        exception.DiscoveryFailed([], errors='it broke'),
        exception.JournalError(reason='it is full'),
    ],
)
def test_a_failed_discovery_withdraws_nothing(site, devices, tree, error):
    report(site, tree)
    devices.there = error
    assert report(site, tree) == {'fpga0': {CLASS: (2, 0)}}


def test_a_journal_that_cannot_be_read_withdraws_nothing(
    site, devices, tree, monkeypatch
):
    report(site, tree)

    def fails(*args):
        raise exception.JournalError(reason='it is full')

    monkeypatch.setattr(os_acc, 'get_vans', fails)
    assert report(site, tree) == {'fpga0': {CLASS: (2, 0)}}


def test_a_device_that_cannot_be_read_stays(site, devices, tree):
    report(site, tree)
    devices.there = [
        objects.Device(
            address='fpga0',
            driver='recording',
            health='unhealthy',
            handles_total=0,
            handles_free=0,
        )
    ]
    assert report(site, tree) == {'fpga0': {CLASS: (2, 0)}}


def test_a_device_that_the_host_uses_has_no_inventory(site, devices, tree):
    report(site, tree)
    devices.there = [device(state='host')]
    assert report(site, tree) == {'fpga0': {}}


# The move from the provider of the compute node.


def on_root(*consumers, amount=1):
    return {
        each: {
            'allocations': {
                nova_double.NODE: {'resources': {'VCPU': 2, CLASS: amount}}
            }
        }
        for each in consumers
    }


def before_the_move(tree):
    """What an earlier version has reported."""
    tree.update_inventory(
        'node-1', {'VCPU': {'total': 4}, CLASS: {'total': 3}}
    )
    tree.update_traits('node-1', {MINE, HIS, 'HW_X'})


def allocated(allocations, consumer, tree):
    return {
        tree.data(uuid).name.removeprefix('node-1_os-acc_'): each['resources']
        for uuid, each in allocations[consumer]['allocations'].items()
    }


def nova_error(name):
    return getattr(sys.modules['nova.exception'], name)


def move(site, tree, allocations):
    """Do what Nova's resource tracker does when nova-compute starts."""
    with pytest.raises(nova_error('ReshapeNeeded')):
        report(site, tree)
    return report(site, tree, allocations)


def plugged(site, instance, device, handle):
    """Plug what a flavor requests, as an earlier version did."""
    request = objects.AcceleratorRequest(
        uuid=str(uuid.uuid5(uuid.UUID(instance), 'accelerator 0')),
        resource_class=CLASS,
    )

    def prepare(van):
        van.handle = objects.TestHandle(name=handle)
        van.device = device

    site.host.calls.on('prepareVAN', prepare)
    os_acc.plug(objects.InstanceInfo(uuid=instance), [request])
    return request.uuid


def test_allocations_move_to_the_devices_of_the_instances(site, devices, tree):
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    made = plugged(site, first, 'fpga1', 'fpga1-0')
    devices.there = [device(number=1), device('fpga1')]
    devices.there[1].handles[0].state = 'used'
    devices.there[1].handles[0].holder = made
    devices.there[1].handles_free = 1
    before_the_move(tree)
    # The second one has no VAN: it has been unplugged.
    allocations = on_root(first, second)
    assert move(site, tree, allocations) == {
        'fpga0': {CLASS: (1, 0)},
        'fpga1': {CLASS: (2, 0)},
    }
    vcpus = {'node-1': {'VCPU': 2}}
    assert allocated(allocations, first, tree) == {
        **vcpus,
        'fpga1': {CLASS: 1},
    }
    assert allocated(allocations, second, tree) == {
        **vcpus,
        'fpga0': {CLASS: 1},
    }
    assert tree.data('node-1').inventory.keys() == {'VCPU'}
    assert tree.data('node-1').traits == {HIS, 'HW_X'}
    assert len(report(site, tree)) == 2


def test_an_allocation_moves_to_a_device_that_is_gone(site, devices, tree):
    instance = str(uuid.uuid4())
    plugged(site, instance, 'fpga7', 'fpga7-0')
    before_the_move(tree)
    allocations = on_root(instance)
    del allocations[instance]['allocations'][nova_double.NODE]['resources'][
        'VCPU'
    ]
    assert move(site, tree, allocations) == {
        'fpga0': {CLASS: (2, 0)},
        'fpga7': {CLASS: (1, 0)},
    }
    assert allocated(allocations, instance, tree) == {'fpga7': {CLASS: 1}}


def test_an_allocation_without_a_device_is_named(site, devices, tree):
    before_the_move(tree)
    instance = str(uuid.uuid4())
    with pytest.raises(nova_error('ReshapeFailed'), match=instance):
        move(site, tree, on_root(instance, amount=3))


def test_other_classes_of_the_compute_node_are_nova_s(
    site, devices, tree, monkeypatch
):
    os_acc.CONF.set_override('resource_classes', ['CUSTOM_A'], 'os_acc_nova')
    before_the_move(tree)
    assert report(site, tree) == {}


def test_nothing_moves_while_nova_compute_runs(site, devices, tree):
    report(site, tree)
    before_the_move(tree)
    assert report(site, tree) == {'fpga0': {CLASS: (2, 0)}}


@pytest.mark.parametrize('maker', ['os-acc', 'me'])
def test_no_file_may_offer_the_same(site, devices, maker):
    directory = sys.modules['nova.conf'].CONF.compute.provider_config_location
    path = f'{directory}/os-acc.yaml'

    pathlib.Path(directory).mkdir(parents=True)
    pathlib.Path(path).write_text(
        f'meta: {{generated_by: {maker}}}\n'
        'providers: [{inventories: {additional: '
        f'[CUSTOM_LICENCE: {{total: 1}}, {CLASS}: {{total: 1}}]}}}}]\n'
    )
    with pytest.raises(
        nova_error('InvalidConfiguration'), match='nova-compute'
    ) as caught:
        site.new_driver().init_host('host-1')
    assert path in str(caught.value)
    if maker == 'me':
        os_acc.CONF.set_override(
            'resource_classes', ['CUSTOM_A'], 'os_acc_nova'
        )
        driver = site.new_driver()
        driver.init_host('host-1')
        driver.cleanup_host('host-1')


# The report after a programming.

EVENT = hooks.ProgrammedEvent(
    'fpga0', 'recording', None, '', 'aes', hooks.PROGRAMMED
)


def test_a_programming_asks_for_a_report(site, devices):
    programmed = sys.modules['os_acc_nova.programmed']
    reporting = sys.modules['os_acc_nova.reporting']
    manager = types.SimpleNamespace(calls=0, error=None)

    def update(context):
        manager.calls += 1
        if manager.error is not None:
            raise manager.error

    manager.update_available_resource = update
    watcher = reporting.Watcher(types.SimpleNamespace(_compute=manager))
    watcher.look()
    assert manager.calls == 0
    programmed.ask(EVENT)
    for _ in range(2):
        watcher.look()
        assert manager.calls == 1
    # Also if it was another process's, and if the report fails.
    manager.error = RuntimeError('no Placement')
    programmed.ask(EVENT)
    watcher.look()
    assert manager.calls == 2


def test_nova_compute_watches_until_it_is_stopped(site, devices, monkeypatch):
    reporting = sys.modules['os_acc_nova.reporting']
    monkeypatch.setattr(reporting, 'PERIOD', 0.01)
    driver = site.new_driver()

    reported = threading.Event()
    driver.virtapi = types.SimpleNamespace(
        _compute=types.SimpleNamespace(
            update_available_resource=lambda context: reported.set()
        )
    )
    driver.init_host('host-1')
    sys.modules['os_acc_nova.programmed'].ask(EVENT)
    assert reported.wait(60)
    driver.cleanup_host('host-1')
