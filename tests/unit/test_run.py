# SPDX-License-Identifier: Apache-2.0

"""os-acc run: the command, its environment, signals, and the release."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
import standalone
from standalone import PCI

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.cli import launch
from os_acc.cli import run as run_module


@pytest.fixture
def run(clean, tmp_path, capfd, monkeypatch):
    """capfd: the command of os-acc run is another process."""
    return standalone.make(tmp_path, capfd, monkeypatch)


def start(run, *arguments):
    return run('run', '--resource-class', PCI, *arguments)


def test_the_command_has_the_devices(run, tmp_path):
    result = start(
        run, '--count', 2, '--', 'sh', '-c', 'env | grep ^OS_ACC | sort'
    )
    assert (result.code, result.err) == (0, '')
    shown = dict(line.split('=', 1) for line in result.out.splitlines())
    vans = shown.pop('OS_ACC_VANS').split()
    assert len(vans) == 2
    assert len(shown.pop('OS_ACC_INSTANCE')) == 36
    assert shown == {
        'OS_ACC_DEVICES': 'pci/ffff:00:00.0 pci/ffff:00:00.1',
        'OS_ACC_PCI_ADDRESSES': 'ffff:00:00.0 ffff:00:00.1',
        'OS_ACC_MDEV_UUIDS': '',
        'OS_ACC_FILES': '',
        'OS_ACC_CDI_DEVICES': '',
    }
    assert run.handles() == []
    assert run.vans() == []


def test_the_names_for_a_container_runtime(run, monkeypatch):
    monkeypatch.setenv('OS_ACC_CDI_DEVICES', 'of-another-run')
    text = 'echo $OS_ACC_CDI_DEVICES; echo $OS_ACC_VANS'
    result = start(run, '--plugin', 'cdi', '--', 'sh', '-c', text)
    name, van = result.out.splitlines()
    assert name == f'example.org/accelerator={van}'


def test_the_journal_names_the_process(run, tmp_path):
    """While the command runs, and recover() leaves its devices alone."""
    seen = {}

    def look():
        deadline = time.monotonic() + 60
        while not (tmp_path / 'pid').exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            seen['report'] = os_acc.recover()
            (entry,) = os_acc._host.journal.entries()
            seen['info'] = entry.instance_info
        finally:
            (tmp_path / 'go').touch()

    thread = threading.Thread(target=look)
    thread.start()
    result = start(
        run,
        '--',
        'sh',
        '-c',
        f'cd {tmp_path}; echo $$ > new; mv new pid; '
        'while [ ! -e go ]; do sleep 0.02; done',
    )
    thread.join(60)
    assert result.code == 0
    pid = (tmp_path / 'pid').read_text().strip()
    assert seen['report'].released == []
    assert seen['info'].process.split('/')[2] == pid
    assert seen['info'].name == f'sh (process {pid})'
    assert run.vans() == []


@pytest.mark.parametrize(
    ('command', 'code'),
    [
        (['sh', '-c', 'exit 3'], 3),
        (['sh', '-c', 'kill -TERM $$'], 143),
        (['sh', '-c', 'kill -KILL $$'], 137),
        # --json and such words belong to the command.
        (['sh', '-c', 'test "$1" = --json', 'x', '--json'], 0),
        (['sh', '-c', 'test "$1" = --', 'x', '--'], 0),
    ],
)
def test_the_exit_code(run, command, code):
    result = start(run, '--', *command)
    assert (result.code, result.err) == (code, '')
    assert run.handles() == []


def test_a_command_that_is_not_there(run, tmp_path):
    result = start(run, '--', 'no-such-command')
    assert (result.code, result.err) == (
        127,
        'no-such-command: no such command\n',
    )
    (tmp_path / 'text').write_text('no program')
    result = start(run, '--', tmp_path / 'text')
    assert (result.code, result.err) == (
        126,
        f'{tmp_path}/text: it is not an executable file\n',
    )
    assert not (tmp_path / 'state').exists()  # nothing was touched


@pytest.mark.parametrize(
    ('text', 'code'), [('#!/no/such/shell\n', 127), ('no program', 126)]
)
def test_a_command_that_does_not_start(run, tmp_path, text, code):
    path = tmp_path / 'script'
    path.write_text(text)
    path.chmod(0o755)
    result = start(run, '--', path)
    assert result.code == code
    assert result.err.startswith(f'{path}: ')
    assert run.handles() == []


@pytest.mark.parametrize(
    ('arguments', 'says'),
    [
        ([], 'expected the command after'),
        (['--'], 'expected the command after'),
        (['true'], 'expected the command after'),
        (['--trait', '', '--', 'true'], "trait is ''"),
        (['--plugin', 'x', '--', 'true'], 'NoMatchingPlugin'),
        (['--driver', 'x', '--', 'true'], 'NoMatchingDriver'),
        (['--function', 'f', '--', 'true'], 'PlugException'),
        (['--count', '4', '--wait', '0', '--', 'true'], 'no fake device'),
    ],
)
def test_os_acc_fails(run, arguments, says):
    result = start(run, *arguments)
    assert (result.code, result.out) == (125, '')
    assert says in result.err
    assert run.handles() == []


def test_a_fault_of_os_acc(run, monkeypatch):
    def fail(info, vans):
        raise RuntimeError('a fault')

    monkeypatch.setattr(run_module, 'variables', fail)
    result = start(run, '--', 'true')
    assert (result.code, result.err) == (125, 'RuntimeError: a fault\n')
    assert run.handles() == []


def test_a_configuration_that_cannot_be_read(run):
    run.path.unlink()
    assert start(run, '--', 'true').code == 125


@pytest.mark.parametrize(('command', 'code'), [('true', 125), ('false', 1)])
def test_a_release_that_fails(run, command, code):
    run.configure(fail='unprepareVAN')
    result = start(run, '--', command)
    assert result.code == code
    assert 'told to fail at unprepareVAN' in result.err
    assert 'tries again' in result.err
    assert [van['state'] for van in run.vans()] == ['error']
    run.configure()
    run('recover')
    assert run.vans() == []


# --- signals


def send(number):
    """Send a signal to the thread that waits for the signals of the process.

    The process of the tests has other threads, which do not block them.
    """
    (thread,) = [
        each for each in threading.enumerate() if each.name == 'os-acc signals'
    ]
    signal.pthread_kill(thread.ident, number)


def when(path, do):
    """Do something as soon as there is a file, in a thread."""

    def wait():
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def _not_ignored():
    """Also where the tests run in the background, as a shell starts them."""
    before = {
        number: signal.signal(number, signal.SIG_DFL)
        for number in launch.SIGNALS
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize('name', ['INT', 'TERM', 'HUP', 'QUIT', 'USR1'])
def test_a_signal_is_passed_on(run, tmp_path, name):
    number = getattr(signal, f'SIG{name}')
    thread = when(tmp_path / 'ready', lambda: send(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    result = start(
        run,
        '--',
        'sh',
        '-c',
        f'trap "echo got it; exit 7" {name}; touch {tmp_path}/ready; '
        'while :; do sleep 0.02; done',
    )
    thread.join(60)
    assert (result.code, result.out) == (7, 'got it\n')
    assert run.handles() == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_signal_that_is_ignored_stays_ignored(run, tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def hang_up():
        send(signal.SIGHUP)
        (tmp_path / 'sent').touch()

    thread = when(tmp_path / 'ready', hang_up)
    text = (
        f'cd {tmp_path}; touch ready; kill -HUP $$; '
        'while [ ! -e sent ]; do sleep 0.02; done; echo fine'
    )
    result = start(run, '--', 'sh', '-c', text)
    thread.join(60)
    assert (result.code, result.out) == (0, 'fine\n')


def test_a_parent_that_ignores_the_end_of_its_children(run):
    """A service manager may do so; the kernel then keeps no exit code."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        result = start(run, '--', 'sh', '-c', 'exit 3')
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (result.code, result.err) == (3, '')
    assert run.handles() == []


