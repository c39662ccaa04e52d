# SPDX-License-Identifier: Apache-2.0

"""What the lab finds out about a machine that has stopped, with a real QEMU.

The machine has firmware only, which finds nothing to boot.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

LAB = pathlib.Path(__file__).parents[1] / 'lab'


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A QEMU with the monitor of findings.py, as virtme-ng starts it."""
    monkeypatch.syspath_prepend(LAB)
    import findings

    monkeypatch.setattr(findings, 'CALL_SECONDS', 2.0)
    monkeypatch.setattr(findings, 'CONSOLE_SECONDS', 2.0)
    process = subprocess.Popen(
        [
            *('qemu-system-x86_64', '-nodefaults', '-display', 'none'),
            *('-machine', 'q35,accel=tcg', '-m', '64M', '-smp', '2'),
            *('-chardev', 'file,id=console,path=/dev/null'),
            *('-serial', 'chardev:console'),
            *findings.qemu_options(tmp_path),
        ],
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / 'monitor').exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield findings, process
    process.kill()
    process.wait()


def test_a_machine_that_runs(machine, tmp_path):
    findings, process = machine
    found = list(findings.findings(process.pid, tmp_path))
    assert any(
        re.match(rf'thread {process.pid} qemu-system.*: state [SR], ', line)
        for line in found
    )
    assert 'VM status: running' in found
    registers = [line for line in found if line.startswith('CPU#0')]
    assert len(registers) == 3
    for line in registers:
        assert re.match(r'CPU#0 \| [RE]IP=\w+ \| HLT=[01] \| CPU#1 \| ', line)
    assert found[-1].startswith('the console, ')


def test_a_machine_whose_qemu_is_stopped(machine, tmp_path):
    findings, process = machine
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    found = list(findings.findings(process.pid, tmp_path))
    assert any(': state T, ' in line for line in found)
    assert found[-1].startswith('the monitor of QEMU does not answer: ')
