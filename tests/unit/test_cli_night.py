# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, --wait, and what is said when a command takes long."""

from __future__ import annotations

from collections.abc import Iterator
import io
import signal
import threading
import time
import uuid

import command
import pytest

import os_acc
from os_acc import loader
from os_acc import locking
from os_acc import progress
from os_acc.cli import interruption
from os_acc.cli import progress as notices
from os_acc.cli import waiting
from os_acc.kinds.fake.driver import driver as fake_driver

CLASS = 'CUSTOM_FAKE_PCI'
PLUG = ('plug', 'web-1', '--resource-class', CLASS, '--count', '2')


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Let Ctrl-C interrupt: a shell's background process ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    loader.load_all()  # registers the options
    set_fake('devices', ['nic0:pci:2'])
    set_fake('discover', True)
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    return command.Command(tmp_path / 'state', capsys, monkeypatch)


def set_fake(name, value):
    os_acc.CONF.set_override(name, value, 'os_acc_fake')


def press(monkeypatch, method, times=1):
    """Press Ctrl-C in a step of the fake driver."""
    driver = fake_driver.FakeDriver
    usual = getattr(driver, method)
    left = [times]

    def act(self, *arguments):
        while left[0]:
            left[0] -= 1
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.05)
        return usual(self, *arguments)

    monkeypatch.setattr(driver, method, act)


# --- Ctrl-C


def test_ctrl_c_undoes_a_plug(run, monkeypatch):
    press(monkeypatch, 'prepareVAN')
    result = run(*PLUG)
    assert (result.code, result.out) == (130, '')
    said = result.err.splitlines()
    assert said[0].startswith('Interrupted: the running steps finish first')
    assert said[-1].startswith('Undone: ')
    assert said[-1].endswith('nothing of this plug is left')
    assert run.fine('van', 'list', '-f', 'json').json == []


def test_a_second_ctrl_c_does_not_stop_the_undo(run, monkeypatch):
    press(monkeypatch, 'prepareVAN')
    press(monkeypatch, 'unprepareVAN')
    result = run(*PLUG)
    assert result.code == 130
    assert 'The undo continues' in result.err
    assert 'nothing of this plug is left' in result.err
    assert run.fine('van', 'list', '-f', 'json').json == []


def test_an_undo_that_fails(run, monkeypatch):
    set_fake('fail', ['unprepareVAN'])
    press(monkeypatch, 'prepareVAN')
    result = run(*PLUG)
    assert result.code == 130
    assert 'ot undone: ' in result.err


def test_ctrl_c_before_anything_is_begun(run, monkeypatch):
    def stop(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(os_acc, 'plug', stop)
    result = run(*PLUG)
    assert result.code == 130
    assert result.err == 'Interrupted: nothing was plugged\n'


def test_ctrl_c_lets_an_unplug_go_on(run, monkeypatch):
    run.fine(*PLUG, '-f', 'json')
    press(monkeypatch, 'unprepareVAN')
    result = run('unplug', 'web-1')
    assert (result.code, result.out) == (0, 'released 2\n')
    assert result.err.startswith('The unplug continues: ')


def test_a_second_ctrl_c_stops_an_unplug():
    said = []
    with pytest.raises(KeyboardInterrupt):
        with interruption.Unplugging(said.append, lambda _: None) as watched:
            for van, status in (('a', 'done'), ('b', 'started')):
                watched(progress.Progress('i', van, 'unprepareVAN', status))
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
    assert said[1] == (
        'Interrupted: 1 VANs were released, 1 are half released. os-acc '
        'unplug or os-acc recover releases what is left'
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_result_of_a_plug():
    said = []
    with pytest.raises(KeyboardInterrupt):
        with interruption.Plugging(said.append, lambda _: None) as watched:
            for van in 'ab':
                watched(progress.Progress('i', van, 'prepareVAN', 'started'))
            raise KeyboardInterrupt
    assert said[-1].startswith('Not undone: 2 VANs are in the journal')


def test_ctrl_c_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruption.Plugging(print, lambda _: None):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


# --- --wait


def test_unplug_waits_for_the_instance(run, monkeypatch):
    run.fine(*PLUG, '-f', 'json')
    os_acc.CONF.set_override('lock_timeout', 0.05, 'os_acc')
    uuid = run.fine('van', 'list', '--json').json['vans'][0]['instance_uuid']
    held = threading.Event()
    freed = threading.Event()

    def hold():
        locks = locking.Locks(f'{run.state_path}/locks', 30)
        with locks.instance(uuid):
            held.set()
            freed.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    assert run('unplug', 'web-1').code != 0
    monkeypatch.setattr(waiting.LOG, 'info', lambda _: freed.set())
    result = run('unplug', 'web-1', '--wait', '60')
    thread.join()
    assert (result.code, result.out) == (0, 'released 2\n')
    assert result.err.startswith('Waiting for at most ')


# --- a command that takes long


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait_for(stream, text):
    deadline = time.monotonic() + 30
    while text not in stream.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_long_command_says_so():
    stream = Terminal()
    times = [0.02 * number for number in range(1, 1000)]
    with notices.Notice(stream, 'doctor', times=tuple(times)) as notice:
        wait_for(stream, 'Working for 0 s: doctor\n')
        notice(progress.Progress('i', 'v-1', 'plug', 'started', None, 'x'))
        wait_for(stream, 'Working for 0 s: plug of VAN v-1, x\n')
    stream = Terminal()
    with notices.Notice(stream, 'doctor', times=(0.02, 0.04)):
        wait_for(stream, 'Working for 0 s: doctor\n' * 2)
        time.sleep(0.1)
    assert stream.getvalue().count('\n') == 2


def test_a_notice_fits_the_terminal(monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    stream, van = Terminal(), str(uuid.uuid4())
    notice = notices.Notice(stream, 'unplug', times=(0.1,))
    notice(progress.Progress('i', van, 'unprepareVAN', 'started'))
    with notice:
        wait_for(stream, '\n')
    assert stream.getvalue() == f'Working for 0 s: unprepareVAN of VAN {van}\n'
    stream, text = Terminal(), 'the drive is being emptied ' * 3
    notice = notices.Notice(stream, 'unplug', times=(0.1,))
    notice(progress.Progress('i', van, 'unprepareVAN', 'started', None, text))
    with notice:
        wait_for(stream, '\n')
    assert max(map(len, stream.getvalue().splitlines())) <= 80


def test_ctrl_c_on_a_terminal_begins_a_line(monkeypatch, capsys):
    monkeypatch.setattr('sys.stderr.isatty', lambda: True)
    with pytest.raises(KeyboardInterrupt):
        with interruption.Plugging(lambda _: None, lambda _: None):
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err == '\n'


def test_nothing_is_said_beside_a_bar():
    stream = Terminal()
    notice = notices.Notice(stream, 'plug', times=(0.1,))
    notice(progress.Progress('i', 'v', 'prepareVAN', 'running', 0.5))
    with notice:
        time.sleep(0.2)
    assert stream.getvalue() == ''


def test_nothing_is_said_to_a_file_or_a_closed_terminal():
    stream = io.StringIO()
    with notices.Notice(stream, 'plug', times=(0.0,)):
        time.sleep(0.05)
    assert stream.getvalue() == ''
    closed = Terminal()
    with notices.Notice(closed, 'plug', times=(0.05,)):
        closed.isatty = lambda: True
        closed.close()
        time.sleep(0.1)
