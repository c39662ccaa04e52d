# SPDX-License-Identifier: Apache-2.0

"""Starting the privileged daemon: in the background, and after a fork."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.privileged import context
from os_acc.privileged import privsep

STAND_IN = pathlib.Path(__file__).with_name('daemon_stand_in.py')
REAL_START = context.start_in_background


def who() -> int:
    """Make a call; the stand-in answers with its process id."""
    return context.whoami()


def start(work) -> int:
    """Do work in a forked child. Returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def daemon(clean, tmp_path, monkeypatch):
    """A stand-in for the daemon.

    :returns: gives the process ids of the daemons that were started
    """
    started = tmp_path / 'started'
    monkeypatch.setenv('STARTED', str(started))
    os_acc.CONF.set_override(
        'helper_command', f'{sys.executable} {STAND_IN}', context.SECTION
    )
    monkeypatch.setattr(context, 'start_in_background', REAL_START)
    context.pctxt.set_client_mode(True)
    assert context.pctxt.channel is None
    yield (
        lambda: (
            [int(line) for line in started.read_text().split()]
            if started.exists()
            else []
        )
    )
    context.pctxt.stop()
    context.pctxt.set_client_mode(True)
    os_acc.CONF.clear_override('helper_command', context.SECTION)


def wait(until) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = pathlib.Path(f'/proc/{pid}/status').read_text()
    return 'State:\tZ' not in status


# --- in the background


def test_initialize_starts_it_where_devices_are_offered(daemon, monkeypatch):
    monkeypatch.setenv('PAUSE', '0.5')
    devices.spec({'address': '*'})
    os_acc.initialize()
    assert daemon() == []  # it is still being started
    wait(daemon)
    # A call uses it, and starts no other.
    assert [who(), who()] == daemon() * 2


@pytest.mark.parametrize(
    ('spec', 'read_only'),
    [([], False), ([{'address': '*'}], True), (['{'], False)],
)
def test_initialize_does_not_start_it(daemon, monkeypatch, spec, read_only):
    monkeypatch.setattr(
        context, 'start_in_background', lambda: pytest.fail('started')
    )
    if spec == ['{']:
        os_acc.CONF.set_override('device_spec', spec, 'os_acc')
    else:
        devices.spec(*spec)
    os_acc.initialize(read_only=read_only)


def test_it_is_started_once(daemon):
    devices.spec({'address': '*'})
    os_acc.initialize()
    pid = who()
    os_acc.initialize(reset=True)
    context.start_in_background()
    assert who() == pid
    assert daemon() == [pid]


