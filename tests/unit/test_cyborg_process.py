# SPDX-License-Identifier: Apache-2.0

"""The driver cyborg: the process of Cyborg's drivers."""

from __future__ import annotations

import logging
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import cyborg_host
from cyborg_stand_in import F1
from cyborg_stand_in import FPGA
from cyborg_stand_in import cause
from cyborg_stand_in import driver
from cyborg_stand_in import found
from cyborg_stand_in import option
from cyborg_stand_in import pids
from cyborg_stand_in import plug
from cyborg_stand_in import stand_in_host  # noqa: F401, fixture "here"
from cyborg_stand_in import vf
import pytest

import os_acc
from os_acc import exception
from os_acc.kinds.cyborg.driver import output


def test_one_process_serves_all_calls(here, caplog):
    caplog.set_level(logging.INFO)
    assert pids(here) == set()
    found()
    (pid,) = pids(here)
    found()
    assert pids(here) == {pid}
    assert caplog.text.count('runs in a separate process') == 1


def test_a_process_that_died_in_between(here):
    found()
    (pid,) = pids(here)
    os.kill(pid, signal.SIGKILL)
    assert cyborg_host.gone(pid)
    assert FPGA in found()
    assert len(pids(here)) == 1


def test_what_is_printed_is_logged(here, caplog):
    caplog.set_level(logging.INFO)
    here.tell('program', 'print')
    plug(vf(0, bitstream=here.image(), function_id=F1))
    deadline = time.monotonic() + 20
    while 'from the tool' not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
    assert 'from the tool' in caplog.text
    assert 'this is no answer' in caplog.text


def logged(caplog, text):
    """Wait until a text is logged; return all lines of Cyborg's process."""
    deadline = time.monotonic() + 60
    while text not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
    assert text in caplog.text
    return [
        each.getMessage()
        for each in caplog.records
        if each.getMessage().startswith('cyborg[')
    ]


def test_endless_output(here, caplog):
    """256 MiB of it take room neither in the log nor in the memory."""
    caplog.set_level(logging.INFO)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    here.tell('program', 'flood')
    _, (van,) = plug(vf(0, bitstream=here.image(), function_id=F1))
    assert van.function_id == F1
    lines = logged(caplog, 'the end')
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50 * 1024  # KiB
    (place,) = (n for n, each in enumerate(lines) if 'left out' in each)
    assert all(each.endswith(': no end') for each in lines[:place])
    left_out = int(lines[place].partition('(')[2].split()[0])
    assert 2**28 - 10_000 < left_out < 2**28
    assert lines[-1].endswith(': the end')
    assert 200 <= len(lines) <= 260


def test_output_belongs_to_the_call_that_printed_it(caplog):
    """What is still in the pipe when a call ends is logged with that call."""
    caplog.set_level(logging.INFO)
    reader, writer = os.pipe()
    with open(writer, 'wb', buffering=0) as tool:
        printed = output.Output(reader, pid=1)
        for _ in range(100):
            caplog.clear()
            tool.write(b'a line\n' * 1000)
            printed.call_ended()
            said = [each.getMessage() for each in caplog.records]
            assert said.count('cyborg[1]: a line') == 250
            assert said[200] == (
                'cyborg[1]: (5250 bytes of output are left out here)'
            )


def test_a_line_that_does_not_end(here, caplog):
    caplog.set_level(logging.INFO)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    here.tell('program', 'long line')
    plug(vf(0, bitstream=here.image(), function_id=F1))
    lines = logged(caplog, 'left out')
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50 * 1024  # KiB
    assert len(lines) <= 260
    assert max(map(len, lines)) < 1100


def test_output_that_a_driver_keeps(here):
    """Cyborg's drivers keep the whole output of a tool in memory."""
    here.tell('program', 'keep output')
    err = cause(vf(0, bitstream=here.image(), function_id=F1))
    assert isinstance(err, exception.DeviceError)
    assert 'bytes of memory, and may have 536870912' in str(err)
    assert pids(here) == set()


def test_a_long_error(here, caplog):
    caplog.set_level(logging.INFO)
    here.tell('program', 'long error')
    err = cause(vf(0, bitstream=here.image(), function_id=F1))
    assert 'RuntimeError: firstxxx' in str(err)
    assert 'xxxlast' in str(err)
    assert len(str(err)) < 5000


@pytest.mark.parametrize(
    ('told', 'status'),
    [('fork', 0), ('fork and raise', 1), ('fork and exit', 7)],
)
def test_a_forked_child_does_not_answer(here, told, status):
    here.tell('program', told)
    err = cause(vf(0, bitstream=here.image(), function_id=F1))
    assert 'the parent fails' in str(err)
    assert here.calls()[1:] == [
        ['sockets of the child', 0],
        ['the child ended', status],
    ]
    # The same process serves the next call.
    (pid,) = pids(here)
    assert FPGA in found()
    assert pids(here) == {pid}


