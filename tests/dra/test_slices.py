# SPDX-License-Identifier: Apache-2.0

"""ResourceSlices: what they say, their limits, and that they stay."""

from __future__ import annotations

import itertools
import random
import threading
import uuid

import kubernetes_validate
from node_parts import DRIVER
from node_parts import GPU
from node_parts import NAME
from node_parts import PAIR
from node_parts import VFS
from node_parts import spec
import pytest
import slice_limits

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.journal import health as rows
from os_acc_dra import counters
from os_acc_dra import errors
from os_acc_dra import offers
from os_acc_dra import publisher as publisher_module
from os_acc_dra import slices as slices_module

ONE = offers.name_of(f'pci/{GPU}')
VERSIONS = ('1.34', '1.35', '1.36', '1.37')


@pytest.fixture
def publisher(node):
    node.server.put(
        f'/api/v1/nodes/{NAME}',
        {'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': NAME}},
    )
    return publisher_module.Publisher(node.cluster, DRIVER, NAME, 0.01)


def published(node):
    """The devices of the newest generation, by their names."""
    found = node.server.slices()
    newest = max(each['spec']['pool']['generation'] for each in found)
    of = [s for s in found if s['spec']['pool']['generation'] == newest]
    assert {s['spec']['pool']['resourceSliceCount'] for s in of} == {len(of)}
    return {
        device['name']: device
        for each in of
        for device in each['spec'].get('devices', ())
    }


def sets(node):
    return [
        each
        for found in node.server.slices()
        for each in found['spec'].get('sharedCounters', ())
    ]


# --- names


@pytest.mark.parametrize(
    ('identity', 'name'),
    [
        ('pci/0000:3b:00.1', 'pci-0000-3b-00-1'),
        ('pci/10000:3b:00.1', 'pci-10000-3b-00-1'),
    ],
)
def test_the_name_of_a_function(identity, name):
    assert offers.name_of(identity) == name


def test_names_are_labels_and_never_the_same():
    identities = {
        'file/a+b',
        'file/a-b',
        'file/A-b',
        'file/virtual+mem+zero',
        'mdev/' + str(uuid.uuid4()),
        'block/uuid.' + 'x' * 200,
        'block/uuid.' + 'x' * 201,
        'file/-',
        'pci/0000:3b:00.0',
        'pci/0000-3b-00-0',
    }
    names = {offers.name_of(each) for each in identities}
    assert len(names) == len(identities)
    for each in names:
        assert slice_limits.is_label(each)


# --- what is published


def test_the_devices_of_a_node(node, publisher):
    publisher.publish()
    (devices,) = (s for s in node.server.slices() if s['spec'].get('devices'))
    assert devices['spec']['pool'] == {
        'name': NAME,
        'generation': 1,
        'resourceSliceCount': 2,  # one has the counters
    }
    (owner,) = devices['metadata']['ownerReferences']
    assert (owner['kind'], owner['name'], owner['controller']) == (
        'Node',
        NAME,
        True,
    )
    found = published(node)
    assert set(found) == {
        offers.name_of(f'pci/{each}') for each in (*VFS, GPU, *PAIR)
    }
    values = found[ONE]['attributes']
    assert values['kind'] == {'string': 'pci'}
    assert values['vendorID'] == {'string': '10de'}
    assert values['numaNode'] == {'int': 1}
    assert values['resource.kubernetes.io/pciBusID'] == {'string': GPU}
    assert 'taints' not in found[ONE]


def test_what_has_not_changed_is_not_written(node, publisher):
    publisher.publish()
    before = len(node.server.calls)
    publisher.publish()
    assert node.server.calls[before:] == [
        'GET /apis/resource.k8s.io/v1/resourceslices'
    ]


def test_what_is_published_is_valid(node, publisher):
    publisher.publish()
    for each in node.server.slices():
        del each['spec']['ofALaterVersion']  # the server has added it
        assert slice_limits.faults(each) == []
        # The optional fields are in the schemas of all versions.
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


