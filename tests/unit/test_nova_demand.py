# SPDX-License-Identifier: Apache-2.0

"""The service os-acc-nova-demand, on a stand-in for Nova.

The notification in tests/data was made by Nova 34's own objects, see
tests/functional_nova/operations/test_demand.py. It is sent by oslo.messaging's
own notifier.
"""

from __future__ import annotations

import copy
import importlib
import json
import pathlib
import threading
import types
import uuid

from hypothesis import given
from hypothesis import strategies as st
import nova_double
from oslo_config import cfg
import oslo_messaging
import pytest

import os_acc
from os_acc import exception
from os_acc.placement import demanded
from os_acc.placement import functions

DATA = pathlib.Path(__file__).parents[1] / 'data'
FAILURE = json.loads((DATA / 'nova-build-instances-error.json').read_text())
AES, ACME = functions.trait('aes'), 'CUSTOM_ACME'
EVENT, TOPIC = 'compute_task.build_instances.error', 'os_acc_demand'
HERE, THERE, DEVICE, OTHER = (str(uuid.UUID(int=n)) for n in range(1, 5))

CANDIDATES = (
    '/allocation_candidates?resources1=CUSTOM_FPGA:1&required1=CUSTOM_ACME'
    '&resources=MEMORY_MB:512'
)
EMPTY = f'/resource_providers?required={ACME},{functions.EMPTY}'
OWN = '/resource_providers?name=node-1'


def answer(status=200, **said):
    return types.SimpleNamespace(
        status_code=status, text='wrong', json=lambda: said
    )


def candidates(*those):
    """The answer with candidates: root, provider and its traits of each."""
    return {
        'allocation_requests': [
            {
                'allocations': {
                    root: {'resources': {'MEMORY_MB': 512}},
                    provider: {'resources': {'CUSTOM_FPGA': 1}},
                }
            }
            for root, provider, _ in those
        ],
        'provider_summaries': {
            provider: {'root_provider_uuid': root, 'traits': traits}
            for root, provider, traits in those
        },
    }


@pytest.fixture
def nova(monkeypatch, tmp_path, clean):
    found = nova_double.install(monkeypatch, tmp_path / 'nova')
    found.demand = importlib.import_module('os_acc_nova.demand')
    os_acc.CONF.set_override('host', 'node-1', 'os_acc')
    os_acc.initialize()
    os_acc.apply(
        {'version': 1, 'pools': [{'function': 'aes', 'on_demand': True}]}
    )
    found.placement.answers |= {
        CANDIDATES: answer(**candidates((HERE, DEVICE, [ACME]))),
        EMPTY: answer(resource_providers=[]),
        OWN: answer(resource_providers=[{'uuid': HERE}]),
    }
    yield found
    nova_double.uninstall()


def recorded():
    return [
        (each.resource_class, each.traits, each.function_id, each.count)
        for each in os_acc.this_host().journal.demand()
    ]


ONE = [('CUSTOM_FPGA', (ACME,), 'aes', 1)]


def tell(nova, payload):
    nova.demand.Endpoint().error({}, 'nova-conductor:c1', EVENT, payload, {})


def changed(*path, **values):
    """The notification with other values in the object at a path."""
    made = copy.deepcopy(FAILURE)
    found = made['nova_object.data']
    for name in path:
        found = found[name]['nova_object.data']
    found.update(values)
    return made


def test_a_notification_leads_to_demand(nova, monkeypatch):
    """Two hosts listen; the queue that they share is emptied, too."""
    conf = cfg.ConfigOpts()
    conf([])
    transport = oslo_messaging.get_notification_transport(conf, url='fake:')
    done, drained = threading.Semaphore(0), threading.Semaphore(0)
    real = nova.demand.Endpoint.error

    def error(self, *args):
        real(self, *args)
        done.release()

    monkeypatch.setattr(nova.demand.Endpoint, 'error', error)

    def drain(self, *args):
        drained.release()

    for name in ('info', 'error'):
        monkeypatch.setattr(nova.demand.Drain, name, drain)
    started = [
        each
        for node in ('node-1', 'node-2')
        for each in nova.demand.listeners(transport, TOPIC, node)
    ]
    for each in started:
        each.start()
    notifier = oslo_messaging.Notifier(
        transport, 'nova-conductor:c1', driver='messaging', topics=[TOPIC]
    )
    notifier.info({}, 'compute_task.build_instances.start', {})
    notifier.error({}, 'compute_task.rebuild_server.error', FAILURE)
    notifier.error({}, EVENT, FAILURE)
    assert all(done.acquire(timeout=100) for _ in range(2))
    assert all(drained.acquire(timeout=100) for _ in range(3))
    for each in started:
        each.stop()
        each.wait()
    # Both listeners are of this host, so both have recorded it.
    assert recorded() == [(*ONE[0][:3], 2)]
    (event, *_) = [
        each
        for each in os_acc.this_host().journal.events()
        if each.operation == 'demand'
    ]
    assert event.instance_uuid == FAILURE['nova_object.data']['instance_uuid']


