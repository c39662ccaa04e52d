# SPDX-License-Identifier: Apache-2.0

"""kill -9 around programming, then a new process: right by the rules.

The rules: what was cut short is in error, is not given out, and is right
again when it is programmed again; what was not yet begun, or has ended, is as
if nobody had been killed.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import os
import pathlib
import signal
import threading
import time
from typing import Any
import uuid

import processes
import pytest
import vendor as vendor_module
import web

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.kinds.fake.driver.hardware import Hardware
from os_acc.privileged import privsep
from os_acc.testing import kernel as kernel_module

DEVICE = 'f0'


class FakeHost:
    """A state path, with a fake device of two handles."""

    address, driver = DEVICE, 'fake'
    bitstream: str | None = None

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        (path / 'hardware').mkdir()
        self.hardware = Hardware(str(path / 'hardware'))

    def configure(self) -> None:
        # As Kernel.install() does for the other host: without the daemon.
        privsep.run_here(True)
        processes.configure(
            str(self.path / 'state'),
            devices=[f'{DEVICE}:pci:2:single'],
            hardware_path=self.hardware.path,
            discover=True,
        )

    def times(self) -> int:
        return self.hardware.times(DEVICE)

    def inside(self) -> str | None:
        return self.hardware.function_of(DEVICE)

    def run(self, work: Callable[[], object]) -> int:
        """Do work in a process of its own, after initialize()."""
        return processes.run(self.child(work))

    def child(self, work: Callable[[], object]) -> Callable[[], None]:
        def child() -> None:
            self.configure()
            os_acc.initialize()
            work()

        return child

    def record(self) -> tuple[str, str | None] | None:
        opened = journal.Journal(str(self.path / 'state'), 5, read_only=True)
        with contextlib.closing(opened):
            for each in opened.programs():
                return each.state, each.function_id
        return None

    def vans(self) -> list[str]:
        opened = journal.Journal(str(self.path / 'state'), 5, read_only=True)
        with contextlib.closing(opened):
            return [entry.van.state for entry in opened.entries()]

    def request(self, function: str | None) -> objects.AcceleratorRequest:
        return objects.AcceleratorRequest(
            uuid=str(uuid.uuid4()),
            driver=self.driver,
            function_id=function,
            bitstream=self.bitstream if function else None,
            resource_class='FPGA' if self.driver == 'fpga' else None,
        )

    def plug(self, function: str | None) -> objects.InstanceInfo:
        made = objects.InstanceInfo(
            uuid=str(uuid.uuid4()), name='i', project_id='p'
        )
        os_acc.plug(made, [self.request(function)])
        return made

    def plug_and_unplug(self) -> None:
        os_acc.unplug(self.plug('aes'))

    def program(self) -> None:
        os_acc.program_device(self.address, self.bitstream, 'aes')

    def refused(self) -> None:
        """As it is, nobody gets it."""
        try:
            self.plug(None)
        except exception.PlugException as err:
            assert isinstance(err.__cause__, exception.DeviceError)
            assert 'Program it again' in str(err)
        else:
            raise AssertionError('it was given out')

    def check(self, cut_short: bool) -> None:
        """What a new process makes of it."""
        assert self.run(lambda: None) == 0
        assert self.vans() == []
        if cut_short:
            assert self.record() == ('error', 'aes')
            assert self.run(self.refused) == 0
        times = self.times()
        assert self.run(self.program) == 0
        assert self.record() == ('programmed', 'aes')
        assert self.inside() == 'aes'
        assert self.times() - times <= 1
        times = self.times()
        assert self.run(self.plug_and_unplug) == 0
        assert self.times() == times


class CommandHost(FakeHost):
    """A kernel of files with an FPGA, and its vendor's tool."""

    address, driver = vendor_module.FPGA, 'fpga'

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.tool = vendor_module.Vendor(path / 'vendor')
        self.kernel = kernel_module.Kernel(path / 'host')
        vendor_module.furnish(self.kernel)
        self.bitstream = self.tool.bitstream('aes')

    def configure(self) -> None:
        # Not undone: the child ends with it.
        self.kernel.install(pytest.MonkeyPatch())
        processes.configure(str(self.path / 'state'))
        self.tool.configure('single')

    def times(self) -> int:
        return len(self.tool.calls())

    def inside(self) -> str | None:
        return self.tool.function()


