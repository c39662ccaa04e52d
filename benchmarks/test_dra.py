# SPDX-License-Identifier: Apache-2.0

"""The Kubernetes driver: claims, and the slices after a change.

A claim is prepared and unprepared by the gRPC service, as the kubelet does.
The peer makes the same two calls, with the same answers, to a service that
does nothing else. A publish after a device has changed is compared with the
one call that writes the slice. The API server is the stand-in of tests/dra.
README.rst says how to run it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import sys
from typing import Any

import pytest

# The node that is measured is that of the tests.
sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests/dra'))

import node_fixtures
import node_parts
import stand_in_kubelet

from os_acc_dra import health as health_stream
from os_acc_dra import messages
from os_acc_dra import offers
from os_acc_dra import process
from os_acc_dra import publisher as publisher_module
from os_acc_dra import service

directory, kernel = node_fixtures.directory, node_fixtures.kernel
node, server = node_fixtures.node, node_fixtures.server

ROUNDS = 30
#: The device that comes and goes.
NEW = '0000:08:00.0'
NEW_NAME = offers.name_of(f'pci/{NEW}')
ONE = offers.name_of(f'pci/{node_parts.GPU}')


class Nothing:
    """Answers the calls of the kubelet, and does nothing."""

    def prepare(self, request: Any, context: Any) -> Any:
        answer = messages.DRA['NodePrepareResourcesResponse']()
        for each in request.claims:
            answer.claims[each.uid].devices.add(
                request_names=['acc0'],
                pool_name=node_parts.NAME,
                device_name=ONE,
                cdi_device_ids=[
                    f'os-acc.openstack.org/accelerator={each.uid}'
                ],
            )
        return answer

    def unprepare(self, request: Any, context: Any) -> Any:
        answer = messages.DRA['NodeUnprepareResourcesResponse']()
        for each in request.claims:
            answer.claims[each.uid].error = ''
        return answer


@pytest.fixture
def bare(node: node_parts.Node) -> Iterator[stand_in_kubelet.Kubelet]:
    """A kubelet whose driver does nothing."""
    place = node.kubelet.directory / 'bare'
    served = service.Service(
        Nothing(),
        node_parts.DRIVER,
        process.Process(str(place), node_parts.DRIVER),
        health_stream.Health(lambda: None, node_parts.NAME, 60.0),
    )
    served.start()
    kubelet = stand_in_kubelet.Kubelet(place, node.server)
    kubelet.register()
    yield kubelet
    served.stop(0)


def test_claim(
    disk: pathlib.Path,
    node: node_parts.Node,
    bare: stand_in_kubelet.Kubelet,
    benchmark: Any,
    take_turns: Callable[..., None],
) -> None:
    """Prepare and unprepare of a claim; one after the other."""
    claim = node.claim('one', ONE)

    def call(kubelet: stand_in_kubelet.Kubelet) -> Callable[[], None]:
        def do() -> None:
            for method in ('NodePrepareResources', 'NodeUnprepareResources'):
                (answer,) = kubelet.call(method, [claim]).values()
                assert not answer.error

        return do

    take_turns(call(node.kubelet), call(bare), ROUNDS)
    if benchmark.stats is not None:
        benchmark.extra_info['claims_per_second'] = round(
            1 / benchmark.stats.stats.median, 1
        )


def test_slices(
    disk: pathlib.Path, node: node_parts.Node, take_turns: Callable[..., None]
) -> None:
    """Publish after a device has come, or is gone."""
    node.server.put(
        f'/api/v1/nodes/{node_parts.NAME}',
        {
            'apiVersion': 'v1',
            'kind': 'Node',
            'metadata': {'name': node_parts.NAME},
        },
    )
    made = publisher_module.Publisher(
        node.cluster, node_parts.DRIVER, node_parts.NAME, 1.0
    )
    made.publish()

    def names() -> set[str]:
        return {
            device['name']
            for each in node.server.slices()
            for device in each['spec'].get('devices', ())
        }

    def act() -> None:
        is_new = NEW_NAME not in names()
        if is_new:
            node.kernel.add_function(NEW, '10de:1eb8', 0x030200)
        else:
            node.kernel.remove_function(NEW)
        made.publish()
        assert (NEW_NAME in names()) is is_new

    def peer() -> None:
        body = node.server.slices()[-1]
        # The stand-in adds it, and refuses it.
        del body['spec']['ofALaterVersion']
        node.cluster.replace_slice(body)

    take_turns(act, peer, ROUNDS)
