# SPDX-License-Identifier: Apache-2.0

"""The driver with a real containerd: what a container of a Pod has.

It needs root, runc and what tests/dra/install.sh downloads; tests/dra/
isolated.sh runs it. The accelerators are device files that mknod makes. No
kernel has a device of these numbers (drivers/char/mem.c): to open one fails
with ENXIO, or with EPERM where the control group forbids it.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import stat
import tempfile
import time

from containerd import Containerd
import grpc
from programs import DRIVER
from programs import LONG
from programs import Program
import pytest
import stand_in_kubelet

from os_acc import objects
from os_acc_dra import claims
from os_acc_dra import metadata
from os_acc_dra import offers

NODE = 'node-1'
PrepareFailed = stand_in_kubelet.PrepareFailed
NAMES = [offers.name_of(f'file/char-1-{n}') for n in (250, 251)]


@pytest.fixture(scope='module')
def containerd():
    with tempfile.TemporaryDirectory(dir='/run', prefix='ctd-') as name:
        made = Containerd(pathlib.Path(name))
        yield made
        made.close()


@pytest.fixture
def devices():
    """Two accelerators, as a directory of /dev."""
    directory = pathlib.Path(f'/dev/os-acc-dra-{os.getpid()}')
    directory.mkdir(mode=0o755)
    for number in range(2):
        os.mknod(
            directory / f'acc{number}',
            stat.S_IFCHR | 0o660,
            os.makedev(1, 250 + number),
        )
    yield directory
    shutil.rmtree(directory)


class Pods:
    """A node with a driver, a kubelet and a runtime."""

    def __init__(self, place, directory, server, containerd, devices):
        self.server, self.devices = server, devices
        self.specs = containerd.specs
        self._place, self._directory = place, directory
        self._socket = containerd.socket
        self._running = []
        node = {'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': NODE}}
        server.put(f'/api/v1/nodes/{NODE}', node)
        self.start()
        self.restart_kubelet()

    def start(self):
        """Start the driver."""
        entry = json.dumps(
            {'devices': f'{self.devices}/acc*', 'resource_class': 'CUSTOM_A'}
        )
        self.driver = Program(
            self._place,
            self._directory,
            self.server.kubeconfig(self._place / 'kubeconfig'),
            f'release_timeout = 3\ndevice_spec = {entry}\n'
            f'[os_acc_cdi]\nspec_dir = {self.specs}\n',
        )
        self.driver.wait_until_it_serves()

    def restart_kubelet(self):
        self.kubelet = stand_in_kubelet.Kubelet(
            self._directory, self.server, cri_socket=self._socket
        )
        self.kubelet.register()

    def claim(self, name, *devices):
        return self.server.claim(name, list(devices), NODE)

    def ask(self, method, *claims, again=(' goes on: ',)):
        """Ask the driver as the kubelet does: again, if it is at it still."""
        end = time.monotonic() + LONG
        while True:
            try:
                return getattr(self.kubelet, method)(*claims)
            except PrepareFailed as err:
                if time.monotonic() > end or not any(
                    each in str(err) for each in again
                ):
                    raise

    def run(self, name, *claims):
        """Prepare claims, and start a Pod with them."""
        return self.run_with(name, self.ask('prepare', *claims))

    def run_with(self, name, ids):
        made = self.kubelet.start_pod(name, ids)
        self._running.append(made)
        return made

    def end(self, pod):
        self._running.remove(pod)
        self.kubelet.stop_pod(*pod)

    def sees(self, pod):
        """The accelerators that the container of a Pod has."""
        code, text = self.kubelet.execute(pod[1], 'ls', str(self.devices))
        return text.split() if code == 0 else []

    def opens(self, pod, name):
        """What opening an accelerator in the container of a Pod says."""
        return self.kubelet.execute(
            pod[1], 'dd', f'if={self.devices}/{name}', 'of=/dev/null'
        )[1]

    def published(self):
        """The devices in the slices of the node, by their names."""
        end = time.monotonic() + LONG
        while not (found := self.server.slices()):
            assert time.monotonic() < end, self.driver.log()
            time.sleep(0.1)
        return {
            device['name']: device
            for each in found
            for device in each['spec']['devices']
        }

    def written(self):
        return sorted(path.name for path in self.specs.iterdir())

    def close(self):
        for each in list(self._running):
            self.end(each)
        self.driver.end(signal.SIGKILL)
        for path in self.specs.iterdir():
            path.unlink()


@pytest.fixture
def pods(tmp_path, server, containerd, devices):
    with tempfile.TemporaryDirectory(dir='/run', prefix='kubelet-') as name:
        made = Pods(tmp_path, pathlib.Path(name), server, containerd, devices)
        yield made
        made.close()


@pytest.mark.timeout(1200)
def test_two_pods_and_a_third_that_waits(pods):
    """Each sees exactly its device; the third gets one after the first."""
    one, two, three = (
        pods.claim('one', NAMES[0]),
        pods.claim('two', NAMES[1]),
        pods.claim('three', NAMES[0]),
    )
    first, second = pods.run('one', one), pods.run('two', two)
    assert (pods.sees(first), pods.sees(second)) == (['acc0'], ['acc1'])
    # The control group lets it through; there is no driver behind it.
    assert 'No such device or address' in pods.opens(first, 'acc0')
    with pytest.raises(PrepareFailed, match=one['metadata']['uid']):
        pods.run('three', three)
    # While a container has it, it is not released, and the error names who.
    with pytest.raises(PrepareFailed, match=r'process|container'):
        pods.ask('unprepare', one)
    pods.end(first)
    pods.ask('unprepare', one)
    third = pods.run('three', three)
    assert pods.sees(third) == ['acc0']
    for pod, claim in ((second, two), (third, three)):
        pods.end(pod)
        pods.ask('unprepare', claim)
    assert pods.written() == []


@pytest.mark.timeout(1200)
def test_the_names_are_those_of_the_slices(pods):
    """The kubelet deletes them at its start, and they are written again."""
    for _ in range(2):
        devices = pods.published()
        assert sorted(devices) == sorted(NAMES)
        assert pods.server.delete('/resourceslices/') == 1
    for name, device in devices.items():
        claim = pods.claim(name, name)
        pod = pods.run(name, claim)
        assert [f'file/char-1-{250 + int(pods.sees(pod)[0][3:])}'] == [
            device['attributes']['handle']['string']
        ]
        pods.end(pod)
        pods.ask('unprepare', claim)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize('delay', [0.0, 0.1])
def test_a_kill_at_any_moment(pods, delay):
    """In Prepare, and in Unprepare: the next start has nothing lost."""
    claim = pods.claim('one', *NAMES)
    for name in ('prepare', 'unprepare'):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            called = pool.submit(getattr(pods.kubelet, name), claim)
            time.sleep(delay)
            pods.driver.end(signal.SIGKILL)
            # It may have ended before the kill.
            error = called.exception(LONG)
            assert error is None or isinstance(error, grpc.RpcError)
        pods.start()
        pods.restart_kubelet()
        # The privileged half of the killed process may still be at it.
        pods.ask(name, claim, again=(' goes on: ', ' (python) has '))
        assert len(pods.written()) == (2 if name == 'prepare' else 0)
    other = pods.claim('two', *NAMES)
    assert len(pods.ask('prepare', other)) == 2
    pods.ask('unprepare', other)


@pytest.mark.timeout(1200)
def test_crashes(pods):
    """The driver is killed, the directory of the specs emptied, the kubelet
    new.

    What a claim has is the same afterwards, and nobody else gets it.
    """
    claim, other = pods.claim('one', NAMES[0]), pods.claim('two', NAMES[0])
    ids = pods.ask('prepare', claim)
    pod = pods.run_with('one', ids)
    specs = pods.written()
    pods.driver.end(signal.SIGKILL)
    pods.kubelet.prepared.clear()
    with pytest.raises(grpc.RpcError):
        pods.kubelet.prepare(claim, timeout=5)
    for path in pods.specs.iterdir():
        path.unlink()
    pods.start()
    # The kubelet asks no more for a container that it starts again.
    assert pods.written() == specs
    pods.restart_kubelet()
    assert pods.ask('prepare', claim) == ids
    with pytest.raises(PrepareFailed, match=claim['metadata']['uid']):
        pods.ask('prepare', other)
    assert pods.sees(pod) == ['acc0']
    pods.end(pod)
    again = pods.run_with('again', ids)
    assert pods.sees(again) == ['acc0']
    pods.end(again)
    pods.ask('unprepare', claim)
    with pytest.raises(grpc.RpcError, match='unresolvable CDI devices'):
        pods.run_with('late', ids)
    assert pods.driver.end() == 0


@pytest.mark.timeout(1200)
def test_a_claim_of_two_pods(pods):
    """Both have the device; it is released after the last of them."""
    claim = pods.claim('one', NAMES[0])
    ids = pods.ask('prepare', claim)
    first, second = pods.run_with('one', ids), pods.run_with('two', ids)
    assert pods.sees(first) == pods.sees(second) == ['acc0']
    pods.end(first)
    with pytest.raises(PrepareFailed, match=r'process|container'):
        pods.ask('unprepare', claim)
    pods.end(second)
    pods.ask('unprepare', claim)
    assert pods.written() == []


@pytest.mark.timeout(1200)
def test_a_privileged_pod_keeps_no_device(pods):
    """Such as kube-proxy, which has all device files of the node."""
    neighbour = pods.kubelet.start_pod('proxy', [], privileged=True)
    try:
        assert pods.sees(neighbour) == ['acc0', 'acc1']
        claim = pods.claim('one', NAMES[0])
        pod = pods.run('one', claim)
        # The Pod of the claim has it until it ends.
        with pytest.raises(PrepareFailed, match=r'process|container'):
            pods.ask('unprepare', claim)
        pods.end(pod)
        pods.ask('unprepare', claim)
        assert pods.written() == []
    finally:
        pods.kubelet.stop_pod(*neighbour)


@pytest.mark.timeout(1200)
def test_the_metadata_file_in_a_container(pods, tmp_path):
    """No PCI function is here: only what the driver adds to one is real."""
    claim = pods.claim('vm', NAMES[0])
    made = metadata.Metadata(str(tmp_path), str(pods.specs), DRIVER)
    handle = objects.PCIHandle(address='0000:3b:00.1')
    result = claims.Result('gpu', NODE, 'pci-0000-3b-00-1')
    ids = made.write(claim, [(result, handle)])
    pod = pods.run_with('vm', list(ids.values()))
    path = (
        '/var/run/kubernetes.io/dra-device-attributes/resourceclaims/vm/gpu/'
        f'{DRIVER}-metadata.json'
    )
    code, text = pods.kubelet.execute(pod[1], 'dd', f'if={path}')
    assert code == 0
    # What dd says of itself comes after it.
    body, _ = json.JSONDecoder().raw_decode(text)
    assert body['metadata']['name'] == 'vm'
    code, text = pods.kubelet.execute(pod[1], 'dd', f'of={path}')
    assert 'Read-only file system' in text
    pods.end(pod)
    made.remove(claim['metadata']['uid'])
    assert pods.written() == []
