# SPDX-License-Identifier: Apache-2.0

"""Pools: how often an instance finds its function, and how soon it starts.

A load of four functions is replayed on eight regions, by os_acc's own calls on
fake devices. Only the time between the calls is not waited for: the clock is
put forward. A programming counts as SECONDS.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import datetime
import heapq
import pathlib
import random
import statistics
import time
from typing import Any
import uuid

from oslo_config import cfg
from oslo_utils import timeutils
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.desired import pools
from os_acc.desired import regions
from os_acc.kinds.fake.driver import hardware as fake_hardware

CONF = cfg.CONF
FUNCTIONS = {'aes': 0.4, 'sha': 0.3, 'gzip': 0.2, 'fft': 0.1}
REQUESTS = 150
#: Seconds, on average: between two requests, and of an instance. So half of
#: the regions are in use.
BETWEEN, LIFE = 450.0, 1800.0
#: Seconds of a programming: lab/test_programming.py has measured them, with an
#: image of 10 MiB on the simulated DFL card.
SECONDS = 2.3
#: Seconds between two calls of keep_pools().
PERIOD = 120.0

POOLS = {
    'none': [],
    'one free of each': [{'function': each} for each in FUNCTIONS],
    'two free of the first two': [
        {'function': each, 'min_free': 2 if share > 0.2 else 1}
        for each, share in FUNCTIONS.items()
    ],
}


class Replay:
    """The host and its clock, and what was counted."""

    def __init__(self, hardware: str, pools_: list[dict[str, Any]]) -> None:
        self._hardware = fake_hardware.Hardware(hardware)
        self._random = random.Random(32)
        self._start = datetime.datetime.now(datetime.UTC)
        self._ends: list[tuple[float, str]] = []
        self._kept_at = 0.0
        self.own: list[float] = []
        self.hits = self.refused = self.ahead = 0
        os_acc.apply({'version': 1, 'pools': pools_})

    def run(self) -> None:
        now = 0.0
        for _ in range(REQUESTS):
            now += self._random.expovariate(1 / BETWEEN)
            while self._ends and self._ends[0][0] <= now:
                ended, instance = heapq.heappop(self._ends)
                self._keep_until(ended)
                os_acc.unplug(objects.InstanceInfo(uuid=instance))
            self._keep_until(now)
            self._plug(now)

    def _set(self, now: float) -> datetime.datetime:
        at = self._start + datetime.timedelta(seconds=now)
        timeutils.set_time_override(at.replace(tzinfo=None))
        return at

    def _keep_until(self, now: float) -> None:
        """Call keep() as a timer does; at rest, it has nothing to do."""
        last = min(now, self._kept_at + regions.REST + 2 * PERIOD)
        while self._kept_at + PERIOD <= last:
            self._kept_at += PERIOD
            assert os_acc._host is not None
            made = pools.keep(os_acc._host, now=self._set(self._kept_at))
            self.ahead += len(made.steps)
        self._kept_at = now
        self._set(now)

    def _plug(self, now: float) -> None:
        (function,) = self._random.choices([*FUNCTIONS], [*FUNCTIONS.values()])
        life = self._random.expovariate(1 / LIFE)
        instance = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        before = self._times()
        start = time.perf_counter()
        try:
            os_acc.plug(
                objects.InstanceInfo(uuid=instance),
                [
                    objects.AcceleratorRequest(
                        uuid=str(uuid.uuid4()),
                        driver='fake',
                        function_id=function,
                    )
                ],
            )
        except exception.PlugException:
            self.refused += 1
            return
        took = time.perf_counter() - start
        hit = self._times() == before
        self.hits += hit
        self.own.append(took)
        heapq.heappush(self._ends, (now + life, instance))

    def _times(self) -> int:
        return sum(self._hardware.times(f'fpga.{n}') for n in range(8))


@pytest.fixture
def clock() -> Iterator[None]:
    yield
    timeutils.clear_time_override()


@pytest.mark.timeout(900)
@pytest.mark.parametrize('name', POOLS)
def test_pools(
    name: str,
    tmp_path: pathlib.Path,
    initialize: Callable[..., None],
    clock: None,
    benchmark: Any,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    initialize()
    for key, value in {
        'devices': ['fpga:pci:8:dynamic'],
        'hardware_path': str(tmp_path / 'hardware'),
        'discover': True,
    }.items():
        CONF.set_override(key, value, group='os_acc_fake')
    replay = Replay(str(tmp_path / 'hardware'), POOLS[name])
    benchmark.pedantic(replay.run, rounds=1)
    for key in ('devices', 'hardware_path', 'discover'):
        CONF.clear_override(key, group='os_acc_fake')
    started = len(replay.own)
    own = statistics.median(replay.own)
    late = own + SECONDS * (started - replay.hits) / started
    text = (
        f'pools: {name}: {started} started, {replay.refused} refused, '
        f'{replay.hits / started:.1%} found their function, start after '
        f'{late:.2f} s on average, {own:.2f} s of it by os-acc itself, '
        f'{replay.ahead} programmings ahead'
    )
    benchmark.extra_info['text'] = text
    terminal = request.config.pluginmanager.get_plugin('terminalreporter')
    with capsys.disabled():
        terminal.write_line(f'\n{text}')
