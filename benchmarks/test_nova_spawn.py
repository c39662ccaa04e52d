# SPDX-License-Identifier: Apache-2.0

"""spawn of a guest with two accelerators by nova-compute.

The peer is Nova's own libvirt driver. Both drivers are real; libvirt is the
stand-in of Nova's own tests, and the devices are a generated sysfs. The
figures show what os-acc adds to a spawn: its journal on the disk, and a VF
bound to VFIO; Nova's driver creates an mdev too. The privileged functions run
in the same process, without a privsep daemon. ``tox -e nova`` runs it.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import pathlib
import sys
import time
from typing import Any
import unittest

import pytest

TESTS = pathlib.Path(__file__).parent.parent / 'tests'
ROUNDS = 30

pytestmark = [
    pytest.mark.filterwarnings('ignore'),
    pytest.mark.benchmark(group='spawn with a VF and an mdev'),
]


class Spawn:
    """The spawn of one guest on one host, which can be repeated."""

    def __init__(self, test: Any, host: str) -> None:
        self._test = test
        self._driver = test.computes[host].driver
        self._calls: list[tuple[Any, Any]] = []
        spawn = self._driver.spawn

        def keep(*args: Any, **kwargs: Any) -> None:
            self._calls.append((args, kwargs))
            spawn(*args, **kwargs)

        self._driver.spawn = keep
        test.boot(host=host)
        self._driver.spawn = spawn
        self.destroy()

    def __call__(self) -> None:
        args, kwargs = self._calls[0]
        self._driver.spawn(*args, **kwargs)

    def destroy(self) -> None:
        """Destroy the guest, and what Nova's own driver leaves."""
        context, instance = self._calls[0][0][:2]
        self._driver.destroy(context, instance, [])
        for name in list(self._test.node_devices.defined):
            device = self._test.node_devices.nodeDeviceLookupByName(name)
            device.destroy()
            device.undefine()

    def cpu(self) -> float:
        """The CPU time of one spawn, in seconds."""
        spent = 0.0
        for _ in range(ROUNDS):
            start = time.process_time()
            self()
            spent += time.process_time() - start
            self.destroy()
        return spent / ROUNDS


@pytest.fixture
def nova_tree(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """A directory in which Nova's functional tests can run in this process."""
    import nova

    monkeypatch.setitem(os.environ, 'OS_NOVA_DISABLE_EVENTLET_PATCHING', '1')
    # Nova's tests look for etc/nova beside the package.
    monkeypatch.syspath_prepend(str(TESTS))
    monkeypatch.syspath_prepend(str(TESTS / 'functional_nova'))
    monkeypatch.setenv('OS_STDOUT_CAPTURE', '1')
    monkeypatch.setenv('OS_STDERR_CAPTURE', '1')
    tree = tmp_path / 'tree'
    tree.mkdir()
    (tree / 'nova').symlink_to(pathlib.Path(nova.__file__).parent)
    (tree / 'etc').mkdir()
    (tree / 'etc/nova').symlink_to(pathlib.Path(sys.prefix) / 'etc/nova')
    for name in [each for each in sys.modules if each.split('.')[0] == 'nova']:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tree))
    return tree


def test_spawn(
    benchmark: Any, take_turns: Callable[..., None], nova_tree: pathlib.Path
) -> None:
    from operations import base
    from operations import cyborg

    class Case(base.OperationsTest):
        def test(self) -> None:
            # Nova's driver needs VFs that exist already.
            for vfs, _gpu in cyborg.BUSES.values():
                pf = self.kernel.pci / f'devices/0000:{vfs}:00.0'
                self.kernel.write(f'{pf}/sriov_numvfs', '4')
            self.flags(compute_driver=base.IN_TREE)
            self.add_host('compute2')
            own, peer = Spawn(self, 'compute1'), Spawn(self, 'compute2')
            pending: list[Spawn] = []

            def act() -> None:
                own()
                pending.append(own)

            def before_peer() -> None:
                while pending:
                    pending.pop().destroy()

            take_turns(
                act,
                peer,
                ROUNDS,
                before_peer=before_peer,
                after_peer=peer.destroy,
            )
            before_peer()
            benchmark.extra_info['cpu_ms'] = own.cpu() * 1000
            benchmark.extra_info['peer_cpu_ms'] = peer.cpu() * 1000

    result = unittest.TestResult()
    Case('test').run(result)
    assert result.testsRun == 1
    assert not result.errors + result.failures, result.errors[0][1]
