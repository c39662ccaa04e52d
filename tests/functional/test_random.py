# SPDX-License-Identifier: Apache-2.0
"""Random calls, kills, full disks and reboots: nothing is lost or shared.

Three processes plug, unplug and recover the same instances over few handles.
They are killed at random times, the disk of the journal gets full, steps of
the driver fail, and the host is rebooted. In between the journal is compared
with the hardware.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import time
import uuid

import processes
import pytest
from test_full_disk import Disk

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import sysfs
from os_acc.kinds.fake.driver.hardware import Hardware

# Measuring coverage would slow down the many processes of this test.
pytestmark = pytest.mark.no_cover

# OS_ACC_RANDOM_SECONDS sets another length, at most 400.
SECONDS = float(os.environ.get('OS_ACC_RANDOM_SECONDS', '60'))
WORKERS = 3
INSTANCES = 4
GROUPS = 2  # of each instance; plugged and unplugged as one
HANDLES = 7  # fewer than all groups want
SEED = int(
    os.environ.get('OS_ACC_SEED') or random.SystemRandom().getrandbits(32)
)

_NAMES = uuid.UUID('5f0c2b8e-6f0e-4f0b-9a53-0d8c7f1c0e02')
_STEPS = ('prepareVAN', 'postplug', 'unprepareVAN')

# A worker ends so if a device was given out twice.
TAKEN_TWICE = 3


def instance(number: int) -> objects.InstanceInfo:
    return objects.InstanceInfo(
        uuid=str(uuid.uuid5(_NAMES, f'instance-{number}')),
        name=f'guest-{number}',
        project_id='p',
    )


def group(number: int, which: int) -> list[objects.AcceleratorRequest]:
    """The two requests of a group; some other groups want the same handles."""
    return [
        objects.AcceleratorRequest(
            uuid=str(uuid.uuid5(_NAMES, f'van-{number}-{which}-{part}')),
            driver='fake',
            handle=objects.TestHandle(
                name=f'h{(4 * number + 2 * which + part) % HANDLES}'
            ),
        )
        for part in range(2)
    ]


def vans_of(number: int, which: int) -> set[str]:
    return {request.uuid for request in group(number, which)}


class World:
    """A host: its disk, its hardware, its boot; and who works on it."""

    def __init__(self, path: pathlib.Path, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        # Larger than what sqlite's WAL grows to before it is checkpointed.
        self.disk = Disk(path / 'disk', '16m')
        self.hardware = Hardware(str(path / 'hardware'))
        (path / 'hardware').mkdir()
        self.boots = 0
        self.boot()
        self.workers: list[int] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def boot(self) -> None:
        """Devices forget what they did when the host is rebooted."""
        self.boots += 1
        (self.path / 'boot_id').write_text(f'boot-{self.boots}')
        for name in os.listdir(self.hardware.path):
            os.unlink(os.path.join(self.hardware.path, name))

    def configure(self) -> None:
        sysfs.boot_id = lambda: (self.path / 'boot_id').read_text()
        processes.configure(
            str(self.disk.path / 'state'), hardware_path=self.hardware.path
        )
        for name, value in {
            'plugin': 'noop',
            'max_workers': 4,
            'lock_timeout': 5.0,
            'lock_path': str(self.path / 'locks'),
        }.items():
            os_acc.CONF.set_override(name, value, 'os_acc')

    def start(self) -> None:
        seed = self.rng.getrandbits(32)
        self.workers.append(processes.start(lambda: work(self, seed)))

    def kill(self, pid: int) -> None:
        """End a worker, if it has not ended by itself."""
        os.kill(pid, signal.SIGKILL)
        self.workers.remove(pid)
        code = processes.wait(pid)
        assert code in (0, -signal.SIGKILL), f'worker ended with {code}'
        self.counts['kills'] += 1

    def kill_all(self) -> None:
        for pid in list(self.workers):
            self.kill(pid)

    def check(self) -> None:
        """Recover in a process of its own, and compare."""
        assert processes.run(lambda: compare(self)) == 0
        self.counts['comparisons'] += 1


def work(world: World, seed: int) -> None:
    """Call at random until killed."""
    world.configure()
    rng = random.Random(seed)
    take = Hardware.take

    def watched_take(self, handle, van_uuid, instance_uuid):
        try:
            take(self, handle, van_uuid, instance_uuid)
        except exception.DeviceBusy:
            os._exit(TAKEN_TWICE)

    Hardware.take = watched_take
    while True:
        # The disk may be full.
        with contextlib.suppress(exception.JournalError, exception.Timeout):
            os_acc.initialize()
            break
        time.sleep(0.05)
    while True:
        fail = [rng.choice(_STEPS)] if rng.random() < 0.1 else []
        os_acc.CONF.set_override('fail', fail, 'os_acc_fake')
        with contextlib.suppress(
            exception.AttachException,
            exception.JournalError,
            exception.Timeout,
        ):
            call(rng)()
        with open(world.path / f'calls-{os.getpid()}', 'ab') as file:
            file.write(b'.')


def call(rng: random.Random) -> Callable[[], object]:
    number, which = rng.randrange(INSTANCES), rng.randrange(GROUPS)
    info, requests = instance(number), group(number, which)
    return rng.choices(
        (
            lambda: os_acc.plug(info, requests),
            lambda: os_acc.unplug(info, requests),
            lambda: os_acc.unplug(info),
            os_acc.recover,
        ),
        (10, 4, 3, 1),
    )[0]


def compare(world: World) -> None:
    """What the journal says after a recovery is what the hardware has."""
    world.configure()
    os_acc.initialize()
    vans = list(os_acc.get_vans())
    assert {van.state for van in vans} <= {'plugged'}
    assert {van.boot_id for van in vans} <= {sysfs.boot_id()}
    in_use = {
        handle: user['van'] for handle, user in world.hardware.in_use().items()
    }
    assert in_use == {van.handle.identity: van.uuid for van in vans}
    plugged = {van.uuid for van in vans}
    for number in range(INSTANCES):
        for which in range(GROUPS):
            # All of a call, or none.
            part = vans_of(number, which) & plugged
            assert part in (set(), vans_of(number, which))


@pytest.mark.timeout(600)
def test_random_calls_kills_full_disks_and_reboots(tmp_path, report):
    rng = random.Random(SEED)
    world = World(tmp_path, rng)
    # Shown if the test fails; the report has it if the test passes.
    sys.stderr.write(f'OS_ACC_SEED={SEED}\n')
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            while len(world.workers) < WORKERS:
                world.start()
            time.sleep(rng.uniform(0.02, 0.6))
            disturb(world, rng)
        world.kill_all()
        world.check()
    finally:
        for pid in world.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        world.disk.umount()
    calls = sum(path.stat().st_size for path in tmp_path.glob('calls-*'))
    assert calls > 0
    report(
        f'random, OS_ACC_SEED={SEED}: {calls} calls by {WORKERS} processes, '
        + json.dumps(dict(sorted(world.counts.items())))
    )


def disturb(world: World, rng: random.Random) -> None:
    what = rng.choices(
        ('kill', 'full disk', 'reboot', 'compare'), (10, 4, 2, 3)
    )[0]
    if what == 'kill':
        world.kill(rng.choice(world.workers))
        return
    if what == 'full disk':
        world.disk.fill()
        time.sleep(rng.uniform(0.05, 0.3))
        if rng.random() < 0.3:
            world.kill(rng.choice(world.workers))
        world.disk.free()
    else:
        world.kill_all()
        if what == 'reboot':
            world.boot()
        world.check()
    world.counts[what] += 1