def test_many_threads_need_it_at_once(daemon, caplog):
    got: list[int] = []
    threads = [
        threading.Thread(target=lambda: got.append(who())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == daemon() * 8
    assert 'already running' not in caplog.text


def test_a_daemon_that_does_not_start_is_only_logged(daemon, caplog):
    os_acc.CONF.set_override('helper_command', 'false', context.SECTION)
    devices.spec({'address': '*'})
    os_acc.initialize()
    wait(lambda: 'was not started in advance' in caplog.text)
    # The first call that needs it raises what it always did.
    with pytest.raises(exception.PrivilegeError, match='helper_command'):
        who()


def test_root_without_a_daemon_starts_none(daemon):
    context.pctxt.set_client_mode(False)
    context.start_in_background()
    time.sleep(0.1)
    assert daemon() == []
    assert context.pctxt.channel is None


# --- forks


def test_each_process_has_a_daemon_of_its_own(daemon, tmp_path):
    """Both call at the same time; no answer goes to the other process."""
    mine = who()
    said = tmp_path / 'said'

    def child() -> None:
        got = {who() for _ in range(20)}
        said.write_text(' '.join(map(str, got)))

    pid = start(child)
    assert {who() for _ in range(20)} == {mine}
    assert exit_code(pid) == 0
    (other,) = said.read_text().split()
    assert int(other) != mine
    assert who() == mine
    assert daemon() == [mine, int(other)]
    # The child's daemon has ended with it; the parent's lives.
    wait(lambda: not is_running(int(other)))
    assert is_running(mine)


def test_a_child_does_not_keep_the_parents_daemon_alive(daemon):
    mine = who()
    reading, writing = os.pipe()

    def child() -> None:
        os.close(writing)
        os.read(reading, 1)

    pid = start(child)
    os.close(reading)
    context.pctxt.stop()
    wait(lambda: not is_running(mine))
    os.close(writing)
    assert exit_code(pid) == 0


def test_a_fork_while_it_is_being_started(daemon, monkeypatch, tmp_path):
    """As oslo.service forks its workers right after initialize()."""
    monkeypatch.setenv('PAUSE', '0.5')
    devices.spec({'address': '*'})
    os_acc.initialize()
    said = tmp_path / 'said'
    pid = start(lambda: said.write_text(str(who())))
    mine = who()
    assert exit_code(pid) == 0
    assert int(said.read_text()) != mine
    assert len(daemon()) == 2


def test_a_fork_does_not_wait_for_ever(daemon, monkeypatch):
    monkeypatch.setattr(privsep, 'LONGEST_WAIT', 0.1)
    monkeypatch.setenv('PAUSE', '1')
    context.start_in_background()
    time.sleep(0.2)
    pid = start(lambda: who())
    assert exit_code(pid) == 0
    who()
    assert len(daemon()) == 2


def test_a_process_with_no_daemon_forks(daemon):
    pid = start(lambda: who())
    assert exit_code(pid) == 0
    assert who() == daemon()[-1]


def test_a_subprocess_is_no_fork(daemon):
    mine = who()
    subprocess.run(['true'], check=True)
    assert who() == mine


# --- when it is killed, or its caller is interrupted


def test_a_daemon_that_is_killed_before_it_reads_a_call(daemon):
    pid = who()
    os.kill(pid, signal.SIGSTOP)
    raised: list[exception.PrivilegeError] = []

    def call() -> None:
        with pytest.raises(exception.PrivilegeError) as err:
            who()
        raised.append(err.value)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    channel = context.pctxt.channel

    def is_sent() -> bool:
        # The caller holds the lock while it sends the call.
        with channel.lock:
            return bool(channel.outstanding_msgs)

    wait(is_sent)
    os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert 'Premature eof' in str(raised)
    # The next call starts another daemon.
    assert who() == daemon()[-1] != pid


def test_ctrl_c_in_a_terminal_does_not_reach_the_daemon(clean, tmp_path):
    """This is the real daemon, which needs no privilege to answer."""
    conf = tmp_path / 'privsep.conf'
    conf.write_text(f'[{context.SECTION}]\ncapabilities =\n')
    os_acc.CONF.set_override(
        'helper_command',
        f'{sys.executable} -m oslo_privsep.daemon --config-file {conf}',
        context.SECTION,
    )
    context.pctxt.set_client_mode(True)
    try:
        before = context.whoami()
        (pid,) = find(str(conf))
        assert os.getsid(pid) == pid != os.getsid(0)
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        assert context.whoami() == before
        assert list(find(str(conf))) == [pid]
    finally:
        context.pctxt.stop()
        os_acc.CONF.clear_override('helper_command', context.SECTION)
    wait(lambda: not is_running(pid))


def find(argument: str) -> list[int]:
    """The processes with an argument in their command line."""
    found = []
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
        try:
            if argument in path.read_text().split('\0'):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    'module',
    [
        'context',
        'device_users',
        'fpga.command',
        'mdev.devices',
        'offers',
        'pci.functions',
        'pci.network',
        'pci.storage_calls',
    ],
)
def test_the_daemon_loads_nothing_of_the_service(module):
    """oslo.privsep itself loads eventlet if it is installed."""
    code = (
        'import sys; sys.modules["eventlet"] = None; '
        f'import os_acc.privileged.{module}; '
        'print(" ".join(sys.modules))'
    )
    found = subprocess.run(
        [sys.executable, '-c', code],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    ).stdout.split()
    unwanted = (
        'oslo_versionedobjects',
        'oslo_messaging',
        'oslo_service',
        'sqlite3',
        'os_acc.journal',
        'os_acc.drivers',
        'os_acc.objects.base',
    )
    assert not {name for name in found if name.startswith(unwanted)}
