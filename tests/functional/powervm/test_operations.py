# SPDX-License-Identifier: Apache-2.0

"""DLPAR operations that outlive their caller: slow, lost, late, killed.

In the end, no LPAR has a slot whose VAN is not in the journal.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import json
import logging
import os
import pathlib
import signal
import threading
import time
import uuid

import novalink
import processes
from pypowervm import adapter as pvm_adapter
import pytest

from acc_plug_powervm import PowerVMPlugin
import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects

RUNNING = novalink.RUNNING[0]
SLOT = novalink.FREE_SLOTS[0]
SLOTS = [f'{index:08X}' for index in novalink.FREE_SLOTS]


def instance(lpar: str = RUNNING) -> objects.InstanceInfo:
    return objects.InstanceInfo(
        uuid=uuid.uuid4(), name='i', project_id='p', hypervisor_id=lpar
    )


def arq(drc_index: str = SLOTS[0]) -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=uuid.uuid4(),
        driver='drc',
        handle=objects.DRCHandle(drc_index=drc_index),
    )


def options(**values: float) -> None:
    for name, value in values.items():
        os_acc.CONF.set_override(name, value, 'os_acc_powervm')


def plug_fails(guest: objects.InstanceInfo) -> exception.PlugException:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(guest, [arq()], live=True)
    return caught.value


def until(check: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def held(host):
    """The server carries out the next update when the event is set."""
    go_on = threading.Event()

    def wait() -> None:
        host.before_post = None
        go_on.wait(120)

    host.before_post = wait
    yield go_on
    go_on.set()


# --- a slow server


def test_slower_than_a_request(host):
    options(request_timeout=1)
    host.before_post = lambda: time.sleep(2)
    guest = instance()
    (van,) = os_acc.plug(guest, [arq()], live=True)
    assert van.driver_data == {}
    assert host.owner_of(SLOT) == RUNNING
    assert os_acc.unplug(guest, live=True) == 1
    assert host.owner_of(SLOT) is None
    assert len(host.writes()) == 2


def test_slower_than_the_limit_and_undone(host):
    """The undo waits until the server has answered, then detaches."""
    options(operation_timeout=4)

    def slowly() -> None:
        host.before_post = None
        time.sleep(6)

    host.before_post = slowly
    failure = plug_fails(instance())
    assert isinstance(failure.__cause__, exception.Timeout)
    assert (
        f'Waited 4 s for the server to attach slot {SLOTS[0]} to LPAR '
        f'{RUNNING}; it may still do so until '
    ) in str(failure)
    assert failure.undo_errors == []
    assert host.slots_of(RUNNING) == []
    assert len(os_acc.get_vans()) == 0
    assert len(host.writes()) == 2  # one attach, one detach


@pytest.mark.parametrize('way', ['recover', 'unplug', 'unplug cold', 'plug'])
def test_slower_than_the_undo_too(host, held, way, caplog):
    options(operation_timeout=1)
    guest = instance()
    failure = plug_fails(guest)
    (error,) = failure.undo_errors
    assert f'the server may still attach slot {SLOTS[0]}' in str(error)
    (van,) = os_acc.get_vans(guest)
    assert van.state == 'error'
    assert 'the server may still attach' in van.error
    assert host.owner_of(SLOT) is None
    with pytest.raises(exception.PlugException):  # nobody else gets the slot
        os_acc.plug(instance(novalink.RUNNING[1]), [arq()])

    held.set()
    until(lambda: host.owner_of(SLOT) == RUNNING)
    about = f'[instance: {guest.uuid}] [van: {van.uuid}]'
    line = f'{about} Stopped waiting for the server to attach'
    until(lambda: line in caplog.text)
    options(operation_timeout=60)
    if way == 'recover':
        (released,) = os_acc.recover().released
        assert released.uuid == van.uuid
    elif way == 'plug':
        request = arq()
        request.uuid = van.uuid
        os_acc.plug(guest, [request], live=True)
        assert host.slots_of(RUNNING) == [SLOT]
        os_acc.unplug(guest, live=True)
    else:
        assert os_acc.unplug(guest, live=way == 'unplug') == 1
    assert host.owner_of(SLOT) is None
    assert len(os_acc.get_vans()) == 0


def test_refused_after_the_caller_has_given_up(host, held):
    """The server has answered, so nobody waits for operation_limit."""
    options(operation_timeout=1)
    guest = instance()
    plug_fails(guest)
    host.fail_next(500, 'HSCL294C no such luck')
    held.set()
    options(operation_timeout=60)
    assert len(os_acc.recover().released) == 1
    assert host.owner_of(SLOT) is None
    assert len(host.writes()) == 1


def test_no_further_try_for_a_caller_that_has_left(host, held, caplog):
    options(operation_timeout=1)
    guest = instance()
    plug_fails(guest)
    host.touch(RUNNING)  # the server will refuse the update with 412
    held.set()
    until(lambda: 'the caller has given up' in caplog.text)
    assert len(os_acc.recover().released) == 1
    assert len(host.writes()) == 1


def test_another_slot_of_the_same_lpar_waits_for_its_turn(host, held):
    options(operation_timeout=1)
    guest = instance()
    plug_fails(guest)
    other = objects.InstanceInfo.obj_from_primitive(guest.obj_to_primitive())
    with pytest.raises(exception.PlugException, match='an earlier operation'):
        os_acc.plug(other, [arq(SLOTS[1])], live=True)
    # Nothing was begun for it, so it is not in the journal any more.
    assert len(os_acc.get_vans(guest)) == 1
    held.set()
    options(operation_timeout=60)
    (van,) = os_acc.plug(other, [arq(SLOTS[1])], live=True)
    assert os_acc.unplug(guest, live=True) == 2
    assert host.slots_of(RUNNING) == []
    assert van.handle.drc_index == SLOTS[1]


def test_a_slow_detach(host):
    options(request_timeout=1)
    guest = instance()
    os_acc.plug(guest, [arq()], live=True)
    host.before_post = lambda: time.sleep(2)
    assert os_acc.unplug(guest, live=True) == 1
    assert host.owner_of(SLOT) is None


@pytest.mark.parametrize('way', ['recover', 'unplug'])
def test_a_detach_slower_than_the_limit(host, held, way):
    guest = instance()
    held.set()
    os_acc.plug(guest, [arq()], live=True)
    held.clear()
    go_on = threading.Event()
    host.before_post = lambda: go_on.wait(120)
    options(operation_timeout=1)
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(guest, live=True)
    assert f'server to detach slot {SLOTS[0]} from' in str(caught.value)
    assert 'may still do so until' in str(caught.value)
    (van,) = os_acc.get_vans(guest)
    assert van.state == 'error'
    assert host.owner_of(SLOT) == RUNNING
    go_on.set()
    options(operation_timeout=60)
    if way == 'recover':
        assert len(os_acc.recover().released) == 1
    else:
        assert os_acc.unplug(guest, live=True) == 1
    assert host.owner_of(SLOT) is None
    assert len(host.writes()) == 2


# --- a lost answer


@pytest.mark.parametrize('seconds', [0, 1.0])
def test_a_lost_answer(host, seconds, caplog):
    guest = instance()
    host.lose_next(seconds)
    os_acc.plug(guest, [arq()], live=True)
    assert 'the answer is lost' in caplog.text
    assert host.slots_of(RUNNING) == [SLOT]
    host.lose_next(seconds)
    assert os_acc.unplug(guest, live=True) == 1
    assert host.slots_of(RUNNING) == []
    assert len(host.writes()) == 2


@pytest.mark.parametrize('status', [502, 504])
def test_an_answer_lost_by_somebody_between(host, status):
    host.fail_next(status, applied=True)
    os_acc.plug(instance(), [arq()], live=True)
    assert host.slots_of(RUNNING) == [SLOT]
    assert len(host.writes()) == 1


def test_an_answer_that_cannot_be_read(host, caplog):
    host.garble_next()
    os_acc.plug(instance(), [arq()], live=True)
    assert 'the answer is lost' in caplog.text
    assert host.slots_of(RUNNING) == [SLOT]
    assert len(host.writes()) == 1


@pytest.mark.parametrize('seconds', [6.5, 16.0])
def test_a_lost_answer_and_a_late_attach(host, seconds):
    """Before the end of the undo, and after it."""
    options(operation_timeout=6)
    host.lose_next(seconds)
    failure = plug_fails(instance())
    assert isinstance(failure.__cause__, exception.Timeout)
    if seconds < 12:
        assert failure.undo_errors == []
    else:
        (van,) = os_acc.get_vans()
        assert van.state == 'error'
        until(lambda: host.owner_of(SLOT) == RUNNING)
        options(operation_timeout=60)
        assert len(os_acc.recover().released) == 1
    assert host.owner_of(SLOT) is None
    assert len(os_acc.get_vans()) == 0


def test_a_lost_answer_that_nothing_follows(host):
    """The VAN stays until the server has ended it for certain."""
    options(operation_timeout=1, operation_limit=8)
    host.lose_next(None)
    plug_fails(instance())
    (van,) = os_acc.get_vans()
    assert 'may still attach' in van.error
    options(operation_timeout=60)
    assert len(os_acc.recover().released) == 1
    assert len(os_acc.get_vans()) == 0
    assert host.owner_of(SLOT) is None


def test_the_server_fails_after_a_lost_answer(host):
    """The LPAR is examined again until the server shows it."""
    host.lose_next(1.0)

    def fail() -> None:
        host.before_post = None
        host.fail_next(500, 'starting', times=3, method='GET')

    host.before_post = fail
    os_acc.plug(instance(), [arq()], live=True)
    assert host.slots_of(RUNNING) == [SLOT]


def test_a_busy_server_is_asked_again(host):
    host.fail_next(503, times=2)
    os_acc.plug(instance(), [arq()], live=True)
    assert host.slots_of(RUNNING) == [SLOT]
    assert len(host.writes()) == 3


# --- RMC


def test_rmc_comes_up(host):
    options(rmc_timeout=20)
    timer = threading.Timer(1, host.set_rmc, (novalink.NO_RMC, 'active'))
    timer.start()
    guest = instance(novalink.NO_RMC)
    os_acc.plug(guest, [arq()], live=True)
    assert host.owner_of(SLOT) == novalink.NO_RMC
    host.set_rmc(novalink.NO_RMC, 'inactive')
    options(rmc_timeout=0)
    with pytest.raises(exception.UnplugException, match='RMC'):
        os_acc.unplug(guest, live=True)
    host.set_rmc(novalink.NO_RMC, 'active')
    assert os_acc.unplug(guest, live=True) == 1


# --- kill -9


def configured(link, state: pathlib.Path, **values: float) -> None:
    """Configure a child process."""
    logging.disable(logging.CRITICAL)
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    PowerVMPlugin.load('powervm')
    conf.set_override('state_path', str(state), 'os_acc')
    conf.set_override('plugin', 'powervm', 'os_acc')
    options(port=link.port, request_timeout=5, rmc_timeout=1, **values)


GUEST = objects.InstanceInfo(
    uuid='7b4a1e52-5d0c-4e49-8a53-2b8f6d1c0e01',
    name='i',
    project_id='p',
    hypervisor_id=RUNNING,
)
REQUEST = '061c0c22-0139-4404-af0c-dad4469dc6b7'


def plug() -> None:
    request = arq()
    request.uuid = REQUEST
    os_acc.plug(GUEST, [request], live=True)


def unplug(live: bool = True) -> None:
    os_acc.unplug(GUEST, live=live)


def plug_in_vain() -> None:
    with contextlib.suppress(exception.PlugException):
        plug()


class Machine:
    """A state path that processes use one after the other."""

    def __init__(self, link: novalink.NovaLink, path: pathlib.Path) -> None:
        self.link, self.path = link, path
        path.mkdir()
        self.child: int | None = None

    def process(
        self,
        work: Callable[[], object],
        kill_at: int | None = None,
        **values: float,
    ) -> tuple[int, list[str]]:
        """Do work in a new process, and kill it at a boundary.

        :returns: how it ended, and the boundaries that it passed
        """
        names = self.path / 'names'

        def child() -> None:
            configured(self.link, self.path / 'state', **values)
            os_acc.initialize()
            boundaries = processes.Boundaries(kill_at)
            boundaries.watch(
                journal.Journal,
                'journal',
                ['add', 'save', 'save_all', 'mark', 'settle'],
            )
            boundaries.watch(PowerVMPlugin, 'plugin', ['plug', 'unplug'])
            boundaries.watch(
                pvm_adapter.Adapter, 'server', ['read', 'update_by_path']
            )
            work()
            names.write_text(json.dumps(boundaries.names))

        self.child = processes.start(child)
        code = processes.wait(self.child)
        return code, json.loads(names.read_text()) if code == 0 else []

    def kill(self) -> None:
        """Kill the process that runs now. The server calls it."""
        self.link.before_post = None
        os.kill(self.child, signal.SIGKILL)

    def vans(self) -> list[objects.VAN]:
        opened = journal.Journal(str(self.path / 'state'), 5, read_only=True)
        with contextlib.closing(opened):
            return list(opened.vans())

    def check(self) -> None:
        """Check that LPAR and journal agree."""
        vans = self.vans()
        assert {van.state for van in vans} <= {'plugged'}
        owner = RUNNING if vans else None
        assert self.link.owner_of(SLOT) == owner
        assert self.link.slots_of(RUNNING) == [SLOT] * len(vans)


@pytest.fixture
def machine(link, tmp_path):
    return Machine(link, tmp_path / 'machine')


@pytest.fixture
def kill_in_post(machine):
    """The process is killed when it has sent the next update.

    The server carries the update out when the event is set.
    """
    go_on = threading.Event()

    def hook() -> None:
        machine.kill()
        go_on.wait(60)

    machine.link.before_post = hook
    yield go_on
    go_on.set()


def note_of(van: objects.VAN) -> dict[str, object]:
    return json.loads(van.driver_data['powervm_operation'])


@pytest.mark.parametrize('answer', ['at once', 'later', 'never'])
def test_killed_before_the_answer_to_an_attach(machine, kill_in_post, answer):
    link, times = machine.link, {}
    if answer == 'at once':
        kill_in_post.set()
    elif answer == 'never':
        kill_in_post.set()
        link.lose_next(None)
        times = {'operation_timeout': 1, 'operation_limit': 14}
    code, _ = machine.process(plug, **times)
    assert code == -signal.SIGKILL
    if answer != 'at once':
        assert machine.process(lambda: None, **times)[0] == 0
        (van,) = machine.vans()
        assert van.state == 'error'
        assert (
            f'the server may still attach slot {SLOTS[0]} to LPAR {RUNNING} '
            'until'
        ) in van.error
        assert 'the process that waited for its answer has ended' in van.error

        def cold() -> None:
            with pytest.raises(exception.UnplugException):
                unplug(live=False)

        assert machine.process(cold, **times)[0] == 0
        (van,) = machine.vans()
    if answer == 'never':
        until(lambda: time.time() > note_of(van)['until'], 20)
    else:
        kill_in_post.set()
        until(lambda: link.owner_of(SLOT) == RUNNING)
    assert machine.process(lambda: None, **times)[0] == 0
    assert machine.vans() == []
    machine.check()
    assert machine.process(plug, **times)[0] == 0
    machine.check()
    assert len(machine.vans()) == 1


@pytest.mark.parametrize('answer', ['at once', 'later', 'never'])
def test_killed_before_the_answer_to_a_detach(machine, kill_in_post, answer):
    link, hook = machine.link, machine.link.before_post
    link.before_post = None
    assert machine.process(plug)[0] == 0
    link.before_post = hook
    if answer != 'later':
        kill_in_post.set()
    if answer == 'never':
        link.lose_next(None)
    code, _ = machine.process(unplug)
    assert code == -signal.SIGKILL
    assert [van.state for van in machine.vans()] == ['unplugging']
    # It asks again, because the LPAR still shows the slot.
    assert machine.process(lambda: None)[0] == 0
    assert machine.vans() == []
    machine.check()
    kill_in_post.set()
    machine.check()


WORK = {'plug': plug, 'unplug': unplug, 'plug that fails': plug_in_vain}


@pytest.mark.timeout(600)
@pytest.mark.parametrize('name', WORK)
def test_killed_at_every_boundary(tmp_path, name, report):
    times = {'operation_timeout': 3, 'operation_limit': 1}

    def run(number: int | None) -> tuple[Machine, int, list[str]]:
        with novalink.NovaLink() as link:
            machine = Machine(link, tmp_path / str(number))
            if name == 'unplug':
                assert machine.process(plug, operation_timeout=60)[0] == 0
            elif name == 'plug that fails':
                link.fail_next(500, 'lost in space', applied=True)
            code, names = machine.process(WORK[name], number, **times)
            if number is None:
                machine.check()
                return code, names
            assert machine.process(lambda: None, **times)[0] == 0
            if {van.state for van in machine.vans()} == {'error'}:
                # Killed between the note and the request.
                time.sleep(5)
                assert machine.process(lambda: None, **times)[0] == 0
            machine.check()
            return code, names

    code, names = run(None)
    assert code == 0
    for number, boundary in enumerate(names):
        code, _ = run(number)
        assert code == -signal.SIGKILL, boundary
    report(f'PowerVM, {name}: killed at {len(names)} boundaries')
