# SPDX-License-Identifier: Apache-2.0

"""The stream that tells the kubelet which devices are healthy."""

from __future__ import annotations

import time

import grpc
from node_parts import GPU
from node_parts import NAME
import pytest
import stand_in_kubelet

import os_acc
from os_acc import exception
from os_acc import health
from os_acc.journal import health as rows
from os_acc_dra import offers

ONE = offers.name_of(f'pci/{GPU}')
UNHEALTHY = stand_in_kubelet.health.UNHEALTHY


@pytest.fixture
def publish(node):
    """Look at the devices."""
    node.server.put(
        f'/api/v1/nodes/{NAME}',
        {'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': NAME}},
    )
    return node.publisher.publish


def of_names(message):
    assert {each.device.pool_name for each in message.devices} == {NAME}
    return {each.device.device_name: each for each in message.devices}


def until(stream, wanted):
    """Read messages until a device has a health."""
    for message in stream:
        found = of_names(message)[ONE]
        if found.health == wanted:
            return found
    raise AssertionError('the stream has ended')


def test_all_devices_each_time(node, publish):
    publish()
    stream = node.kubelet.watch_health()
    devices = {
        device['name']
        for each in node.server.slices()
        for device in each['spec'].get('devices', ())
    }
    for _ in range(2):
        found = of_names(next(stream))
        assert set(found) == devices
        assert {each.health for each in found.values()} == {
            stand_in_kubelet.health.HEALTHY
        }
        for each in found.values():
            assert 0 <= time.time() - each.last_updated_time < 600
            assert each.health_check_timeout_seconds == 30
    stream.cancel()


def test_a_device_that_fails_and_is_freed(node, publish):
    publish()
    stream = node.kubelet.watch_health()
    until(stream, stand_in_kubelet.health.HEALTHY)
    journal = os_acc._get().journal
    health.mark(journal, GPU, rows.GONE, 'it does not answer')
    publish()
    assert 'it does not answer' in until(stream, UNHEALTHY).message
    health.free(journal, GPU)
    publish()
    assert until(stream, stand_in_kubelet.health.HEALTHY).message == ''
    stream.cancel()


def test_a_failed_discovery_is_no_news(node, publish, monkeypatch):
    """The kubelet takes the health as unknown when it is too old."""
    publish()
    before = node.publisher.observed()

    def fail():
        raise exception.DiscoveryFailed(
            errors={'pci': 'it failed'}, devices=[]
        )

    monkeypatch.setattr(os_acc, 'get_devices', fail)
    publish()
    assert node.publisher.observed() is before


def test_the_stop_ends_the_stream(node, publish):
    publish()
    stream = node.kubelet.watch_health()
    next(stream)
    node.service.stop(60.0)
    try:
        left = len(list(stream))
    except grpc.RpcError as err:
        raise AssertionError(f'it was cut off: {err.details()}') from err
    assert left >= 0