def test_a_child_that_cannot_be_waited_for(run, monkeypatch):
    def fail(self):
        raise ChildProcessError(10, 'No child processes')

    monkeypatch.setattr(launch.Child, 'wait', fail)
    assert start(run, '--', 'true').code == run_module.OWN_FAILURE
    assert run.handles() == []


def test_a_signal_that_ends_the_command(run, tmp_path):
    thread = when(tmp_path / 'ready', lambda: send(signal.SIGTERM))
    result = start(
        run, '--', 'sh', '-c', f'touch {tmp_path}/ready; exec sleep 600'
    )
    thread.join(60)
    assert result.code == 128 + signal.SIGTERM
    assert run.vans() == []


def test_a_signal_while_it_waits_for_a_device(run, tmp_path):
    run.fine('plug', 'a', '--resource-class', PCI, '--count', 3, '--json')
    told = tmp_path / 'told'

    def say(self, text):
        told.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module.Run, 'say', say)
        thread = when(told, lambda: send(signal.SIGINT))
        result = start(run, '--wait', '--', 'true')
    thread.join(60)
    assert result.code == 128 + signal.SIGINT
    assert len(run.vans()) == 3


def test_signals_while_it_plugs_and_undoes(run, tmp_path, monkeypatch):
    """The first one stops the plug; none stops the undo."""
    run.configure(delays='prepareVAN:0.3,unprepareVAN:0.3')
    handle = tmp_path / 'state' / 'fake-hardware'

    def terminate():
        with contextlib.suppress(ValueError):  # os-acc has ended
            for _ in range(8):
                send(signal.SIGTERM)
                time.sleep(0.1)

    thread = when(handle, terminate)
    done = tmp_path / 'done'
    result = start(run, '--', 'touch', done)
    thread.join(60)
    # The signal may come when the command has begun.
    assert result.code == 128 + signal.SIGTERM or done.exists()
    assert run.handles() == []
    assert run.vans() == []


