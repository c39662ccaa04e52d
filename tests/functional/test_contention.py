# SPDX-License-Identifier: Apache-2.0

"""Many processes and threads, few handles: none is ever in two guests."""

from __future__ import annotations

from concurrent import futures
import json
import os
import random
import time
import uuid

import processes
import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.kinds.fake.driver.hardware import Hardware

# Measuring coverage would slow down the many processes of this test.
# It takes 5 minutes on two CPUs, and 10 beside the lab. So .ci/run does fewer
# rounds, by OS_ACC_CONTENTION_ROUNDS.
pytestmark = [pytest.mark.no_cover, pytest.mark.timeout(2400)]

PROCESSES = 4
THREADS = 4
ROUNDS = int(os.environ.get('OS_ACC_CONTENTION_ROUNDS', '500'))
HANDLES = 6


def requests(rng: random.Random) -> list[objects.AcceleratorRequest]:
    """Make requests for one handle, or for two in random order."""
    chosen = rng.sample(range(HANDLES), rng.choice((1, 1, 2)))
    return [
        objects.AcceleratorRequest(
            uuid=uuid.UUID(int=rng.getrandbits(128), version=4),
            handle=objects.TestHandle(name=f'h{number}'),
        )
        for number in chosen
    ]


def rounds(seed: int, counts: dict[str, int]) -> None:
    """Plug and unplug ROUNDS times; try again if a handle is busy."""
    rng = random.Random(seed)
    info = objects.InstanceInfo(
        uuid=uuid.UUID(int=rng.getrandbits(128), version=4),
        name=f'guest-{seed}',
        project_id='p',
    )
    for _ in range(ROUNDS):
        while True:
            try:
                vans = os_acc.plug(info, requests(rng))
                break
            except exception.PlugException as err:
                assert isinstance(err.__cause__, exception.DeviceBusy), err
                assert not err.undo_errors
                counts['busy'] += 1
                time.sleep(rng.random() * 0.01)
        assert os_acc.unplug(info) == len(vans)
        counts['plugged'] += len(vans)


def work(path: str, number: int) -> None:
    processes.configure(
        os.path.join(path, 'state'),
        hardware_path=os.path.join(path, 'hardware'),
    )
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.CONF.set_override('max_workers', 4, 'os_acc')
    os_acc.initialize()
    counts = {'plugged': 0, 'busy': 0, 'taken twice': 0}
    take = Hardware.take

    def watched_take(self, handle, van_uuid, instance_uuid):
        try:
            take(self, handle, van_uuid, instance_uuid)
        except exception.DeviceBusy:
            # The journal let both in, and only the hardware refused.
            counts['taken twice'] += 1
            raise

    Hardware.take = watched_take
    with futures.ThreadPoolExecutor(THREADS) as pool:
        running = [
            pool.submit(rounds, number * THREADS + thread, counts)
            for thread in range(THREADS)
        ]
        for future in running:
            future.result()
    with open(os.path.join(path, f'counts-{number}'), 'w') as file:
        json.dump(counts, file)


def test_no_handle_is_ever_in_two_guests(tmp_path, report):
    start = time.monotonic()
    children = [
        processes.start(lambda number=number: work(str(tmp_path), number))
        for number in range(PROCESSES)
    ]
    assert [processes.wait(pid) for pid in children] == [0] * PROCESSES
    total = {'plugged': 0, 'busy': 0, 'taken twice': 0}
    for number in range(PROCESSES):
        for key, count in json.loads(
            (tmp_path / f'counts-{number}').read_text()
        ).items():
            total[key] += count
    assert total['taken twice'] == 0
    assert total['plugged'] >= PROCESSES * THREADS * ROUNDS
    assert total['busy'] > 0
    assert Hardware(str(tmp_path / 'hardware')).in_use() == {}
    left = journal.Journal(str(tmp_path / 'state'), 5, read_only=True)
    assert left.entries() == []
    left.close()
    assert os.listdir(tmp_path / 'state' / 'locks') == []
    report(
        f'contention: {total["plugged"]} VANs plugged and unplugged over '
        f'{HANDLES} handles by {PROCESSES} x {THREADS} in '
        f'{time.monotonic() - start:.0f} s, busy {total["busy"]} times'
    )
