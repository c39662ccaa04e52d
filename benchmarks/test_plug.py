# SPDX-License-Identifier: Apache-2.0

"""plug and unplug of 8 VANs, plug alone, and a plug that is undone.

The peer is TaskFlow. Neither side has a device, so the sequence, the state and
the undo are measured. os-acc writes them to its journal on the disk, TaskFlow
keeps them in memory. With 5000 VANs of other instances in the journal, os-acc
is compared with itself. So is a plug that writes its events with one that
makes none; the journal then has as many events as it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
import pathlib
import socket
from typing import Any
import uuid

from oslo_utils import timeutils
import pytest
from taskflow import engines
from taskflow import task
from taskflow.patterns import linear_flow

import acc_plug_noop
import os_acc
from os_acc import driver
from os_acc import exception
from os_acc import journal
from os_acc import loader
from os_acc import objects
from os_acc.attach import recorder
from os_acc.journal import events
from os_acc.kernel import sysfs

Requests = Sequence[objects.AcceleratorRequest]

COUNT = 8
ROUNDS = 30
INSTANCE = objects.InstanceInfo(
    uuid=str(uuid.UUID(int=1)), name='instance-1', project_id='project'
)


class BenchError(Exception):
    """The error that the last step raises."""


class BenchDriver(driver.DriverBase):
    """A driver without devices: it sets the handle of the request.

    :ivar saves: save the VAN once, as a driver with a device has to
    :ivar fails_for: uuid of the VAN for which postplug fails
    """

    saves = False
    fails_for: str | None = None

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        return True

    def get_devices(self) -> list[objects.Device]:
        return []

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        van.handle = request.handle
        if self.saves:
            van.save()

    def postplug(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        if van.uuid == self.fails_for:
            raise BenchError

    def unprepareVAN(
        self, van: objects.VAN, instance_info: objects.InstanceInfo
    ) -> None:
        pass


class Step(task.Task):
    """A task that does the same as BenchDriver and the plugin noop."""

    def __init__(self, name: str, van: dict[str, Any], fails: bool) -> None:
        super().__init__(name=name)
        self.van = van
        self.fails = fails

    def execute(self) -> None:
        if self.fails:
            raise BenchError

    def revert(self, **_kwargs: Any) -> None:
        pass


class Prepare(Step):
    def execute(self) -> None:
        self.van['handle'] = self.van['wanted']


@pytest.fixture
def requests() -> list[objects.AcceleratorRequest]:
    return [_request(INSTANCE.uuid, number) for number in range(COUNT)]


@pytest.fixture
def bench_driver() -> BenchDriver:
    return BenchDriver.load('bench')


@pytest.fixture
def with_rows(
    disk: pathlib.Path,
    initialize: Callable[..., Callable[[], None]],
    bench_driver: BenchDriver,
) -> Callable[[int], Callable[[], None]]:
    """A function that initializes os-acc with so many VANs in its journal.

    It returns the same as the function of the fixture initialize.
    """
    plugin = acc_plug_noop.NoopPlugin.load('noop')
    extensions = loader.Extensions(
        {'bench': bench_driver}, {'noop': plugin}, {}
    )

    def make(rows: int) -> Callable[[], None]:
        state_path = disk / f'rows-{rows}'
        _fill(state_path, rows)
        use = initialize(state_path, extensions)
        assert len(os_acc.get_vans()) == rows
        return use

    return make


@pytest.fixture(params=['rows=0', 'rows=5000', 'saving'])
def compare(
    request: pytest.FixtureRequest,
    with_rows: Callable[[int], Callable[[], None]],
    bench_driver: BenchDriver,
    take_turns: Callable[..., None],
) -> Callable[..., None]:
    """A function that compares os-acc with TaskFlow or an empty os-acc."""

    def do(act: Callable[[], None], taskflow: Callable[[], None]) -> None:
        use_empty = with_rows(0)
        if request.param != 'rows=5000':
            bench_driver.saves = request.param == 'saving'
            take_turns(act, taskflow, ROUNDS)
            return
        use_full = with_rows(5000)

        def act_on_empty() -> None:
            use_empty()
            act()
            use_full()

        take_turns(act, act_on_empty, ROUNDS)

    return do


@pytest.mark.benchmark(group='plug 8, unplug 8')
def test_plug(compare: Callable[..., None], requests: Requests) -> None:
    compare(
        functools.partial(_plug, requests),
        functools.partial(_plug_taskflow, requests),
    )


@pytest.mark.benchmark(group='plug 8, unplug 8')
def test_plug_taskflow(
    with_rows: Callable[[int], Callable[[], None]],
    take_turns: Callable[..., None],
    requests: Requests,
) -> None:
    with_rows(0)
    take_turns(
        functools.partial(_plug_taskflow, requests),
        functools.partial(_plug, requests),
        ROUNDS,
    )


@pytest.fixture
def with_events(
    with_rows: Callable[[int], Callable[[], None]], bench_driver: BenchDriver
) -> None:
    """Initialize os-acc with drivers that save, and a journal long in use."""
    bench_driver.saves = True
    with_rows(0)
    event = events.Event(
        at=events.now(),
        operation=events.PLUG,
        step='plug',
        result=events.DONE,
        instance_uuid=INSTANCE.uuid,
        instance_name=INSTANCE.name,
    )
    os_acc._host.journal.note([event] * events.MOST)


@pytest.mark.benchmark(group='plug 8')
def test_plug_alone(
    with_events: None, take_turns: Callable[..., None], requests: Requests
) -> None:
    """The peer is one linear flow of 24 tasks."""

    def taskflow() -> None:
        engines.run(_plug_flow(_vans(requests)))

    take_turns(
        functools.partial(os_acc.plug, INSTANCE, requests),
        taskflow,
        ROUNDS,
        before_peer=functools.partial(os_acc.unplug, INSTANCE),
    )
    assert len(os_acc.get_vans(INSTANCE)) == COUNT


@pytest.mark.benchmark(group='plug 8')
def test_events(
    with_events: None,
    take_turns: Callable[..., None],
    requests: Requests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer is os-acc that makes and writes no events."""

    def without_events() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(recorder.Recorder, 'step', lambda *a, **k: None)
            patch.setattr(recorder.Recorder, 'ended', lambda self: [])
            os_acc.plug(INSTANCE, requests)

    undo = functools.partial(os_acc.unplug, INSTANCE)
    take_turns(
        functools.partial(os_acc.plug, INSTANCE, requests),
        without_events,
        ROUNDS,
        before_peer=undo,
        after_peer=undo,
    )


