# SPDX-License-Identifier: Apache-2.0

"""os-acc run and cni-like with real processes: signals, kill -9, many."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import io
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time

import processes
import pytest
from test_crash import WATCHED

from os_acc import journal
from os_acc.cli import app

# Imported before the fork, so that a child starts in milliseconds.
from os_acc.cli import cni as _cni  # noqa: F401
from os_acc.kinds.fake.driver.hardware import Hardware

# Measuring coverage would slow down the many processes of this test.
pytestmark = [pytest.mark.no_cover, pytest.mark.timeout(1800)]

# How many wait for the three devices at once.
MANY = 100
LONG = 300.0

PROGRAM = [
    sys.executable,
    '-c',
    'from os_acc.cli import app; raise SystemExit(app.main())',
]
RUN = ['run', '--resource-class', 'CUSTOM_FAKE_PCI']
CNI = json.dumps(
    {
        'cniVersion': '1.1.0',
        'name': 'net',
        'type': 'os-acc',
        'resourceClass': 'CUSTOM_FAKE_PCI',
        'count': 2,
        'plugin': 'noop',
    }
)


class Host:
    """A state path with three fake devices, for many processes."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.state = path / 'state'
        self.conf = path / 'os-acc.conf'
        self.conf.write_text(
            f'[os_acc]\nstate_path = {self.state}\nplugin = noop\n'
            'max_workers = 1\n'
            # SQLite's lock has no queue: of 100 processes that write on a busy
            # machine, one may wait longer than the default of 30 s.
            'journal_timeout = 600\n'
            '[os_acc_fake]\ndevices = nic0:pci:3\ndiscover = True\n'
            f'hardware_path = {path}/hardware\n'
        )

    def arguments(self, *words: object) -> list[str]:
        return ['--config-file', str(self.conf), *map(str, words)]

    def start(self, *words: object, **options) -> subprocess.Popen:
        """Start the command in a new interpreter."""
        return subprocess.Popen(
            [*PROGRAM, *self.arguments(*words)], text=True, **options
        )

    def fork(
        self, *words: object, stdin: str = '', before: Callable = lambda: None
    ) -> int:
        """Start the command in a fork of this process, which is faster."""

        def work() -> None:
            before()
            sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
            out = open(self.path / 'out', 'w')  # noqa: SIM115
            os.dup2(out.fileno(), 1)
            sys.stdout = out
            code = app.main(self.arguments(*words))
            out.flush()
            os._exit(code)

        return processes.start(work)

    def call(self, *words: object, **options) -> int:
        return processes.wait(self.fork(*words, **options))

    def out(self) -> str:
        return (self.path / 'out').read_text()

    def vans(self) -> list[str]:
        """The states of the VANs in the journal."""
        opened = journal.Journal(str(self.state), 60, read_only=True)
        with contextlib.closing(opened):
            return [entry.van.state for entry in opened.entries()]

    def in_use(self) -> dict[str, dict[str, str]]:
        return Hardware(f'{self.path}/hardware').in_use()

    def is_empty(self) -> bool:
        return not self.vans() and not self.in_use()


@pytest.fixture
def host(tmp_path) -> Host:
    return Host(tmp_path / 'host')


