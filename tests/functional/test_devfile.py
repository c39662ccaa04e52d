# SPDX-License-Identifier: Apache-2.0

"""Real device files, made by mknod, and processes that have them open.

This needs root. No driver has the numbers 250:N, except that /dev/full (1:7)
can be opened.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import uuid

from oslo_privsep import priv_context
import processes
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import sysfs
from os_acc.privileged import context
from os_acc.privileged import notes
from os_acc.privileged import root_folder

OWNER, GROUP = 64901, 64910
INSTANCE = str(uuid.uuid4())
NAMES = [f'char-250-{number}' for number in range(3)]
FULL = 'virtual+mem+full'

HOLD = 'import sys; f = open(sys.argv[1]); print("open", flush=True); '
HOLD += 'sys.stdin.read()'


class Nodes:
    """Device files in a directory of /dev, and a host that gives them out."""

    def __init__(self, directory: pathlib.Path, place: pathlib.Path) -> None:
        self.directory, self.place = directory, place
        directory.mkdir(mode=0o755)
        directory.chmod(0o755)
        for number in range(3):
            self.make(f'acc{number}', 250, number)
        self.make('full', 1, 7)
        proc = place / 'proc'
        (proc / 'self').mkdir(parents=True)
        (proc / 'self/mountinfo').symlink_to('/proc/self/mountinfo')
        for name in ('sys', 'swaps'):
            (proc / name).symlink_to(f'/proc/{name}')

    def make(self, name: str, major: int, minor: int) -> None:
        path = self.directory / name
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        os.chown(path, 0, 6)
        path.chmod(0o660)

    def of(self, name: str) -> tuple[int, int, int]:
        found = (self.directory / name).stat()
        return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)

    def show(self, pid: int) -> None:
        """Let os-acc see a process. It sees no others."""
        (self.place / f'proc/{pid}').symlink_to(f'/proc/{pid}')

    def configure(self, daemon: bool = False) -> None:
        """Be a service on this host. Call it in a child process."""
        processes.configure(str(self.place / 'state'))
        conf = os_acc.CONF
        conf.set_override('plugin', 'noop', 'os_acc')
        conf.set_override('device_spec_dir', '', 'os_acc')
        conf.set_override('release_timeout', 0.2, 'os_acc')
        entry = {
            'devices': f'{self.directory}/*',
            'owner': OWNER,
            'group': GROUP,
            'mode': '0600',
        }
        conf.set_override('device_spec', [json.dumps(entry)], 'os_acc')
        sysfs.PROC = str(self.place / 'proc')
        root_folder.PATH = str(self.place / 'run')
        notes.FOLDER = str(self.place / 'notes')
        context.pctxt.set_client_mode(daemon)
        if daemon:
            conf.set_default(
                'capabilities', list(context.CAPABILITIES), context.SECTION
            )
            context.pctxt.start(priv_context.Method.FORK)
        os_acc.initialize(reset=True)

    def run(self, work: Callable[[], None], daemon: bool = False) -> int:
        def whole() -> None:
            self.configure(daemon)
            work()

        return processes.run(whole)


@pytest.fixture
def nodes(tmp_path) -> Iterator[Nodes]:
    directory = pathlib.Path(f'/dev/os-acc-test-{os.getpid()}')
    made = Nodes(directory, tmp_path)
    yield made
    shutil.rmtree(directory)


@pytest.fixture
def hold(nodes) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a process that has a file open."""
    started = []

    def run(name: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, '-c', HOLD, str(nodes.directory / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == 'open\n'
        nodes.show(process.pid)
        started.append(process)
        return process

    yield run
    for process in started:
        process.communicate()


def instance(name: str = INSTANCE) -> objects.InstanceInfo:
    return objects.InstanceInfo(uuid=name, name='i', project_id='p')


def plug(name: str, owner: str = INSTANCE) -> objects.VAN:
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid5(uuid.UUID(owner), name),
        handle=objects.DeviceFileHandle(name=name, files=[]),
    )
    (van,) = os_acc.plug(instance(owner), [request])
    return van


@pytest.mark.parametrize('daemon', [False, True])
def test_owner_and_mode(nodes, daemon):
    """In the daemon, its capabilities must be enough."""

    def work() -> None:
        (file,) = plug(NAMES[1]).handle.files
        assert (file.path, file.major, file.minor) == (
            f'{nodes.directory}/acc1',
            250,
            1,
        )
        assert nodes.of('acc1') == (OWNER, GROUP, 0o600)
        assert nodes.of('acc0') == (0, 6, 0o660)
        with pytest.raises(exception.PlugException) as caught:
            plug(NAMES[1], str(uuid.uuid4()))
        assert isinstance(caught.value.__cause__, exception.DeviceBusy)
        assert os_acc.unplug(instance()) == 1
        assert nodes.of('acc1') == (0, 6, 0o660)

    assert nodes.run(work, daemon) == 0


def test_a_process_has_it_open(nodes, hold):
    process = hold('full')

    def refused() -> None:
        with pytest.raises(exception.PlugException) as caught:
            plug(FULL)
        assert f'process {process.pid}' in str(caught.value.__cause__)

    assert nodes.run(refused) == 0
    process.communicate()

    def taken() -> None:
        plug(FULL)

    assert nodes.run(taken) == 0
    process = hold('full')

    def kept() -> None:
        with pytest.raises(exception.UnplugException) as caught:
            os_acc.unplug(instance())
        assert f'process {process.pid}' in str(caught.value.__cause__)
        assert nodes.of('full') == (OWNER, GROUP, 0o600)

    assert nodes.run(kept) == 0
    process.communicate()

    def released() -> None:
        # initialize() has ended what unplug() had begun.
        assert not os_acc.get_vans()
        assert os_acc.unplug(instance()) == 0
        assert nodes.of('full') == (0, 6, 0o660)

    assert nodes.run(released) == 0


def test_killed_anywhere(nodes):
    """By SIGKILL before and after each change, record and note."""
    killed, number = 0, 0
    while True:

        def work(at: int = number) -> None:
            boundaries = processes.Boundaries(at)
            boundaries.watch(
                root_folder.RootFiles, 'RootFiles', ['write', 'delete']
            )
            for name in ('chown', 'chmod'):
                original = getattr(os, name)

                def wrapped(*values, name=name, original=original, **more):
                    boundaries.cut(f'before {name}')
                    original(*values, **more)
                    boundaries.cut(f'after {name}')

                setattr(os, name, wrapped)
            plug(NAMES[0])
            os_acc.unplug(instance())

        ended = nodes.run(work)

        def recovered() -> None:
            os_acc.recover()
            os_acc.unplug(instance())
            assert nodes.of('acc0') == (0, 6, 0o660)
            assert notes.files.names() == []

        assert nodes.run(recovered) == 0
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        killed += 1
        number += 1
    assert killed >= 12


def test_another_file_takes_its_place(nodes):
    """A link, or a file of another number, is never given away."""
    target = nodes.place / 'target'
    target.touch()
    before = target.stat()

    def work() -> None:
        plug(NAMES[0])
        (nodes.directory / 'acc0').unlink()
        (nodes.directory / 'acc0').symlink_to(target)
        assert os_acc.unplug(instance()) == 1
        (nodes.directory / 'acc0').unlink()
        plug(NAMES[1])
        (nodes.directory / 'acc1').unlink()
        nodes.make('acc1', 250, 9)
        assert os_acc.unplug(instance()) == 1

    assert nodes.run(work) == 0
    assert nodes.of('acc1') == (0, 6, 0o660)
    now = target.stat()
    assert (now.st_uid, now.st_mode) == (before.st_uid, before.st_mode)
