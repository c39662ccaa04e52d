# SPDX-License-Identifier: Apache-2.0

"""The program as a process: its start, its end, and what it refuses."""

from __future__ import annotations

import signal

from programs import LONG
from programs import Program
import pytest
import stand_in_kubelet


@pytest.fixture
def start(tmp_path, directory, server):
    """Start the program; it ends with the test. It offers no device."""
    started = []

    def begin(more=''):
        made = Program(
            tmp_path,
            directory,
            server.kubeconfig(tmp_path / 'kubeconfig'),
            more,
        )
        started.append(made)
        return made

    yield begin
    for each in started:
        each.end(signal.SIGKILL)


@pytest.mark.timeout(600)
def test_it_serves_and_ends_on_a_signal(start, directory, server):
    program = start()
    program.wait_until_it_serves()
    kubelet = stand_in_kubelet.Kubelet(directory, server)
    kubelet.register()
    claim = server.claim('one', ['pci-none'], 'node-1')
    with pytest.raises(stand_in_kubelet.PrepareFailed, match='no device pci'):
        kubelet.prepare(claim)
    kubelet.unprepare(claim)
    assert program.end() == 0
    assert list(directory.rglob('*.sock')) == []
    # Killed, it leaves its sockets; the next start serves all the same.
    killed = start()
    killed.wait_until_it_serves()
    assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    assert killed.registration.exists()
    again = start()
    again.wait_until_it_serves()
    kubelet.register()
    assert start().process.wait(LONG) == 1
    assert 'another process serves' in again.log()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ('option', 'said'),
    [
        ('driver_name = No_Name', "driver_name is 'No_Name', expected a DNS"),
        ('pod_uid = ../x', "pod_uid is '../x', expected letters"),
    ],
)
def test_a_wrong_option(start, directory, option, said):
    program = start(f'[os_acc_dra]\n{option}')
    assert program.process.wait(LONG) == 1
    assert said in program.log()
    assert list(directory.rglob('*.sock')) == []