def test_a_node_without_devices(node, publisher):
    spec()
    publisher.publish()
    (only,) = node.server.slices()
    assert not only['spec'].get('devices')


def test_a_device_that_comes_and_goes(node, publisher):
    publisher.publish()
    before = published(node)
    node.kernel.add_function('0000:08:00.0', '10de:1eb8', 0x030200)
    publisher.publish()
    new = offers.name_of('pci/0000:08:00.0')
    assert published(node).keys() == before.keys() | {new}
    node.kernel.remove_function('0000:08:00.0')
    publisher.publish()
    assert published(node).keys() == before.keys()


def test_a_change_of_one_slice_keeps_the_generation(node, publisher):
    publisher.publish()
    node.kernel.add_function('0000:08:00.0', '10de:1eb8', 0x030200)
    publisher.publish()
    generations = {
        each['spec']['pool']['generation'] for each in node.server.slices()
    }
    assert generations == {1}


# --- they stay


def test_slices_that_the_kubelet_deletes(node, publisher):
    publisher.publish()
    before = published(node)
    assert node.server.delete('/resourceslices/') == 2
    publisher.publish()
    assert published(node) == before


def test_slices_that_somebody_changes(node, publisher):
    publisher.publish()
    before = published(node)
    for each in node.server.slices():
        each['spec'].pop('devices', None)
        path = '/apis/resource.k8s.io/v1/resourceslices/'
        node.server.put(path + each['metadata']['name'], each)
    publisher.publish()
    assert published(node) == before


def test_one_slice_of_several_is_deleted(node, publisher):
    """All get a new generation, so that no reader mixes them."""
    publisher.publish()
    before = published(node)
    assert node.server.delete(f'{NAME}-1') == 1
    publisher.publish()
    assert published(node) == before
    assert {s['spec']['pool']['generation'] for s in node.server.slices()} == {
        2
    }


def test_a_slice_that_is_left_over(node, publisher):
    publisher.publish()
    extra = node.server.slices()[0]
    extra['metadata']['name'] = 'of-an-earlier-version'
    node.server.put(
        '/apis/resource.k8s.io/v1/resourceslices/of-an-earlier-version', extra
    )
    publisher.publish()
    names = {each['metadata']['name'] for each in node.server.slices()}
    assert names == {f'{DRIVER}-{NAME}-0', f'{DRIVER}-{NAME}-1'}


@pytest.mark.parametrize(
    ('part', 'status'),
    [('GET', 0), ('POST', 403), ('POST', 500), ('nodes/', 404)],
)
def test_a_server_that_fails(node, publisher, part, status):
    with node.server.failing(part, status):
        with pytest.raises(errors.ServerError):
            publisher.publish()
    publisher.publish()
    assert published(node)


def test_another_writer(node, publisher):
    """409: it reads the slices again, and tries again."""
    publisher.publish()
    node.kernel.add_function('0000:08:00.0', '10de:1eb8', 0x030200)
    with node.server.failing('PUT', 409):
        with pytest.raises(errors.ServerError, match='409'):
            publisher.publish()
    publisher.publish()
    assert offers.name_of('pci/0000:08:00.0') in published(node)


def test_one_process_of_two_publishes(node, publisher):
    """The other one looks at the devices all the same, for their health."""
    publisher.publish()
    mine = threading.Event()
    other = publisher_module.Publisher(
        node.cluster, DRIVER, NAME, 1.0, mine.is_set
    )
    node.server.delete('/resourceslices/')
    other.publish()
    assert node.server.slices() == []
    assert ONE in other.observed().offers
    mine.set()
    other.publish()
    assert ONE in published(node)


class Driver:
    """A discovery that fails for all but some devices."""

    def __init__(self, monkeypatch, found):
        self.found = found
        monkeypatch.setattr(os_acc, 'get_devices', self)

    def __call__(self):
        raise exception.DiscoveryFailed(self.found, errors='driver pci: no')


