# SPDX-License-Identifier: Apache-2.0

"""Real processes that have the device file of a work queue open.

This needs root. The device is the one of tests/idxd_model.py, and its work
queue has the device number of /dev/zero, which real processes can open.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import idxd_model
import pytest

import os_acc
from os_acc import exception
from os_acc import fixture
from os_acc import objects
from os_acc.kernel import device_files
from os_acc.testing import kernel as kernel_module

DSA = '0000:6a:01.0'
ZERO = (1, 5)

# A container's process: /dev is its own. A mapping of /dev/zero has another
# path, so an ordinary file is mapped, at the path of the work queue's.
PROGRAM = """
import mmap, os, stat, subprocess, sys
mount = ['mount', '-t', 'tmpfs', '-o', 'mode=755', 'own-dev', '/dev']
subprocess.run(mount, check=True)
os.mkdir('/dev/dsa')
path = '/dev/dsa/wq0.0'
if sys.argv[1] == 'open':
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    fd = os.open(path, os.O_RDWR)
else:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.truncate(fd, 4096)
    kept = mmap.mmap(fd, 4096)
    os.close(fd)
    os.closerange(3, 100)  # mmap has duplicated it
print('ready', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    kernel, real = (
        kernel_module.Kernel(tmp_path / 'host'),
        device_files.number_of,
    )
    proc = str(kernel.root / 'proc')

    def number(path: str, follow: bool = True) -> device_files.Number | None:
        of = real if path.startswith(proc) else kernel.number_of
        return of(path, follow)

    with fixture.OSAccFixture(str(tmp_path / 'state')):
        kernel.install(monkeypatch)
        # What a process has open is looked for in the real /proc.
        monkeypatch.setattr(device_files, 'number_of', number)
        yield kernel


@pytest.fixture
def dsa(kernel, monkeypatch):
    monkeypatch.setattr(idxd_model.Device, 'major', ZERO[0])
    monkeypatch.setattr(idxd_model.Idxd, 'minor', lambda model: ZERO[1])
    made = idxd_model.Idxd(kernel).add(DSA, queues=1)
    entry = {'idxd': DSA, 'wq_size': 16}
    os_acc.CONF.set_override('device_spec', [json.dumps(entry)], 'os_acc')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.CONF.set_override('release_timeout', 0.0, 'os_acc')
    os_acc.initialize()
    return made


@pytest.fixture
def start(kernel):
    """A function that starts a process; only those count as the host's."""
    started = []

    def run(how: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [
                *('unshare', '--mount', '--propagation', 'private'),
                *(sys.executable, '-c', PROGRAM, how),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == 'ready\n'
        link = kernel.root / 'proc' / str(process.pid)
        link.symlink_to(f'/proc/{process.pid}')
        return process

    yield run
    for process in started:
        end(process)


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


def wanted() -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), resource_class='CUSTOM_DSA', traits=[]
    )


def plug(
    request: objects.AcceleratorRequest | None = None,
) -> objects.InstanceInfo:
    instance = objects.InstanceInfo(
        uuid=str(uuid.uuid4()), name='guest', project_id='project'
    )
    (van,) = os_acc.plug(instance, [request or wanted()])
    assert [(each.major, each.minor) for each in van.handle.files] == [ZERO]
    return instance


@pytest.mark.parametrize('how', ['open', 'mapped'])
@pytest.mark.parametrize('disabled', [None, 'user/unbind', 'idxd/unbind'])
def test_a_program_keeps_a_work_queue(dsa, kernel, start, how, disabled):
    """The kernel disables it all the same, and forgets who has it open."""
    instance = plug()
    process = start(how)
    if disabled is not None:
        path = kernel.sys / 'bus/dsa/drivers' / disabled
        name = {'user': 'wq0.0', 'idxd': 'dsa0'}[disabled.split('/')[0]]
        kernel.write(str(path), name)
    with pytest.raises(
        exception.UnplugException, match=f'process {process.pid} '
    ):
        os_acc.unplug(instance)
    with pytest.raises(exception.PlugException, match='has work queue 0'):
        plug()
    end(process)
    assert os_acc.unplug(instance) == 1
    instance = plug()
    assert os_acc.unplug(instance) == 1
    assert dsa.queues[0].state == 'disabled'


@pytest.mark.parametrize('how', ['open', 'mapped'])
def test_it_is_not_enabled_again_for_its_instance(dsa, kernel, start, how):
    request = wanted()
    instance = plug(request)
    process = start(how)
    kernel.write(str(kernel.sys / 'bus/dsa/drivers/user/unbind'), 'wq0.0')
    with pytest.raises(
        exception.PlugException, match=f'process {process.pid} '
    ):
        os_acc.plug(instance, [request])
    assert dsa.queues[0].state == 'disabled'
    end(process)
    os_acc.plug(instance, [request])
    assert dsa.queues[0].state == 'enabled'
    assert os_acc.unplug(instance) == 1
