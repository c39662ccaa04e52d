# SPDX-License-Identifier: Apache-2.0
"""os-acc cyborg check and plug, with Cyborg's real API and conductor."""

from __future__ import annotations

from typing import Any

from cloud import HOST
from cyborg import objects as cyborg_objects
import pytest
import test_agent
from test_agent import GPU_NAME
from test_agent import PF
from test_agent import PF_NAME
from test_agent import VFS
from test_agent import Agent

import os_acc
from os_acc import exception
from os_acc import host
from os_acc.cyborg import api
from os_acc.cyborg import check
from os_acc.cyborg import requests
from os_acc.placement import client
from os_acc.placement import inventory

agent = test_agent.agent  # the fixture


class Placement:
    """What os_acc.placement.client reads, from the double of Placement."""

    def __init__(self, agent: Agent) -> None:
        self._providers = agent.cyborg.placement.providers

    def inventories(self, uuid: str) -> dict[str, inventory.Inventory] | None:
        if uuid not in self._providers:
            return None
        return {
            name: inventory.Inventory(total=each['total'])
            for name, each in self._providers[uuid]['inventories'].items()
        }

    def traits(self, uuid: str) -> client.Traits | None:
        if uuid not in self._providers:
            return None
        return client.Traits(frozenset(self._providers[uuid]['traits']), 0)


def examine(agent: Agent, notes: int = 0) -> list[tuple[str, Any, Any]]:
    """The problems, with the VAN and the ARQ of each."""
    with agent.nova():
        opened = host.Host.open(os_acc.CONF, read_only=True)
        try:
            result = check.examine(
                opened,
                api.API(agent.cyborg),
                Placement(agent),
            )
        finally:
            opened.close()
    assert len(result.notes) == notes, result.notes
    return [(each.problem, each.van, each.arq) for each in result.differences]


def test_nothing_differs(agent: Agent) -> None:
    agent.period()
    assert examine(agent) == []
    one, two = agent.cyborg.bind(PF_NAME), agent.cyborg.bind(GPU_NAME)
    assert examine(agent) == []
    van = agent.plug(one)
    agent.plug(two)
    agent.period()
    assert examine(agent) == []
    agent.unplug(van)
    agent.cyborg.delete(one)
    agent.period()
    assert examine(agent) == []


def test_before_the_first_report(agent: Agent) -> None:
    assert examine(agent, notes=1) == []


def test_an_arq_deleted_under_its_van(agent: Agent) -> None:
    agent.period()
    old = agent.cyborg.bind(GPU_NAME)
    agent.plug(old)
    agent.cyborg.delete(old)
    assert examine(agent) == [('arq-gone', old['uuid'], old['uuid'])]
    new = agent.cyborg.bind(GPU_NAME)
    assert examine(agent) == [('handle-rebound', old['uuid'], new['uuid'])]
    with pytest.raises(exception.PlugException, match=old['uuid']):
        agent.plug(new)


def test_a_bound_vf_that_is_gone(agent: Agent) -> None:
    agent.period()
    arqs = [agent.cyborg.bind(PF_NAME) for _ in VFS]
    agent.offer({'address': PF, 'num_vfs': 2, 'resource_class': 'CUSTOM_QAT'})
    agent.period()
    found = examine(agent)
    gone = {problem for problem, _, _ in found}
    assert 'handle-gone' in gone, found
    assert {arq for _, _, arq in found} <= {arq['uuid'] for arq in arqs}


def test_a_handle_that_is_gone_from_the_database(
    agent: Agent,
) -> None:
    agent.period()
    arq, other = agent.cyborg.bind(PF_NAME), agent.cyborg.bind(GPU_NAME)
    agent.plug(arq)
    agent.plug(other)
    handle = cyborg_objects.AttachHandle.get(
        agent.cyborg.context, arq['attach_handle_uuid']
    )
    handle.destroy(agent.cyborg.context)
    assert agent.cyborg.get('/accelerator_requests').status_code == 404
    assert examine(agent, notes=2) == [
        ('cyborg-cannot-list', arq['uuid'], arq['uuid'])
    ]


def test_placement_differs(agent: Agent) -> None:
    agent.period()
    provider = agent.cyborg.placement.named(f'{HOST}_{PF_NAME}')
    assert provider is not None
    provider['traits'].add('CUSTOM_WRONG')
    provider['inventories']['CUSTOM_QAT']['total'] = 9
    assert [problem for problem, _, _ in examine(agent)] == [
        'inventory',
        'traits',
    ]
    del agent.cyborg.placement.providers[provider['uuid']]
    assert [p for p, _, _ in examine(agent)] == ['provider-missing']


def test_from_cyborg_to_requests(agent: Agent) -> None:
    agent.period()
    groups = {'accel:function_id': 'aes', 'accel:bitstream_id': 'an-image'}
    arq = agent.cyborg.bind(GPU_NAME, groups)
    client_ = api.API(agent.cyborg)
    found = requests.bound(client_, arq['instance_uuid'], HOST, wait=5)
    (request,) = found.requests
    assert (request.uuid, request.function_id) == (arq['uuid'], 'aes')
    assert request.bitstream == 'an-image'
    assert found.project_id == arq['project_id']
    with pytest.raises(exception.InvalidRequest, match='hostname'):
        requests.bound(client_, arq['instance_uuid'], 'node-9')
