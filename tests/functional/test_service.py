# SPDX-License-Identifier: Apache-2.0
"""os-acc in the workers of oslo.service, initialized before the fork."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

SERVICE = pathlib.Path(__file__).with_name('service.py')
SECONDS = 300


@pytest.mark.parametrize('backend', ['threading', 'eventlet'])
def test_two_workers_plug_and_unplug(tmp_path, backend):
    with open(tmp_path / 'log', 'wb') as log:
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', SERVICE, backend, tmp_path],
            stdout=log,
            stderr=log,
        )
    try:
        seen = wait_for_workers(tmp_path, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    expected = {
        'plugged': 3,
        'states': ['plugged'] * 3,
        'recovered': 0,
        'unplugged': 3,
    }
    assert seen == [expected] * 2


def wait_for_workers(
    directory: pathlib.Path, process: subprocess.Popen[bytes]
) -> list[object]:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found = [p for p in directory.glob('worker-*') if p.suffix != '.new']
        if len(found) == 2:
            return [json.loads(path.read_text()) for path in found]
        if process.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail((directory / 'log').read_text())