@pytest.mark.benchmark(group='plug 8, undone')
def test_rollback(
    compare: Callable[..., None],
    bench_driver: BenchDriver,
    requests: Requests,
) -> None:
    bench_driver.fails_for = requests[-1].uuid
    compare(
        functools.partial(_roll_back, requests),
        functools.partial(_roll_back_taskflow, requests),
    )
    assert not len(os_acc.get_vans(INSTANCE))


@pytest.mark.benchmark(group='plug 8, undone')
def test_rollback_taskflow(
    with_rows: Callable[[int], Callable[[], None]],
    bench_driver: BenchDriver,
    take_turns: Callable[..., None],
    requests: Requests,
) -> None:
    bench_driver.fails_for = requests[-1].uuid
    with_rows(0)
    take_turns(
        functools.partial(_roll_back_taskflow, requests),
        functools.partial(_roll_back, requests),
        ROUNDS,
    )


def _plug(requests: Requests) -> None:
    assert len(os_acc.plug(INSTANCE, requests)) == COUNT
    assert os_acc.unplug(INSTANCE) == COUNT


def _plug_taskflow(requests: Requests) -> None:
    vans = _vans(requests)
    engines.run(_plug_flow(vans))
    engines.run(_unplug_flow(vans))


def _roll_back(requests: Requests) -> None:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(INSTANCE, requests)
    assert not caught.value.undo_errors


def _roll_back_taskflow(requests: Requests) -> None:
    flow = _plug_flow(_vans(requests), fails=True)
    with pytest.raises(BenchError):
        engines.run(flow)


def _vans(requests: Requests) -> list[dict[str, Any]]:
    return [{'uuid': r.uuid, 'wanted': r.handle} for r in requests]


def _plug_flow(
    vans: Sequence[dict[str, Any]], fails: bool = False
) -> linear_flow.Flow:
    """Build the steps in os-acc's order; fails: the last step fails."""
    flow = linear_flow.Flow('plug')
    for kind, name in (
        (Prepare, 'prepare'),
        (Step, 'plug'),
        (Step, 'postplug'),
    ):
        for van in vans:
            last = name == 'postplug' and van is vans[-1]
            flow.add(kind(f'{name} {van["uuid"]}', van, fails and last))
    return flow


def _unplug_flow(vans: Sequence[dict[str, Any]]) -> linear_flow.Flow:
    flow = linear_flow.Flow('unplug')
    for name in ('unplug', 'unprepare'):
        for van in reversed(vans):
            flow.add(Step(f'{name} {van["uuid"]}', van, False))
    return flow


def _request(instance_uuid: str, number: int) -> objects.AcceleratorRequest:
    """Make a request with its own PCI function, as from an ARQ."""
    domain, rest = divmod(number, 256 * 32 * 8)
    bus, rest = divmod(rest, 32 * 8)
    slot, function = divmod(rest, 8)
    return objects.AcceleratorRequest(
        uuid=str(uuid.UUID(int=number + 1)),
        state='Bound',
        hostname=socket.gethostname(),
        instance_uuid=instance_uuid,
        device_profile_name='profile',
        handle=objects.PCIHandle(
            address=f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'
        ),
    )


def _fill(state_path: pathlib.Path, rows: int) -> None:
    """Fill the journal with plugged VANs, 8 for each instance."""
    now = timeutils.utcnow(with_timezone=True)
    entries = []
    for number in range(rows):
        instance = objects.InstanceInfo(
            uuid=str(uuid.UUID(int=1000 + number // COUNT)),
            name=f'instance-{1000 + number // COUNT}',
            project_id='project',
        )
        request = _request(instance.uuid, 1000 + number)
        van = objects.VAN(
            uuid=request.uuid,
            instance_uuid=instance.uuid,
            driver='bench',
            plugin='noop',
            state='plugged',
            handle=request.handle,
            device=request.handle.address,
            boot_id=sysfs.boot_id(),
            created_at=now,
            updated_at=now,
        )
        entries.append(
            journal.Entry(van, request, instance, live=False, attached=True)
        )
    made = journal.Journal(str(state_path), timeout=30.0)
    if entries:
        made.add(entries)
    made.close()
