# SPDX-License-Identifier: Apache-2.0

"""A service without privileges. sudo starts the daemon of privsep."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import lab_devices
import nvmet
import processes
import pytest
import use

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import sriov
from os_acc.privileged import context
from os_acc.privileged.pci import vfs
from os_acc.spec import changing

NOBODY = 65534
INSTANCE = '3b0a6bb0-1111-4222-8333-444455556666'
SUDOERS = pathlib.Path('/etc/sudoers.d/os-acc-lab')


@pytest.fixture
def sudoers(tmp_path):
    """Install the sudo rule of the documentation, for the user nobody."""
    helper = pathlib.Path(sys.executable).parent / 'privsep-helper'
    arguments = (
        f'--config-file {tmp_path}/os-acc.conf '
        r'--privsep_context os_acc\.privileged\.context\.pctxt '
        r'--privsep_sock_path /lab/tmp/[^/ ]+/privsep\.sock'
    )
    SUDOERS.write_text(
        f'nobody ALL = (root) NOPASSWD: {helper} ^{arguments}$\n'
    )
    SUDOERS.chmod(0o440)
    yield
    SUDOERS.unlink()


class Service:
    """A configuration file, and processes of the user nobody."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.said = path / 'said'
        self.write_config()

    def write_config(
        self,
        capabilities: str = '',
        specs: Sequence[dict[str, Any]] = use.SPECS,
    ) -> None:
        self.specs = self.path / 'specs'
        lines = [
            '[os_acc]',
            f'state_path = {self.path}/state',
            'release_timeout = 1',
            'cleaning_command = true',
            f'device_spec_dir = {self.specs}',
            *(f'device_spec = {json.dumps(spec)}' for spec in specs),
            '[os_acc_privileged]',
        ]
        if capabilities:
            lines.append(f'capabilities = {capabilities}')
        path = self.path / 'os-acc.conf'
        path.write_text('\n'.join(lines) + '\n')
        path.chmod(0o644)

    def process(self, work: Callable[[], object]) -> int:
        """Do work as nobody; its return value goes to ``said``."""
        self.said.unlink(missing_ok=True)

        def child() -> None:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.environ['HOME'] = str(self.path)
            context.pctxt.set_client_mode(True)
            os_acc.CONF(
                ['--config-file', str(self.path / 'os-acc.conf')],
                project='os-acc',
            )
            os_acc.initialize()
            self.said.write_text(json.dumps(work()))

        return processes.run(child)

    def answer(self, work: Callable[[], object]):
        assert self.process(work) == 0
        return json.loads(self.said.read_text())


@pytest.fixture
def service(tmp_path):
    for directory in (tmp_path, *tmp_path.parents):
        if directory.is_relative_to('/lab/tmp'):
            # With the sticky bit nobody can replace the files of root.
            directory.chmod(0o1777)
    return Service(tmp_path)


class Trips:
    """Counts the calls to the daemon."""

    def __init__(self) -> None:
        self.names: list[str] = []
        from oslo_privsep import daemon

        original = daemon._ClientChannel.remote_call

        def counted(channel, name, *args):
            # initialize() makes the call load() in the background.
            if (call := name.rpartition('.')[2]) != 'load':
                self.names.append(call)
            return original(channel, name, *args)

        daemon._ClientChannel.remote_call = counted