def test_the_error_may_come_from_the_scheduler(nova):
    tell(nova, changed('reason', exception='NoValidHost_Remote'))
    assert recorded() == ONE


@pytest.mark.parametrize(
    'payload',
    [
        changed('reason', exception='MaxRetriesExceeded'),
        changed(request_spec=None),
        changed('request_spec', flavor=None),
        changed('request_spec', 'flavor', extra_specs=None),
        changed('request_spec', 'flavor', extra_specs={'hw:cpu': '1'}),
        changed(
            'request_spec',
            'flavor',
            extra_specs={'os_acc:bitstream_id': 'no such key'},
        ),
        {},
    ],
)
def test_what_is_no_demand(nova, payload):
    tell(nova, payload)
    assert recorded() == []


def test_another_host_is_chosen(nova):
    nova.placement.answers[OWN] = answer(resource_providers=[{'uuid': THERE}])
    tell(nova, FAILURE)
    assert recorded() == []


def test_no_host_can_program_it(nova):
    nova.placement.answers[CANDIDATES] = answer(**candidates())
    tell(nova, FAILURE)
    nova.placement.answers[EMPTY] = answer(status=400)
    tell(nova, FAILURE)
    assert recorded() == []


def test_an_empty_device_without_inventory(nova):
    nova.placement.answers[CANDIDATES] = answer(**candidates())
    nova.placement.answers[EMPTY] = answer(
        resource_providers=[{'uuid': DEVICE, 'root_provider_uuid': HERE}]
    )
    tell(nova, FAILURE)
    assert recorded() == ONE


@pytest.mark.parametrize(
    'path, found, text',
    [
        (CANDIDATES, answer(status=503), '503 wrong'),
        (OWN, answer(resource_providers=[]), 'no compute node node-1'),
    ],
)
def test_placement_fails(nova, caplog, path, found, text):
    nova.placement.answers[path] = found
    tell(nova, FAILURE)
    assert recorded() == []
    assert text in caplog.text


def test_this_host_has_no_such_pool(nova):
    os_acc.apply({'version': 1})
    tell(nova, FAILURE)
    assert recorded() == []


def test_read_what_a_flavor_wants():
    (found,) = demanded.read(
        {
            'resources:CUSTOM_FPGA': '2',
            'os_acc:function_id': 'aes',
            'trait:CUSTOM_ACME': 'required',
        }
    )
    assert (dict(found.resources), found.traits, found.function) == (
        {'CUSTOM_FPGA': 2},
        {ACME},
        AES,
    )
    assert demanded.candidates_path([found], None) == (
        '/allocation_candidates?resources=CUSTOM_FPGA:2&required=CUSTOM_ACME'
    )
    assert demanded.read({'os_acc:function_id': 'aes'}) == []
    with pytest.raises(exception.InvalidRequest, match='os_acc:speed'):
        demanded.read({'os_acc:speed': 'fast'})


def test_two_groups():
    found = demanded.read(
        {
            f'{prefix}{suffix}:{name}': value
            for suffix in ('1', '_B')
            for prefix, name, value in (
                ('resources', 'CUSTOM_FPGA', '1'),
                ('os_acc', 'function_id', 'aes'),
            )
        }
    )
    assert demanded.candidates_path(found, 512) == (
        '/allocation_candidates?resources1=CUSTOM_FPGA:1'
        '&resources_B=CUSTOM_FPGA:1&resources=MEMORY_MB:512&group_policy=none'
    )


WANTED = demanded.read(
    FAILURE['nova_object.data']['request_spec']['nova_object.data']['flavor'][
        'nova_object.data'
    ]['extra_specs']
)
NUMBERS = st.integers(1, 99).map(lambda n: str(uuid.UUID(int=n)))
HOSTS = st.dictionaries(NUMBERS, st.booleans(), min_size=1)


@given(HOSTS, HOSTS)
def test_all_hosts_choose_the_same_one(full, bare):
    """A host with an empty device goes first, whatever the order."""
    those = [
        (root, f'of-{root}', [functions.EMPTY] if empty else [])
        for root, empty in full.items()
    ]
    without = [{'root_provider_uuid': root} for root in bare]
    found = [
        demanded.choose(
            WANTED,
            candidates(*those[::step]),
            {'resource_providers': without[::step]},
        )
        for step in (1, -1)
    ]
    assert found[0] == found[1]
    empty = {root for root, is_empty in full.items() if is_empty}
    assert found[0] in (empty or bare)