def wait(until: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def script(path: pathlib.Path, text: str) -> list[str]:
    """A command that says when it is ready, and does not end by itself."""
    return [
        '--',
        'sh',
        '-c',
        f'{text}\necho $$ > {path}/new; mv {path}/new {path}/pid\n'
        'while :; do sleep 0.05; done',
    ]


# --- os-acc run and signals


@pytest.mark.parametrize('name', ['INT', 'TERM', 'HUP'])
def test_a_signal_to_os_acc(host, name):
    text = f'trap "echo got {name}; exit 9" {name}'
    # A shell starts processes in the background with SIGINT ignored.
    started = host.start(
        *RUN,
        *script(host.path, text),
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(
            getattr(signal, f'SIG{name}'), signal.SIG_DFL
        ),
    )
    wait((host.path / 'pid').exists)
    assert host.vans() == ['plugged']
    started.send_signal(getattr(signal, f'SIG{name}'))
    out, _ = started.communicate(timeout=LONG)
    assert (started.returncode, out) == (9, f'got {name}\n')
    assert host.is_empty()


def test_ctrl_c_in_a_terminal_comes_once(host):
    """The kernel sends it to the command too; os-acc does not repeat it."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # The second SIGINT, if there is one, comes within the second.
        words = script(
            host.path,
            "trap 'n=x$n; echo $n > count' INT".replace(
                'count', str(host.path / 'count')
            ),
        )
        os.execv(PROGRAM[0], [*PROGRAM, *host.arguments(*RUN, *words)])
    try:
        wait((host.path / 'pid').exists)
        os.write(terminal, b'\x03')
        wait((host.path / 'count').exists)
        time.sleep(1.0)
        assert (host.path / 'count').read_text() == 'x\n'
        os.kill(int((host.path / 'pid').read_text()), signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 137
    finally:
        os.close(terminal)
    assert host.is_empty()


def test_kill_9_of_os_acc(host):
    started = host.start(*RUN, *script(host.path, ''))
    wait((host.path / 'pid').exists)
    started.kill()
    started.wait()
    command = int((host.path / 'pid').read_text())
    # The command goes on, and has its device.
    assert host.call('recover') == 0
    assert host.vans() == ['plugged']
    os.kill(command, signal.SIGKILL)
    wait(lambda: not pathlib.Path(f'/proc/{command}').exists())
    # Any command that changes something releases it.
    assert host.call('unplug', 'somebody') == 0
    assert host.is_empty()


def test_a_waiting_run_gets_the_device_of_a_killed_one(host):
    words = ['run', '--resource-class', 'CUSTOM_FAKE_PCI', '--count', 3]
    started = host.start(*words, *script(host.path, ''))
    wait((host.path / 'pid').exists)
    started.kill()
    started.wait()
    waiting = host.fork(*words, '--wait', LONG, '--', 'true')
    time.sleep(1.0)
    os.kill(int((host.path / 'pid').read_text()), signal.SIGKILL)
    assert processes.wait(waiting) == 0
    assert host.is_empty()


def test_kill_9_of_os_acc_at_every_boundary(host, tmp_path, report):
    names = tmp_path / 'names'

    def watched(number: int | None) -> Callable[[], None]:
        def before() -> None:
            boundaries = processes.Boundaries(number)
            for cls, label, methods in WATCHED:
                boundaries.watch(cls, label, methods)
            if number is None:
                real = os._exit

                def end(code: int) -> None:
                    names.write_text(json.dumps(boundaries.names))
                    real(code)

                os._exit = end

        return before

    ran = host.path / 'ran'
    words = (*RUN, '--', 'touch', ran)
    assert host.call(*words, before=watched(None)) == 0
    boundaries = json.loads(names.read_text())
    assert len(boundaries) > 20
    for number, boundary in enumerate(boundaries):
        ran.unlink(missing_ok=True)
        code = host.call(*words, before=watched(number))
        assert code == -signal.SIGKILL, boundary

        def released() -> bool:
            # The command may still be running.
            assert host.call('recover', '-f', 'value') == 0
            return host.is_empty()

        wait(released)
    report(f'run: killed at {len(boundaries)} boundaries')


def test_many_wait_for_three_devices(host, report):
    """No device is ever with two commands, and all get one."""
    text = (
        f'mkdir {host.path}/$OS_ACC_PCI_ADDRESSES || exit 77; sleep 0.1; '
        f'rmdir {host.path}/$OS_ACC_PCI_ADDRESSES'
    )
    start = time.monotonic()
    pids = [
        host.fork(*RUN, '--wait', 1500, '--', 'sh', '-c', text)
        for _ in range(MANY)
    ]
    codes = [processes.wait(pid) for pid in pids]
    assert codes == [0] * MANY
    assert host.is_empty()
    report(
        f'run --wait: {MANY} at once for 3 devices took '
        f'{time.monotonic() - start:.0f} s'
    )


# --- cni-like


@pytest.fixture
def attachment(monkeypatch):
    monkeypatch.setenv('CNI_CONTAINERID', 'c1')
    monkeypatch.setenv('CNI_IFNAME', 'acc0')
    monkeypatch.delenv('CNI_COMMAND', raising=False)


@pytest.mark.parametrize('action', ['add', 'del'])
def test_cni_like_is_killed_at_every_boundary(
    host, attachment, action, report
):
    def cni(what: str, **options) -> int:
        return host.call('cni-like', what, stdin=CNI, **options)

    number, killed = 0, 0
    while True:
        if action == 'del':
            assert cni('add') == 0

        def before(number: int = number) -> None:
            boundaries = processes.Boundaries(number)
            for cls, label, methods in WATCHED:
                boundaries.watch(cls, label, methods)

        code = cni(action, before=before)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
        # All or nothing for the runtime: check says which.
        states = host.vans()
        whole = states == ['plugged'] * 2
        assert cni('check') == (0 if whole else 1), (number, states)
        if not whole:
            assert json.loads(host.out())['code'] == (102 if states else 3)
        assert cni('add') == 0
        assert cni('check') == 0
        assert cni('del') == 0
        assert cni('del') == 0
        assert host.is_empty()
        number += 1
    assert killed > 10
    report(f'cni-like {action}: killed at {killed} boundaries')


def test_the_one_that_came_first_is_served_first(tmp_path):
    """One waits early for the only device, 20 come later."""
    host = Host(tmp_path)
    text = host.conf.read_text().replace('nic0:pci:3', 'nic0:pci:1')
    host.conf.write_text(text)
    served = tmp_path / 'served'
    plug = ['plug', 'holder', '--resource-class', 'CUSTOM_FAKE_PCI']
    assert host.call(*plug) == 0

    def tickets() -> int:
        names = (host.state / 'locks').glob('os-acc-waiter-*')
        return len(list(names))

    names = ['early', *map(str, range(20))]
    started = []
    for number, name in enumerate(names):
        command = ['sh', '-c', f'echo {name} >> {served}']
        started.append(host.fork(*RUN, '--wait', LONG * 2, '--', *command))
        deadline = time.monotonic() + LONG
        while tickets() <= number:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert host.call('unplug', 'holder') == 0
    assert [processes.wait(pid) for pid in started] == [0] * len(names)
    assert served.read_text().split() == names
