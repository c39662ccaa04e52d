# SPDX-License-Identifier: Apache-2.0

"""A plug of 8 devices of 200 ms each. The peer is TaskFlow with threads."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import time
import uuid

from oslo_config import cfg
import pytest
from taskflow import engines
from taskflow import task
from taskflow.patterns import unordered_flow

import os_acc
from os_acc import objects

CONF = cfg.CONF
COUNT = 8
SECONDS = 0.2
ROUNDS = 10
INSTANCE = objects.InstanceInfo(
    uuid=str(uuid.UUID(int=1)), name='instance-1', project_id='project'
)


class Sleep(task.Task):
    def execute(self) -> None:
        time.sleep(SECONDS)


@pytest.fixture
def slow_devices(initialize: Callable[..., None]) -> Iterator[None]:
    """os-acc with slow devices of the fake driver."""
    initialize()
    delays = {'prepareVAN': str(SECONDS)}
    CONF.set_override('delays', delays, group='os_acc_fake')
    yield
    CONF.clear_override('delays', group='os_acc_fake')


@pytest.mark.benchmark(group='8 devices of 200 ms')
def test_parallel(take_turns: Callable[..., None], slow_devices: None) -> None:
    def unplug_and_taskflow() -> None:
        os_acc.unplug(INSTANCE)
        _taskflow()

    take_turns(_plug, unplug_and_taskflow, ROUNDS)


@pytest.mark.benchmark(group='8 devices of 200 ms')
def test_parallel_taskflow(
    take_turns: Callable[..., None], slow_devices: None
) -> None:
    def plug_and_unplug() -> None:
        _plug()
        os_acc.unplug(INSTANCE)

    take_turns(_taskflow, plug_and_unplug, ROUNDS)


def _plug() -> None:
    requests = [
        objects.AcceleratorRequest(
            uuid=uuid.UUID(int=number + 1),
            handle=objects.TestHandle(name=f'slow-{number}'),
        )
        for number in range(COUNT)
    ]
    assert len(os_acc.plug(INSTANCE, requests)) == COUNT


def _taskflow() -> None:
    flow = unordered_flow.Flow('prepare')
    flow.add(*(Sleep(f'prepare {number}') for number in range(COUNT)))
    # TaskFlow's own pool takes a second to end, so both use the same pool.
    with futures.ThreadPoolExecutor(COUNT) as pool:
        engines.run(flow, engine='parallel', executor=pool)
