# SPDX-License-Identifier: Apache-2.0

"""kill -9 at every write of the driver idxd, and again during recovery.

The kernel is the generated one of tests/idxd_model.py. Its state outlives the
process that is killed.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import json
import os
import pathlib
import signal
from typing import Any

import idxd_model
import processes
import pytest

import os_acc
from os_acc import objects
from os_acc.privileged import notes as root_notes
from os_acc.privileged import root_folder
from os_acc.privileged.idxd import notes as records
from os_acc.testing import kernel as kernel_module

# Measuring coverage would slow down the many processes of this test.
pytestmark = pytest.mark.no_cover

INSTANCE = '7b4a1e52-5d0c-4e49-8a53-2b8f6d1c0e01'
VAN = '0d5c6d0e-5d62-4a36-9a52-6b7a3e1f0c02'
ENTRY = '{"idxd": "0000:6a:01.0", "wq_size": 16, "wq_mode": "%s"}'


class Host:
    """A host that several processes use in sequence."""

    def __init__(self, path: pathlib.Path, patch: Any, mode: str) -> None:
        self.path, self.mode = path, mode
        self.kernel = kernel_module.Kernel(path / 'host')
        self.kernel.install(patch)
        self.device = idxd_model.Idxd(self.kernel).add(
            queues=2, size=32, groups=1, engines=1
        )
        self.before = self.device.snapshot()
        self.state = path / 'device.json'

    def process(
        self, work: Callable[[], object], kill_at: int | None = None
    ) -> tuple[int, int]:
        """Do work in a new process, and kill the process at a write.

        :returns: how it ended, and how many writes there were
        """
        counter = self.path / 'writes'

        def child() -> None:
            processes.configure(str(self.path / 'state'))
            conf = os_acc.CONF
            conf.set_override('plugin', 'noop', 'os_acc')
            conf.set_override('device_spec', [ENTRY % self.mode], 'os_acc')
            conf.set_override('release_timeout', 0.2, 'os_acc')
            self._count(kill_at)
            work()
            counter.write_text(str(self.writes))

        code = processes.run(child)
        if self.state.exists():
            self.device.load(json.loads(self.state.read_text()))
        return code, int(counter.read_text()) if code == 0 else 0

    def _count(self, kill_at: int | None) -> None:
        """Kill this process before a write, and keep what was written."""
        self.writes = 0

        def cut() -> None:
            if self.writes == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.writes += 1

        def step(name: str, text: str, act: Callable[[], None]) -> None:
            cut()
            try:
                act()
            finally:
                new = self.state.with_suffix('.new')
                new.write_text(json.dumps(self.device.dump()))
                new.replace(self.state)

        self.kernel.step = step
        for name in ('write', 'delete'):
            original = getattr(root_folder.RootFiles, name)

            def watched(*args: Any, original: Any = original) -> None:
                cut()
                original(*args)

            setattr(root_folder.RootFiles, name, watched)

    def notes(self) -> list[str]:
        directory = pathlib.Path(root_notes.FOLDER)
        return [
            *(os.listdir(directory) if directory.exists() else []),
            *records.idxd_devices.names(),
            *records.idxd_queues.names(),
        ]

    def check(self, plugged: bool) -> None:
        (*vans,) = self.vans()
        assert vans == ([[VAN, 'plugged']] if plugged else [])
        if plugged:
            assert self.device.queues[0].name == f'os-acc-{VAN}'
            assert self.device.queues[0].state == 'enabled'
        else:
            assert self.device.snapshot() == self.before
            assert self.notes() == []

    def vans(self) -> list[list[str]]:
        file = self.path / 'vans.json'

        def look() -> None:
            os_acc.initialize(read_only=True)
            found = [[van.uuid, van.state] for van in os_acc.get_vans()]
            file.write_text(json.dumps(found))

        assert self.process(look)[0] == 0
        return json.loads(file.read_text())


def instance() -> objects.InstanceInfo:
    return objects.InstanceInfo(uuid=INSTANCE, name='i', project_id='p')


def plug() -> None:
    os_acc.initialize()
    os_acc.plug(
        instance(),
        [
            objects.AcceleratorRequest(
                uuid=VAN, resource_class='CUSTOM_DSA', driver='idxd'
            )
        ],
    )


def unplug() -> None:
    os_acc.initialize()
    os_acc.unplug(instance())


@pytest.mark.parametrize('mode', ['dedicated', 'shared'])
@pytest.mark.parametrize('work', [plug, unplug])
def test_kill_at_every_write(tmp_path, monkeypatch, work, mode, report):
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(monkeypatch.context())
        whole = Host(tmp_path / 'whole', patch, mode)
        if work is unplug:
            assert whole.process(plug)[0] == 0
        code, writes = whole.process(work)
        assert code == 0
        whole.check(plugged=work is plug)
    # The mode of a shared work queue is as before, so it is not written.
    assert writes >= (7 if mode == 'dedicated' else 6)
    for number in range(writes):
        with monkeypatch.context() as patch:
            host = Host(tmp_path / str(number), patch, mode)
            if work is unplug:
                assert host.process(plug)[0] == 0
            code, _ = host.process(work, number)
            assert code == -signal.SIGKILL, number
            # Kill it again during recovery, after as many writes.
            host.process(os_acc.initialize, number)
            assert host.process(os_acc.initialize)[0] == 0, number
            host.check(plugged=False)
            assert host.process(plug)[0] == 0, number
            host.check(plugged=True)
            assert host.process(unplug)[0] == 0, number
            host.check(plugged=False)
    report(f'idxd: killed at {writes} writes of {work.__name__}, {mode}')
