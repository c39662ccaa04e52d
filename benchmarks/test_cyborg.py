# SPDX-License-Identifier: Apache-2.0

"""The cost of the driver cyborg for a process that imports os_acc.

Time: until os-acc is initialized, with and without Cyborg's fake driver.
Memory: the resident set after os-acc is initialized without the driver, and
after Cyborg's fake driver has listed its devices. The memory of the helper
process is shown beside them. README.rst says how to run it.
"""

from __future__ import annotations

from collections.abc import Callable
import json
import os
import pathlib
import statistics
import subprocess
import sys

import pytest

ROUNDS = 3
PROGRAM = """
import gc, json, sys
import os_acc
config, discover = sys.argv[1:]
os_acc.CONF([], project='os-acc', default_config_files=[config])
os_acc.initialize()
driver = os_acc._host.extensions.drivers['cyborg']
handles = 0
if discover == 'True':
    handles = sum(each.handles_total for each in driver.get_devices())

def resident(pid):
    for line in open(f'/proc/{pid}/status'):
        if line.startswith('VmRSS:'):
            return int(line.split()[1])

def children():
    for line in open(f'/proc/self/task/{own}/children'):
        yield from map(int, line.split())

gc.collect()
own = __import__('os').getpid()
heavy = {'cyborg', 'sqlalchemy', 'eventlet'}
print(json.dumps({
    'handles': handles,
    'KiB': resident('self'),
    'helper_KiB': sum(map(resident, children())),
    'heavy': sorted(heavy & set(sys.modules)),
}))
"""


def run(directory: pathlib.Path, enabled: str, discover: bool) -> dict:
    config = directory / 'os-acc.conf'
    config.write_text(
        f'[os_acc]\nplugin = noop\nstate_path = {directory / "state"}\n'
        f'[os_acc_cyborg]\nenabled_drivers = {enabled}\n'
    )
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', PROGRAM, config, str(discover)],
        cwd=directory,
        env={**os.environ, 'PYTHONPYCACHEPREFIX': str(directory)},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


@pytest.mark.benchmark(group='cyborg')
def test_time(take_turns: Callable[..., None], tmp_path: pathlib.Path) -> None:
    take_turns(
        lambda: run(tmp_path, 'fake_driver', False),
        lambda: run(tmp_path, '', False),
        ROUNDS,
    )


def test_memory(tmp_path: pathlib.Path, capsys) -> None:
    with_it, without = [], []
    run(tmp_path, 'fake_driver', True)
    for _ in range(ROUNDS):
        with_it.append(run(tmp_path, 'fake_driver', True))
        without.append(run(tmp_path, '', False))
    assert {each['handles'] for each in with_it} == {16}
    # oslo.concurrency imports eventlet in both, if it is installed.
    assert {tuple(each['heavy']) for each in with_it + without} == {
        tuple(without[0]['heavy'])
    }
    figures = [
        statistics.median(each[key] for each in group) / 1024
        for group, key in (
            (with_it, 'KiB'),
            (without, 'KiB'),
            (with_it, 'helper_KiB'),
        )
    ]
    with capsys.disabled():
        sys.stdout.write(
            '\nresident, MiB: {:.1f} with the driver cyborg, {:.1f} without; '
            'the helper {:.1f}\n'.format(*figures)
        )