def test_a_signal_between_plug_and_start():
    """pass_to() raises if the main thread has not seen the signal yet."""
    with launch.Signals() as signals:
        send(signal.SIGHUP)
        deadline = time.monotonic() + 60
        with pytest.raises(launch.Stopped) as caught:
            while time.monotonic() < deadline:
                signals.pass_to(None)
                time.sleep(0.01)
        assert caught.value.number == signal.SIGHUP
        with pytest.raises(launch.Stopped):
            with signals.interruptible():
                pytest.fail('it was begun')


def test_a_child_that_is_not_started_ends():
    child = launch.Child(['true'])
    child.close()
    child.close()
    assert child.wait() == launch.NOT_RUNNABLE
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, 0)


def test_a_child_that_was_killed_before_its_start():
    child = launch.Child(['true'])
    child.send(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    child.start({'A': 'x' * 100_000})
    assert child.wait() == 137
    child.send(signal.SIGKILL)  # it is gone, and nobody else gets it
    child.close()


# --- what the variables say


def test_the_variables_of_files(host):
    def van(handle):
        return objects.VAN(
            uuid='b5a2c9a4-7b1c-4e70-8a4e-30a4c1a3a7f1',
            instance_uuid=info.uuid,
            driver='d',
            plugin='recording',
            handle=handle,
            guest_config='<xml/>',
        )

    info = host.instance()
    files = [
        objects.DeviceFile(path=path, type='c', major=1, minor=3)
        for path in ('/dev/dsa/wq0.0', '/dev/null')
    ]
    vans = objects.VANList(
        objects=[
            van(objects.DeviceFileHandle(name='wq0.0', files=files)),
            van(objects.BlockHandle(path='/dev/disk/by-id/x', wwn='uuid.1')),
            van(
                objects.MdevHandle(
                    uuid=info.uuid, parent='0000:3b:00.0', type='t'
                )
            ),
            van(None),
        ]
    )
    found = run_module.variables(info, vans)
    assert found['OS_ACC_DEVICES'] == (
        f'file/wq0.0 block/uuid.1 mdev/{info.uuid}'
    )
    assert found['OS_ACC_FILES'] == (
        '/dev/dsa/wq0.0 /dev/null /dev/disk/by-id/x'
    )
    assert found['OS_ACC_MDEV_UUIDS'] == info.uuid
    assert found['OS_ACC_CDI_DEVICES'] == ''


def test_a_journal_that_is_busy_at_the_end(run, monkeypatch):
    real, failed = os_acc.unplug, []

    def unplug(info):
        if not failed:
            failed.append(info)
            raise exception.JournalBusy(path='p', seconds=1)
        return real(info)

    monkeypatch.setattr(os_acc, 'unplug', unplug)
    result = start(run, '--', 'true')
    assert result.code == 0
    assert 'another writer' in result.err
    assert run.vans() == []
