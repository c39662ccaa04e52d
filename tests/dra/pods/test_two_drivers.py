# SPDX-License-Identifier: Apache-2.0

"""Two processes of the driver on one node, as in a rolling update.

tests/dra/isolated.sh runs it. The accelerators are device files that mknod
makes, as in test_pods.py; no container has them.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import stat
import time

import grpc
from programs import LONG
from programs import Program
import pytest
import stand_in_kubelet

from os_acc_dra import offers

NODE = 'node-1'
MINORS = (240, 241)
NAMES = [offers.name_of(f'file/char-1-{minor}') for minor in MINORS]
PrepareFailed = stand_in_kubelet.PrepareFailed


class Drivers:
    """A node on which several processes of the driver run."""

    def __init__(self, place, directory, server, devices):
        self.server, self.specs = server, place / 'cdi'
        self._place, self._directory, self._devices = place, directory, devices
        self.running = {}
        node = {'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': NODE}}
        server.put(f'/api/v1/nodes/{NODE}', node)
        self.kubelet = stand_in_kubelet.Kubelet(directory, server)

    def start(self, *pod_uids):
        """Start a process for each Pod, and register them in this order."""
        entry = json.dumps(
            {'devices': f'{self._devices}/acc*', 'resource_class': 'CUSTOM_A'}
        )
        for uid in pod_uids:
            self.running[uid] = Program(
                self._place,
                self._directory,
                self.server.kubeconfig(self._place / 'kubeconfig'),
                f'release_timeout = 3\ndevice_spec = {entry}\n'
                f'[os_acc_cdi]\nspec_dir = {self.specs}\n',
                pod_uid=uid,
            )
        for uid in pod_uids:
            self.running[uid].wait_until_it_serves()
        self.kubelet.register()

    def end(self, pod_uid, number=signal.SIGTERM):
        """End a process; the kubelet notices."""
        code = self.running.pop(pod_uid).end(number)
        if self.running:
            self.kubelet.register()
        return code

    def claim(self, name, *devices):
        return self.server.claim(name, list(devices), NODE)

    def ask(self, method, claim, by):
        """Ask one process as the kubelet does: again, if it is at it still."""
        end = time.monotonic() + LONG
        while True:
            try:
                (answer,) = self.kubelet.call(
                    method, [claim], by=self.running[by].registration
                ).values()
            except grpc.RpcError as err:
                # A busy machine: the kubelet asks again.
                if err.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
                return err.code().name, []
            # The privileged half of a killed process may still be at it.
            if time.monotonic() > end or not any(
                each in answer.error
                for each in (' goes on: ', ' (python) has ')
            ):
                break
        return answer.error, [
            cdi
            for each in getattr(answer, 'devices', ())
            for cdi in each.cdi_device_ids
        ]

    def prepare(self, claim, by):
        return self.ask('NodePrepareResources', claim, by)

    def unprepare(self, claim, by):
        return self.ask('NodeUnprepareResources', claim, by)

    def written(self):
        """The CDI specs, one for each VAN."""
        if not self.specs.exists():
            return []
        return sorted(path.name for path in self.specs.iterdir())

    def slices(self):
        """The slices of the node, as soon as there are any."""
        end = time.monotonic() + LONG
        while not (found := self.server.slices()):
            assert time.monotonic() < end
            time.sleep(0.1)
        return found


@pytest.fixture
def drivers(tmp_path, server, directory):
    devices = pathlib.Path(f'/dev/os-acc-dra-two-{os.getpid()}')
    devices.mkdir(mode=0o755)
    for number, minor in enumerate(MINORS):
        os.mknod(
            devices / f'acc{number}',
            stat.S_IFCHR | 0o660,
            os.makedev(1, minor),
        )
    made = Drivers(tmp_path, directory, server, devices)
    yield made
    for uid in list(made.running):
        made.running[uid].end(signal.SIGKILL)
    shutil.rmtree(devices)


def both(act, claims, by=('old', 'new')):
    """Ask two processes at the same time, each for its claim."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(act, claims, by))


@pytest.mark.timeout(1800)
def test_a_rolling_update(drivers):
    """Nothing is prepared twice, whichever process is asked."""
    drivers.start('old')
    one, two = drivers.claim('one', NAMES[0]), drivers.claim('two', NAMES[1])
    error, ids = drivers.prepare(one, 'old')
    assert (error, len(ids)) == ('', 1)
    (before,) = drivers.slices()
    drivers.start('new')
    assert drivers.kubelet.info.endpoint.endswith('/dra-new.sock')
    assert drivers.prepare(one, 'new') == ('', ids)
    assert drivers.prepare(two, 'new')[0] == ''
    assert len(drivers.written()) == 2
    late = drivers.claim('late', NAMES[0])
    for by in ('old', 'new'):
        assert one['metadata']['uid'] in drivers.prepare(late, by)[0]
    # One of them publishes; it is still the first.
    (there,) = drivers.slices()
    assert there['metadata']['uid'] == before['metadata']['uid']
    assert drivers.end('old') == 0
    assert [path.name for path in drivers.kubelet.registry.iterdir()] == [
        drivers.running['new'].registration.name
    ]
    assert drivers.server.delete('/resourceslices/') == 1
    (there,) = drivers.slices()
    assert {each['name'] for each in there['spec']['devices']} == set(NAMES)
    for claim in (one, two):
        assert drivers.unprepare(claim, 'new')[0] == ''
    assert drivers.written() == []
    assert drivers.prepare(late, 'new')[0] == ''
    assert drivers.unprepare(late, 'new')[0] == ''


@pytest.mark.timeout(1800)
def test_both_are_asked_at_the_same_time(drivers):
    """For one claim, and for two claims that want one device."""
    drivers.start('old', 'new')
    one, two = drivers.claim('one', NAMES[0]), drivers.claim('two', NAMES[0])
    for _ in range(3):
        first, second = both(drivers.prepare, (one, one))
        assert first == second
        assert first[0] == ''
        assert len(drivers.written()) == 1
        assert both(drivers.unprepare, (one, one)) == [('', [])] * 2
        assert drivers.written() == []
        answers = both(drivers.prepare, (one, two))
        assert sorted(bool(error) for error, _ in answers) == [False, True]
        assert len(drivers.written()) == 1
        both(drivers.unprepare, (two, one))
        assert drivers.written() == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
def test_one_of_two_ends_in_the_middle(drivers, number):
    """What it has begun, the other one finishes or undoes."""
    drivers.start('old', 'new')
    claim = drivers.claim('one', *NAMES)
    for method in ('NodePrepareResources', 'NodeUnprepareResources'):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            called = pool.submit(drivers.ask, method, claim, 'old')
            time.sleep(0.1)  # whatever it has done by then
            drivers.running['old'].end(number)
            error, _ = called.result(LONG)
            assert error in ('', 'UNAVAILABLE', 'CANCELLED')
        del drivers.running['old']
        error, ids = drivers.ask(method, claim, 'new')
        assert error == ''
        is_prepared = method == 'NodePrepareResources'
        assert len(ids) == (2 if is_prepared else 0)
        assert len(drivers.written()) == (2 if is_prepared else 0)
        drivers.start('old')
        # What the killed one has left is gone, and both are registered.
        assert len(list(drivers.kubelet.registry.iterdir())) == 2
    other = drivers.claim('two', *NAMES)
    error, ids = drivers.prepare(other, 'old')
    assert (error, len(ids)) == ('', 2)
    assert drivers.unprepare(other, 'new')[0] == ''