def test_a_failed_discovery_withdraws_nothing(node, publisher, monkeypatch):
    publisher.publish()
    before = published(node)
    Driver(monkeypatch, [])
    publisher.publish()
    assert published(node) == before
    # Also not at the start of a new process.
    again = publisher_module.Publisher(node.cluster, DRIVER, NAME, 1.0)
    again.publish()
    assert published(node) == before


def test_a_failed_discovery_on_a_new_node(node, publisher, monkeypatch):
    """What the other drivers have found is better than nothing."""
    found = [d for d in os_acc.get_devices() if d.address == GPU]
    Driver(monkeypatch, found)
    publisher.publish()
    assert set(published(node)) == {ONE}


def test_it_writes_again_by_its_watch(node, publisher, monkeypatch):
    """Deleted, cut, too old: within moments the slices are there again."""
    slow = publisher_module.Publisher(node.cluster, DRIVER, NAME, 3600.0)
    slow.start()
    try:
        assert until(lambda: len(node.server.slices()) == 2)
        node.server.delete('/resourceslices/')
        assert until(lambda: len(node.server.slices()) == 2)
        node.server.compact()
        node.server.cut()
        node.server.delete('/resourceslices/')
        assert until(lambda: len(node.server.slices()) == 2)
    finally:
        slow.stop()


def until(condition):
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return True
        pause.wait(0.05)
    return False


# --- taints


def test_a_device_that_has_failed(node, publisher):
    device = objects.Device(
        address=GPU,
        driver='pci',
        handles_total=1,
        handles_free=0,
        health='unhealthy',
        handles=[
            objects.DeviceHandleInfo(
                handle=objects.PCIHandle(address=GPU), state='reserved'
            )
        ],
    )
    inventory = slices_module.Inventory.of(
        offers.by_name([device]), {f'pci/{GPU}': frozenset()}, ()
    )
    (found,) = slices_module.specs(
        inventory, DRIVER, NAME, slices_module.Features()
    )
    (one,) = found['devices']
    assert one['taints'] == [
        {
            'key': f'{DRIVER}/health',
            'value': 'unhealthy',
            'effect': 'NoSchedule',
        },
        {
            'key': f'{DRIVER}/state',
            'value': 'reserved',
            'effect': 'NoSchedule',
        },
    ]
    # A server without taints gets no such device.
    (found,) = slices_module.specs(
        inventory, DRIVER, NAME, slices_module.Features(taints=False)
    )
    assert found['devices'] == []


def test_a_device_that_fails_and_is_freed(node, publisher):
    journal = os_acc._get().journal
    health.mark(journal, GPU, rows.GONE, 'it does not answer')
    publisher.publish()
    assert {
        (each['key'], each['value']) for each in published(node)[ONE]['taints']
    } == {(f'{DRIVER}/health', 'unhealthy'), (f'{DRIVER}/state', 'reserved')}
    health.free(journal, GPU)
    publisher.publish()
    assert 'taints' not in published(node)[ONE]


def test_what_a_guest_has_is_tainted_until_it_is_free(
    node, publisher, monkeypatch
):
    claim = node.claim('one', ONE)
    node.kubelet.prepare(claim)
    publisher.publish()
    assert 'taints' not in published(node)[ONE]  # the scheduler knows it
    monkeypatch.setattr('os_acc_dra.OWNER', 'another')
    publisher.publish()
    (taint,) = published(node)[ONE]['taints']
    assert (taint['key'], taint['value']) == (f'{DRIVER}/state', 'used')
    before = len(node.server.calls)
    publisher.publish()
    assert len(node.server.calls) == before + 1  # only read
    node.kubelet.unprepare(claim)
    publisher.publish()
    assert 'taints' not in published(node)[ONE]


# --- counters