GOOD = '{"id": 1, "result": "17"}'


@pytest.mark.parametrize(
    ('answer', 'text'),
    [
        ('{"id": 0, "result": "17"}', 'expected the id 1'),
        ('{"result": "17"}', 'expected the id 1'),
        ('["id", 1]', 'expected the id 1'),
        ('{"id": 1}', 'neither a result nor an error'),
        ('{"id": 1, "error": "text"}', 'neither a result nor an error'),
        ('{"id": 1, "result": 1, "error": {}}', 'neither a result nor an'),
        ('INFO the tool begins', 'not JSON'),
        ('[' * 100_000, 'not JSON'),
        ('\\377\\376', 'not JSON'),
        (f'{GOOD}\\n{GOOD}', 'more than one line'),
    ],
)
def test_an_answer_to_another_request(here, tmp_path, answer, text):
    script = tmp_path / 'answer'
    script.write_text(f"read -r request <&0; printf '{answer}\\n' >&0\n")
    python = tmp_path / 'python'
    python.write_text(f'#!/bin/sh\n. {script}\nexec sleep 600\n')
    python.chmod(0o755)
    option('python', str(python))
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert 'did not answer in its protocol' in str(caught.value)
    assert text in str(caught.value)
    assert pids(here) == set()


def test_an_answer_that_does_not_end(here, tmp_path):
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\nexec cat /dev/zero >&0\n')
    python.chmod(0o755)
    option('python', str(python))
    with pytest.raises(exception.DiscoveryFailed, match='without an end'):
        os_acc.get_devices()
    assert pids(here) == set()


def test_a_late_answer_does_not_fail_the_next_call(here, tmp_path):
    """A process that sent something while it was idle is replaced."""
    found()
    (pid,) = pids(here)
    here.tell('discover-plain', 'answer later')
    found()
    here.tell('discover-plain', '')
    cyborg_host.wait_for(here.directory / 'answered')
    assert FPGA in found()
    assert cyborg_host.gone(pid)


def test_cyborg_is_not_installed(here, tmp_path, monkeypatch):
    (tmp_path / 'none').mkdir()
    (tmp_path / 'none/cyborg.py').write_text(
        'raise ModuleNotFoundError("No module named \'cyborg\'")\n'
    )
    monkeypatch.setenv('PYTHONPATH', str(tmp_path / 'none'))
    with pytest.raises(exception.DiscoveryFailed) as caught:
        os_acc.get_devices()
    assert 'openstack-cyborg is not installed' in str(caught.value)
    assert sys.executable in str(caught.value)
    assert pids(here) == set()


@pytest.mark.parametrize(
    ('name', 'value', 'text'),
    [
        ('enabled_drivers', ['plain', 'nobody'], "no driver 'nobody'"),
        ('enabled_drivers', ['broken'], "driver 'broken' does not load"),
        ('python', '/nowhere/python', 'does not start: No such file'),
        ('python', '/bin/false', 'ended with exit code 1'),
        ('config_files', ['/nowhere/cyborg.conf'], '/nowhere/cyborg.conf'),
    ],
)
def test_wrong_options(here, name, value, text):
    option(name, value)
    with pytest.raises(exception.DiscoveryFailed, match=text):
        os_acc.get_devices()
    assert pids(here) == set()


def test_a_helper_that_does_not_answer(here, tmp_path):
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\nsleep 600\n')
    python.chmod(0o755)
    option('python', str(python))
    option('timeout', 0.5)
    with pytest.raises(exception.DiscoveryFailed, match='Waited'):
        os_acc.get_devices()
    assert pids(here) == set()


def test_a_fork_has_its_own(here):
    found()
    (pid,) = pids(here)
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = driver().can_handle(vf(0)) and pid not in pids(here)
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cyborg_host.alive(pid)
    assert FPGA in found()
    assert pids(here) == {pid}


def test_it_ends_with_its_parent(here):
    here.tell('program', 'hang')
    code = (
        'import sys, time\n'
        'from os_acc.kinds.cyborg.driver import process as cyborg_process\n'
        'helpers = cyborg_process.Helpers("", ["fpga"], [])\n'
        'helpers.call("program", 60, "hang", driver="fpga",\n'
        '             controlpath_id={}, image="")\n'
    )
    root = pathlib.Path(os_acc.__file__).parents[1]
    path = f'{os.environ["PYTHONPATH"]}:{root}'
    parent = subprocess.Popen(
        [sys.executable, '-c', code], env={**os.environ, 'PYTHONPATH': path}
    )
    hanging = here.hanging()
    parent.kill()
    parent.wait()
    assert all(cyborg_host.gone(pid) for pid in hanging)