def kill_self(*args: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(params=[FakeHost, CommandHost], ids=['fake', 'command'])
def host(request, tmp_path):
    return request.param(tmp_path)


@pytest.mark.parametrize('work', ['program', 'plug_and_unplug'])
@pytest.mark.parametrize(
    ('state', 'after', 'cut_short'),
    [
        ('programming', False, False),
        ('programming', True, True),
        ('programmed', False, True),
        ('programmed', True, False),
    ],
)
def test_kill_around_what_is_written(host, work, state, after, cut_short):
    """Before and after each of the two rows that programming writes."""

    def killed() -> None:
        original = journal.Journal.save_program

        def save_program(self, program):
            if program.state == state and not after:
                kill_self()
            original(self, program)
            if program.state == state:
                kill_self()

        journal.Journal.save_program = save_program
        getattr(host, work)()

    assert host.run(killed) == -signal.SIGKILL
    programmed = state == 'programmed'
    assert host.times() == programmed
    host.check(cut_short)


def test_kill_while_a_command_is_at_it(tmp_path, report):
    """The command lives on: nobody programs beside it."""
    host = CommandHost(tmp_path)
    host.tool.mode('hang')
    child = processes.start(host.child(host.program))
    until((host.tool.directory / 'pid').exists)
    os.kill(child, signal.SIGKILL)
    assert processes.wait(child) == -signal.SIGKILL
    assert host.record() == ('programming', 'aes')
    host.tool.mode('ok')
    # The command still reads root's copy of the image.
    copy = pathlib.Path(host.tool.copy())
    assert copy.name == 'aes.gbs'

    def busy() -> None:
        os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
        with pytest.raises(exception.DeviceBusy, match='earlier command'):
            host.program()

    assert host.run(busy) == 0
    assert host.record() == ('error', 'aes')
    assert host.times() == 1
    assert copy.read_text() == 'aes'
    os.killpg(int((host.tool.directory / 'pid').read_text()), signal.SIGKILL)
    # The next recover() removes it.
    until(lambda: host.run(lambda: None) == 0 and not copy.exists())
    assert list(copy.parent.parent.iterdir()) == []
    host.check(cut_short=True)
    report('killed while a command programmed: in error, then right again')


@pytest.mark.parametrize('work', ['program', 'plug_and_unplug'])
def test_kill_in_a_download(host, work):
    content = b'aes' if host.driver == 'fpga' else os.urandom(500_000)
    begun, go_on = threading.Event(), threading.Event()
    with web.serving() as server:
        host.bitstream = server.put('/aes.gbs', content)

        def hold(path: str) -> None:
            if path == '/aes.gbs' and not go_on.is_set():
                begun.set()
                go_on.wait(30)

        server.hook = hold

        def allow() -> None:
            os_acc.CONF.set_override('allow_http', True, 'os_acc_bitstreams')

        configure = host.configure
        host.configure = lambda: (configure(), allow())
        child = processes.start(host.child(getattr(host, work)))
        assert begun.wait(30)
        os.kill(child, signal.SIGKILL)
        assert processes.wait(child) == -signal.SIGKILL
        go_on.set()
        assert host.record() is None
        assert host.times() == 0
        host.check(cut_short=False)
        cache = host.path / 'state/bitstreams'
        assert [path.suffix for path in cache.iterdir()] == ['.gbs']


def test_many_processes_want_one_device(tmp_path, report):
    """The same function: programmed once. Others: one wins."""
    host = FakeHost(tmp_path)
    assert host.run(lambda: None) == 0

    def plug_slowly(function: str, name: str) -> None:
        os_acc.CONF.set_override('delays', {'program': '0.2'}, 'os_acc_fake')
        outcome = 'plugged'
        try:
            host.plug(function)
        except exception.PlugException as err:
            outcome = type(err.__cause__).__name__
        (tmp_path / name).write_text(outcome)

    def at_once(*functions: str) -> list[str]:
        names = [f'{function}-{n}' for n, function in enumerate(functions)]
        children = [
            processes.start(
                host.child(functools.partial(plug_slowly, function, name))
            )
            for function, name in zip(functions, names, strict=True)
        ]
        assert [processes.wait(child) for child in children] == [0, 0]
        return sorted((tmp_path / name).read_text() for name in names)

    assert at_once('aes', 'sha') == ['DeviceBusy', 'plugged']
    assert host.times() == 1
    winner = host.inside()

    def start_over() -> None:
        for van in os_acc.get_vans():
            os_acc.unplug(
                objects.InstanceInfo(
                    uuid=van.instance_uuid, name='', project_id=''
                )
            )

    assert host.run(start_over) == 0
    other = 'sha' if winner == 'aes' else 'aes'
    assert at_once(other, other) == ['plugged', 'plugged']
    assert host.times() == 2
    report('2 processes: one function programmed once; of two, one wins')