@pytest.mark.parametrize('disabled', ['counters', 'taints'])
def test_a_server_that_drops_fields(node, publisher, disabled):
    """It gives no error: what is left is what can be given at once."""
    fields = {
        'counters': {'sharedCounters', 'consumesCounters'},
        'taints': {'taints'},
    }
    node.server.disabled = fields[disabled]
    other = node.claim('one', ONE)
    node.kubelet.prepare(other)
    publisher.publish()
    found = published(node)
    pair = {offers.name_of(f'pci/{each}') for each in PAIR}
    if disabled == 'counters':
        assert len(found.keys() & pair) == 1
        assert not any('consumesCounters' in d for d in found.values())
        assert len(node.server.slices()) == 1
    else:
        assert pair <= found.keys()
    before = len(node.server.calls)
    publisher.publish()
    assert len(node.server.calls) == before + 1  # it has learnt that


def test_a_refusal_of_another_cause_keeps_the_counters(node, publisher):
    """Such as that of a policy, which may have the same status."""
    with node.server.failing('POST', 422), pytest.raises(errors.ServerError):
        publisher.publish()
    publisher.publish()
    assert sets(node)


def test_counters_that_the_server_accepts_later(node, publisher):
    node.server.refused = {'sharedCounters'}
    publisher.publish()
    assert sets(node) == []
    node.server.refused = set()
    node.server.delete('/resourceslices/')
    publisher.publish()
    assert sets(node)


def test_what_could_not_be_released_is_tainted(node, publisher, monkeypatch):
    """The claim may be gone, and the scheduler does not know it any more."""
    claim = node.claim('one', ONE)
    node.kubelet.prepare(claim)
    (van,) = os_acc.get_vans()
    journal = os_acc._get().journal
    (entry,) = journal.entries(van.instance_uuid)
    entry.van.state = 'error'
    journal.save_all([entry.van])
    publisher.publish()
    (taint,) = published(node)[ONE]['taints']
    assert (taint['key'], taint['value']) == (f'{DRIVER}/state', 'used')


def test_a_server_that_refuses_counters(node, publisher):
    node.server.refused = {'sharedCounters'}
    publisher.publish()
    pair = {offers.name_of(f'pci/{each}') for each in PAIR}
    assert len(published(node).keys() & pair) == 1
    assert sets(node) == []


def test_the_counters_of_a_group(node, publisher):
    publisher.publish()
    (only,) = sets(node)
    assert only['counters'] == {'counter-0': {'value': '1'}}
    found = published(node)
    for each in PAIR:
        (consumed,) = found[offers.name_of(f'pci/{each}')]['consumesCounters']
        assert consumed == {
            'counterSet': only['name'],
            'counters': {'counter-0': {'value': '1'}},
        }
    assert 'consumesCounters' not in found[ONE]


def allows(made, chosen):
    """Whether the counters let some devices be given at once."""
    used = {}
    for each in made:
        for name in chosen:
            for counter, value in each.consumed.get(name, {}).items():
                key = each.name, counter
                used[key] = used.get(key, 0) + value
    return all(
        used.get((each.name, counter), 0) <= value
        for each in made
        for counter, value in each.counters.items()
    )


def test_counters_allow_what_does_not_exclude_each_other():
    """Random exclusions: exactly what may be given at once is allowed."""
    chance = random.Random(4711)
    for _ in range(300):
        names = [f'd{number}' for number in range(chance.randint(2, 9))]
        density = chance.random()
        pairs = {
            pair
            for pair in itertools.combinations(names, 2)
            if chance.random() < density
        }
        made, too_many = counters.of(graph(names, pairs))
        assert too_many == set()
        for _ in range(30):
            chosen = chance.sample(names, chance.randint(0, len(names)))
            apart = not any(
                pair in pairs
                for pair in itertools.combinations(sorted(chosen), 2)
            )
            assert allows(made, chosen) == apart


def graph(names, pairs):
    return {
        name: frozenset(
            other
            for pair in pairs
            for other in pair
            if name in pair and other != name
        )
        for name in names
    }


def test_a_pf_and_its_vfs_have_one_counter():
    vfs = [f'vf{number}' for number in range(64)]
    pairs = {('pf', each) for each in vfs}
    (only,), too_many = counters.of(graph(['pf', *vfs], pairs))
    assert too_many == set()
    assert only.counters == {'counter-0': 64}
    assert only.consumed['pf'] == {'counter-0': 64}