def error_of(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except exception.AttachException as err:
        return [
            type(err.__cause__).__name__,
            str(err),
            *map(str, err.undo_errors),
        ]
    return []


def plug(*requests) -> list[str]:
    vans = os_acc.plug(use.instance(INSTANCE), list(requests))
    return [van.handle.identity for van in vans]


def test_all_of_it(service, sudoers, snapshot, report):
    before = snapshot()

    def work():
        trips = Trips()
        counts = {}
        assert sriov.count(lab_devices.NVME_PF) == 0
        plug(use.pci_request(use.VFS[0]))
        counts['first VF'] = list(trips.names)
        trips.names.clear()
        plug(use.pci_request(use.VFS[1]))
        counts['second VF'] = list(trips.names)
        trips.names.clear()
        plug(use.pci_request(lab_devices.NIC))
        counts['function'] = list(trips.names)
        trips.names.clear()
        plug(use.mdev_request())
        counts['mdev'] = list(trips.names)
        assert use.driver_of(use.VFS[0]) == 'vfio-pci'
        refused = error_of(
            lambda: plug(use.pci_request(lab_devices.SHARED_FREE))
        )
        daemon = _daemon()
        status = pathlib.Path(f'/proc/{daemon}/status').read_text()
        capabilities = [
            line.split()[1]
            for line in status.splitlines()
            if line.startswith('CapEff')
        ]
        os_acc.unplug(use.instance(INSTANCE))
        return counts, refused, capabilities

    counts, refused, capabilities = service.answer(work)
    assert snapshot() == before
    # CAP_CHOWN is 0, CAP_DAC_READ_SEARCH 2, CAP_FOWNER 3, CAP_NET_ADMIN 12,
    # CAP_SYS_PTRACE 19: include/uapi/linux/capability.h
    assert [int(text, 16) for text in capabilities] == [
        1 << 0 | 1 << 2 | 1 << 3 | 1 << 12 | 1 << 19
    ]
    assert refused[0] == 'DeviceInUseByHost'
    assert counts['first VF'] == ['create_vfs', 'take']
    assert all(1 <= len(names) <= 2 for names in counts.values()), counts
    report(f'lab: calls of the daemon for each VAN: {counts}')


def _daemon() -> int:
    """Return the process id of the privsep daemon."""
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
        words = path.read_bytes().split(b'\0')
        if any(word.endswith(b'privsep-helper') for word in words[:3]):
            status = (path.parent / 'status').read_text()
            if 'python' in status.splitlines()[0] or 'privsep' in status:
                return int(path.parent.name)
    raise AssertionError('no daemon')


def test_killed_in_the_middle(service, sudoers, snapshot):
    """The daemon finishes its last call after the service was killed.

    The next call waits for that.
    """
    before = snapshot()

    def work():
        from oslo_privsep import daemon

        original = daemon._ClientChannel.remote_call

        def last(channel, name, args, kwargs, timeout):
            if name.endswith('take'):
                pid = os.getpid()
                if os.fork() == 0:
                    time.sleep(0.05)
                    os.kill(pid, signal.SIGKILL)
                    os._exit(0)
            return original(channel, name, args, kwargs, timeout)

        daemon._ClientChannel.remote_call = last
        plug(use.pci_request(lab_devices.NIC), use.pci_request(use.VFS[0]))

    assert service.process(work) == -signal.SIGKILL
    assert service.answer(lambda: len(os_acc.get_vans())) == 0
    assert snapshot() == before


@pytest.mark.parametrize('only', ['CAP_SYS_PTRACE', 'CAP_DAC_READ_SEARCH'])
def test_either_capability_is_needed(service, sudoers, snapshot, only):
    before = snapshot()
    service.write_config(capabilities=only)

    def work():
        return error_of(lambda: plug(use.pci_request(lab_devices.NIC)))

    # A process of another user. A process that has changed its user belongs
    # to root.
    with subprocess.Popen(['sleep', '600'], user=NOBODY - 1) as other:
        try:
            kind, text, *undo = service.answer(work)
        finally:
            other.kill()
    assert kind == 'PrivilegeError'
    assert 'os-acc doctor' in text
    assert undo == []
    assert snapshot() == before


def test_a_namespace_of_a_target(service, sudoers, tmp_path):
    """The daemon connects and empties it with its own capabilities.

    nvme-cli gets the secret from the daemon's memory.
    """
    target = nvmet.Target(tmp_path)
    made = subprocess.run(
        ['nvme', 'gen-dhchap-key'],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    secret = tmp_path / 'secret'
    secret.write_text(made.stdout)
    secret.chmod(0o600)
    service.write_config(specs=[target.entry(dhchap_secret_file=str(secret))])
    wwn = f'uuid.{target.uuids[0]}'
    path = f'/dev/disk/by-id/nvme-{wwn}'
    handle = objects.BlockHandle(path=path, wwn=wwn)

    def work():
        wanted = objects.AcceleratorRequest(uuid=INSTANCE, handle=handle)
        plugged = plug(wanted), nvmet.connections()
        return *plugged, os_acc.unplug(use.instance(INSTANCE))

    try:
        with nvmet.written_to_the_kernel() as written:
            names, connected, unplugged = service.answer(work)
            assert f'dhchap_secret={made.stdout.strip()}' in written()
        assert names == [f'block/{wwn}']
        host = f'nqn.2014-08.org.nvmexpress:uuid:{INSTANCE}'
        assert connected == [host]
        assert unplugged == 1
        assert nvmet.connections() == []
    finally:
        target.remove()


def test_without_the_daemon(service, snapshot):
    before = snapshot()

    def work():
        return error_of(lambda: plug(use.pci_request(lab_devices.NIC)))

    kind, text, *undo = service.answer(work)
    assert kind == 'PrivilegeError'
    assert 'helper_command' in text
    assert undo == []
    assert snapshot() == before


class Operator(threading.Thread):
    """Root, who changes device_spec_dir when a service asks for it.

    :param acts: what to do, in turn
    """

    def __init__(self, path: pathlib.Path, *acts: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._acts = acts

    def run(self) -> None:
        for number, act in enumerate(self._acts):
            while not (self._path / f'ask-{number}').exists():
                time.sleep(0.05)
            act()
            (self._path / f'done-{number}').touch()

    def ask(self, number: int) -> None:
        """Called by the service."""
        (self._path / f'ask-{number}').touch()
        deadline = time.monotonic() + 60
        while not (self._path / f'done-{number}').exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_device_spec_changes_while_the_service_runs(
    service, sudoers, snapshot
):
    before = snapshot()
    service.write_config(specs=())
    file = pathlib.Path(
        changing.path_of(str(service.specs), lab_devices.PLAIN)
    )

    def write(**values: Any) -> None:
        changing.write(
            str(file), json.dumps({'address': lab_devices.PLAIN, **values})
        )

    operator = Operator(
        service.path,
        write,
        lambda: write(deny=True),
        lambda: (write(), os.chown(file, NOBODY, 0)),
    )
    operator.start()

    def work():
        instance = use.instance(INSTANCE)
        request = use.pci_request(lab_devices.PLAIN)
        closed = error_of(lambda: plug(request))
        operator.ask(0)
        opened = plug(request)
        operator.ask(1)
        again = error_of(lambda: plug(use.pci_request(lab_devices.NIC)))
        released = os_acc.unplug(instance)
        denied = error_of(lambda: plug(request))
        operator.ask(2)
        foreign = error_of(lambda: plug(request))
        return closed, opened, again, released, denied, foreign

    closed, opened, again, released, denied, foreign = service.answer(work)
    for error in (closed, again, denied):
        assert error[0] == 'DeviceNotFound'
        assert 'device_spec = {"address": ' in error[1]
    assert opened == [f'pci/{lab_devices.PLAIN}']
    assert released == 1
    # The service trusts its own file, but the daemon does not.
    assert foreign[0] == 'InvalidRequest'
    assert str(file) in foreign[1]
    assert f'user id {NOBODY}' in foreign[1]
    assert snapshot() == before


def test_the_daemon_offers_nothing_by_itself(service, sudoers, snapshot):
    """A service that skips its own checks gets no further."""
    before = snapshot()
    service.write_config(specs=())

    def work():
        from os_acc.privileged.mdev import devices as mdev
        from os_acc.privileged.pci import functions as pci

        name = '11111111-2222-4333-8444-555555555555'
        calls = (
            lambda: pci.take(lab_devices.PLAIN, 'vfio-pci', [], name, 5.0),
            lambda: pci.clean(lab_devices.PLAIN, '1234:11e8', 'auto', 0, 5.0),
            lambda: pci.hold(lab_devices.PLAIN),
            lambda: vfs.create_vfs(lab_devices.NVME_PF, 2, 5.0),
            lambda: mdev.create(name, use.MTTY, 'mtty-1', 5.0),
        )
        found = []
        for call in calls:
            try:
                call()
            except exception.ExceptionBase as err:
                found.append([type(err).__name__, str(err)])
        return found

    found = service.answer(work)
    assert [kind for kind, _ in found] == ['DeviceNotFound'] * 5
    assert all('os-acc device allow' in text for _, text in found)
    assert snapshot() == before
