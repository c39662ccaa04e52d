# SPDX-License-Identifier: Apache-2.0

"""Binding conditions: a claim is prepared before its Pod is bound."""

from __future__ import annotations

import threading

import charts
from node_parts import DRIVER
from node_parts import GPU
from node_parts import NAME
from node_parts import PAIR
import pytest

import os_acc
from os_acc_dra import binding
from os_acc_dra import offers
from os_acc_dra import publisher as publisher_module
from os_acc_dra import slices

ONE, TWO = (offers.name_of(f'pci/{each}') for each in (GPU, PAIR[0]))
PROGRAMMED, FAILED = f'{DRIVER}/programmed', f'{DRIVER}/failed'
FIELDS = {'bindsToNode', 'bindingConditions', 'bindingFailureConditions'}
CLAIMS = '/apis/resource.k8s.io/v1/namespaces/default/resourceclaims'


# --- the slices


@pytest.fixture
def publish(node, monkeypatch):
    """Publish, where one device is programmed."""
    node.server.put(
        f'/api/v1/nodes/{NAME}',
        {'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': NAME}},
    )
    get_devices = os_acc.get_devices

    def programmed():
        found = get_devices()
        for each in found:
            if each.address == GPU:
                each.programming = 'single'
        return found

    monkeypatch.setattr(os_acc, 'get_devices', programmed)
    made = publisher_module.Publisher(
        node.cluster,
        DRIVER,
        NAME,
        1.0,
        features=slices.Features(conditions=True),
    )

    def do():
        made.publish()
        return {
            device['name']: FIELDS & device.keys()
            for each in node.server.slices()
            for device in each['spec'].get('devices', ())
        }

    return do


@pytest.mark.parametrize('version', ['1.34', '1.37'])
def test_what_a_slice_says(node, publish, version):
    """Only of the device that is programmed."""
    node.server.version = version
    found = publish()
    assert found.pop(ONE) == FIELDS
    assert found
    assert not any(found.values())


def test_a_server_that_drops_them(node, publish):
    """The device is offered all the same: its Pod waits after its binding."""
    node.server.disabled = FIELDS
    assert publish()[ONE] == set()
    before = len(node.server.calls)
    publish()
    assert len(node.server.calls) == before + 1  # it has learnt that


# --- the claims


@pytest.fixture
def binder(node):
    """It has the rights of the manifests with bindingConditions."""
    role = charts.of_kind(
        charts.objects(charts.render(bindingConditions=True)), 'ClusterRole'
    )
    node.server.rules = role['rules']
    return binding.Binder(
        node.cluster,
        DRIVER,
        NAME,
        str(node.kubelet.directory),
        node.calls,
        lambda: True,
    )


def allocate(node, name, device, **more):
    """A claim whose Pod is not bound yet."""
    claim = node.claim(name, device)
    (result,) = claim['status']['allocation']['devices']['results']
    result['bindingConditions'] = [PROGRAMMED]
    result['bindingFailureConditions'] = [FAILED]
    claim['status'].update(more)
    return node.server.put(f'{CLAIMS}/{name}', claim)


def said(node, name):
    """The conditions of the device, with their messages."""
    found = node.cluster.claim('default', name)['status'].get('devices', ())
    return {
        each['type']: each['message']
        for device in found
        if device['driver'] == DRIVER
        for each in device['conditions']
    }


def settle():
    """Wait for what a look has begun."""
    for each in threading.enumerate():
        if each.name.startswith('binding '):
            each.join(60)


def look(binder):
    binder.look()
    settle()


def test_a_claim_is_prepared_before_its_pod_is_bound(node, binder):
    plugs = []
    node.during.append(lambda: plugs.append(1))
    other = {
        'driver': 'other.example.org',
        'pool': 'p',
        'device': 'd',
        'conditions': [],
    }
    claim = node.claim('one', ONE, 'd')
    first, second = claim['status']['allocation']['devices']['results']
    first['bindingConditions'] = [PROGRAMMED]
    second.update(driver=other['driver'], pool=other['pool'])
    claim['status']['devices'] = [other]
    node.server.put(f'{CLAIMS}/one', claim)
    look(binder)
    assert list(said(node, 'one')) == [PROGRAMMED]
    devices = node.cluster.claim('default', 'one')['status']['devices']
    assert devices[0] == other  # what others say stays
    # The next look does nothing, and so does the kubelet's Prepare.
    before = len(node.server.calls)
    look(binder)
    assert len(node.server.calls) == before + 1
    node.kubelet.prepare(claim)
    assert len(plugs) == 1
    assert {right for right in node.server.used if '/' in right[1]} == {
        ('resource.k8s.io', 'resourceclaims/status', 'update'),
        ('resource.k8s.io', 'resourceclaims/driver', 'associated-node:update'),
    }


def test_a_device_that_cannot_be_prepared(node, binder):
    """The scheduler is told why, and chooses another one."""
    holder = node.claim('holder', ONE)
    node.kubelet.prepare(holder)
    claim = allocate(node, 'one', ONE)
    look(binder)
    ((kind, message),) = said(node, 'one').items()
    assert kind == FAILED
    assert holder['metadata']['uid'] in message
    assert len(os_acc.get_vans(claim['metadata']['uid'])) == 0


def test_what_is_not_for_this_node(node, binder):
    node.claim('plain', ONE)
    claim = allocate(node, 'away', TWO)
    (result,) = claim['status']['allocation']['devices']['results']
    result['pool'] = 'node-2'
    node.server.put(f'{CLAIMS}/away', claim)
    look(binder)
    assert len(os_acc.get_vans()) == 0


def test_another_writer(node, binder):
    """409: the next look says it."""
    allocate(node, 'one', ONE)
    with node.server.failing('PUT', 409):
        look(binder)
    assert said(node, 'one') == {}
    look(binder)
    assert list(said(node, 'one')) == [PROGRAMMED]
    assert len(os_acc.get_vans()) == 1


def test_a_server_that_is_down(node, binder):
    """Nothing is said of the device: it has not failed."""
    allocate(node, 'one', ONE)
    with node.server.failing('GET /apis/resource.k8s.io/v1/names', 0):
        look(binder)
    assert said(node, 'one') == {}
    look(binder)
    assert list(said(node, 'one')) == [PROGRAMMED]


def test_a_pod_that_is_never_bound(node, binder):
    """Its claim is gone, and the kubelet has never asked for it."""
    allocate(node, 'one', ONE)
    look(binder)
    assert len(os_acc.get_vans()) == 1
    node.server.delete('/resourceclaims/one')
    look(binder)
    assert len(os_acc.get_vans()) == 0


def test_a_claim_that_the_kubelet_knows_stays(node, binder):
    claim = allocate(node, 'one', ONE)
    look(binder)
    node.kubelet.prepare(claim)
    node.server.delete('/resourceclaims/one')
    look(binder)
    assert len(os_acc.get_vans()) == 1


def test_one_process_of_two_does_it(node):
    allocate(node, 'one', ONE)
    before = len(node.server.calls)
    other = binding.Binder(
        node.cluster,
        DRIVER,
        NAME,
        str(node.kubelet.directory),
        node.calls,
        lambda: False,
    )
    other.look()
    assert len(node.server.calls) == before
