# SPDX-License-Identifier: Apache-2.0

"""Which process it is, whether it has ended, and what recover() then does."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time

import pytest

import os_acc
from os_acc import journal
from os_acc import objects
from os_acc.kernel import process
from os_acc.operations import recovery


@pytest.fixture
def sleeper():
    started = subprocess.Popen(['sleep', '600'])
    yield started
    started.kill()
    started.wait()


def test_a_process_that_runs(sleeper):
    found = process.identity(sleeper.pid)
    assert not process.has_ended(found)
    assert found == process.identity(sleeper.pid)
    assert found != process.identity(os.getpid())


def test_a_process_that_has_ended(sleeper):
    found = process.identity(sleeper.pid)
    sleeper.kill()
    deadline = time.monotonic() + 60
    # Nobody has waited for it yet: it is a zombie.
    while not process.has_ended(found):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    sleeper.wait()
    assert process.has_ended(found)
    with pytest.raises(OSError):
        process.identity(sleeper.pid)


@pytest.mark.parametrize(
    ('place', 'value', 'ended'),
    [
        (0, 'another-boot', True),
        # Whether a process of another namespace runs cannot be seen.
        (1, '1', False),
        # Its id was used again.
        (3, '1', True),
        (2, 'x', False),
        (2, '99999999999999999999', False),
    ],
)
def test_a_part_that_differs(sleeper, place, value, ended):
    parts = process.identity(sleeper.pid).split('/')
    parts[place] = value
    assert process.has_ended('/'.join(parts)) is ended


def test_a_text_of_somebody_else():
    assert not process.has_ended('nonsense')


def test_a_process_that_proc_hides(sleeper, monkeypatch, tmp_path):
    """As /proc with the option hidepid does."""
    found = process.identity(sleeper.pid)
    (tmp_path / 'self').symlink_to('/proc/self')
    monkeypatch.setattr(process, '_PROC', str(tmp_path))

    def kill(pid, number):
        raise PermissionError

    monkeypatch.setattr(process.os, 'kill', kill)
    assert not process.has_ended(found)


# --- recover()


def plug(host, pid):
    info = objects.InstanceInfo(
        uuid=host.instance().uuid, process=process.identity(pid)
    )
    os_acc.plug(info, host.requests(2))
    return info


def test_recover_releases_when_the_process_has_ended(host, sleeper):
    plug(host, sleeper.pid)
    other = host.instance()
    os_acc.plug(other, host.requests(1))
    assert os_acc.recover().released == []
    sleeper.send_signal(signal.SIGKILL)
    sleeper.wait()
    host.calls.clear()
    released = os_acc.recover().released
    assert len(released) == 2
    assert len(host.calls.of('unplug')) == len(host.calls.of('unprepareVAN'))
    assert [v.instance_uuid for v in os_acc.get_vans()] == [other.uuid]
    assert os_acc.recover().released == []


def test_an_instance_of_two_processes_is_recovered_once(host):
    """The second one has plugged more, under the same name."""
    info = host.instance()
    for _ in range(2):
        with subprocess.Popen(['sleep', '600']) as started:
            info.process = process.identity(started.pid)
            os_acc.plug(info, host.requests(1))
            started.kill()
    host.calls.clear()
    report = os_acc.recover()
    assert len(report.released) == 2
    assert len({van.uuid for van in report.released}) == 2
    assert report.busy == []
    assert len(host.calls.of('unprepareVAN')) == 2


def test_after_a_reboot_it_is_released_and_not_restored(
    host, sleeper, monkeypatch
):
    plug(host, sleeper.pid)
    monkeypatch.setattr(recovery.sysfs, 'boot_id', lambda: 'next')
    report = os_acc.recover()
    assert len(report.released) == 2
    assert report.restored == []


def test_what_a_process_has_half_done_is_undone(host, sleeper):
    plug(host, sleeper.pid)
    opened = journal.Journal(os_acc.CONF.os_acc.state_path, 5)
    opened.mark(opened.entries()[:1], 'unplugging')
    opened.close()
    assert len(os_acc.recover().released) == 1


def test_an_instance_that_cannot_be_read_is_no_process(host, sleeper):
    info = plug(host, sleeper.pid)
    opened = journal.Journal(os_acc.CONF.os_acc.state_path, 5)
    assert opened.kept() == [(info.uuid, info.process)]
    with sqlite3.connect(opened.path) as db:
        db.execute("UPDATE van SET instance = '{'")
    assert opened.kept() == []
    opened.close()