def test_devices_that_need_too_many_counters():
    """A chain of 200: of it, those that exclude none of each other."""
    names = [f'd{number:03}' for number in range(200)]
    exclusions = graph(names, set(itertools.pairwise(names)))
    made, too_many = counters.of(exclusions)
    assert (made, too_many) == ([], set(names))
    chosen = counters.apart(exclusions, ['d001'])
    assert 'd001' in chosen
    assert len(chosen) > 66
    assert not any(exclusions[each] & chosen for each in chosen)


def test_what_the_counters_allow_plug_allows(node, publisher):
    """Each pair of devices, each of an instance of its own."""
    found = offers.by_name(os_acc.get_devices())
    exclusions = os_acc.get_exclusions(os_acc.get_devices())
    inventory = slices_module.Inventory.of(found, exclusions, ())
    made, _ = counters.of(inventory.exclusions)
    pairs = list(itertools.combinations(sorted(found), 2))
    assert len(pairs) == 21
    for one, two in pairs:
        first, second = (instance(), instance())
        os_acc.plug(first, [request(found[one])], plugin='cdi')
        try:
            os_acc.plug(second, [request(found[two])], plugin='cdi')
            done = True
            os_acc.unplug(second)
        except exception.PlugException:
            done = False
        os_acc.unplug(first)
        assert done == allows(made, [one, two]), (one, two)


def instance():
    return objects.InstanceInfo(uuid=str(uuid.uuid4()))


def request(offer):
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), handle=offer.handle, driver=offer.driver
    )


# --- limits


@pytest.mark.parametrize(('number', 'slices'), [(128, 1), (129, 2), (300, 3)])
def test_many_devices(number, slices):
    found = slices_module.specs(
        many(number), DRIVER, NAME, slices_module.Features()
    )
    assert len(found) == slices
    check(found)


@pytest.mark.parametrize(('number', 'slices'), [(64, 2), (66, 3)])
def test_many_devices_with_counters(number, slices):
    """64 in a slice; the counters have a slice for each 8 sets."""
    inventory = many(number)
    names = sorted(inventory.offers)
    exclusions = graph(names, {(names[0], names[1])})
    found = slices_module.specs(
        slices_module.Inventory(inventory.offers, exclusions, ()),
        DRIVER,
        NAME,
        slices_module.Features(),
    )
    assert len(found) == slices
    check(found)


def test_many_counter_sets():
    inventory = many(40)
    names = sorted(inventory.offers)
    exclusions = graph(names, set(zip(names[::2], names[1::2], strict=True)))
    found = slices_module.specs(
        slices_module.Inventory(inventory.offers, exclusions, ()),
        DRIVER,
        NAME,
        slices_module.Features(),
    )
    assert [len(each.get('sharedCounters', ())) for each in found] == [
        8,
        8,
        4,
        0,
    ]
    check(found)


def many(number):
    devices = [
        objects.Device(
            address=f'd{each}',
            driver='devfile',
            handles_total=1,
            handles_free=1,
            resource_class='CUSTOM_X' + 'Y' * 100,
            traits=[f'CUSTOM_TRAIT_{t}' for t in range(40)] + ['C' * 33],
            handles=[
                objects.DeviceHandleInfo(
                    handle=objects.DeviceFileHandle(
                        name=f'd{each}' + 'z' * 150, files=[]
                    )
                )
            ],
        )
        for each in range(number)
    ]
    found = offers.by_name(devices)
    assert len(found) == number
    return slices_module.Inventory(
        found, {name: frozenset() for name in found}, ()
    )


def check(specs):
    for each in specs:
        pool = {**each['pool'], 'generation': 1}
        body = {
            'apiVersion': 'resource.k8s.io/v1',
            'kind': 'ResourceSlice',
            'metadata': {'name': 'it'},
            'spec': {**each, 'pool': pool},
        }
        assert slice_limits.faults(body) == []
        kubernetes_validate.validate(body, '1.36', strict=True)
