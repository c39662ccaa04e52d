# SPDX-License-Identifier: Apache-2.0

"""A driver of another distribution writes files of root, from a service.

The service has another user than root. It starts the daemon with a command,
as with sudo. The tests need no sudo: the command asks a thread of this
process, which is root, to run privsep-helper.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import processes
import pytest
from stevedore import extension
from two_users import NOVA
from two_users import Host

import os_acc
from os_acc import exception
from os_acc import loader
from os_acc import objects
from os_acc.privileged import privsep

EXAMPLE = pathlib.Path(__file__).parent / 'acc-example'
HELPER = 'oslo_privsep.daemon'
ENTRY_POINTS = """
[os_acc.drivers]
example = acc_example.driver:ExampleDriver
"""
# It runs as the user of the service, in place of sudo. It needs no Python,
# which this user may be unable to read.
ASK = """\
printf '%s\\n' "$@" > {request}
read code < {reply}
exit $code
"""


class Sudo:
    """Runs privsep-helper as root, with the arguments that a command sends.

    :ivar command: the command, for the option helper_command
    """

    def __init__(self, directory: pathlib.Path, modules: pathlib.Path) -> None:
        self._request = directory / 'request'
        self._reply = directory / 'reply'
        for path in (self._request, self._reply):
            os.mkfifo(path)
            path.chmod(0o666)
        script = directory / 'ask'
        script.write_text(ASK.format(request=self._request, reply=self._reply))
        self.command = f'/bin/sh {script}'
        self._environment = {**os.environ, 'PYTHONPATH': str(modules)}
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._request.write_text('')
        self._thread.join()

    def _serve(self) -> None:
        helper = (sys.executable, '-W', 'ignore', '-m', HELPER)
        while arguments := self._request.read_text().splitlines():
            done = subprocess.run(
                [*helper, *arguments], env=self._environment, check=False
            )
            self._reply.write_text(f'{done.returncode}\n')


class ExampleHost(Host):
    """A host with the example, whose directory belongs to root."""

    def __init__(self, directory: pathlib.Path, helper: str) -> None:
        super().__init__(directory)
        self.helper = helper
        self.slots = directory / 'slots'
        self.slots.mkdir(mode=0o755)
        self.conf = directory / 'root.conf'
        self.conf.write_text(
            f'[os_acc_example]\ndirectory = {self.slots}\nslots = a, b\n'
        )

    def configure(self) -> None:
        conf = os_acc.CONF
        processes.configure(str(self.state))
        conf.set_override('plugin', 'noop', 'os_acc')
        conf.set_override('directory', str(self.slots), 'os_acc_example')
        conf.set_override('slots', ['a', 'b'], 'os_acc_example')
        conf.set_override(
            'helper_command',
            f'{self.helper} --config-file {self.conf}',
            'os_acc_example_privileged',
        )

    def used(self) -> list[str]:
        owners = {path.stat().st_uid for path in self.slots.iterdir()}
        assert owners <= {0}
        return sorted(os.listdir(self.slots))


@pytest.fixture(scope='module', autouse=True)
def example(tmp_path_factory) -> Iterator[pathlib.Path]:
    """The example, as pip installs it."""
    place = tmp_path_factory.mktemp('site')
    shutil.copytree(EXAMPLE / 'acc_example', place / 'acc_example')
    info = place / 'acc_example-1.0.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(
        'Metadata-Version: 2.1\nName: acc-example\nVersion: 1.0.0\n'
    )
    (info / 'entry_points.txt').write_text(ENTRY_POINTS)
    sys.path.insert(0, str(place))
    import_all(tmp_path_factory.mktemp('import'))
    yield place
    sys.path.remove(str(place))
    extension.ExtensionManager.ENTRY_POINT_CACHE.clear()


def import_all(directory: pathlib.Path) -> None:
    """Import what a service imports late.

    The user of the service may not be able to read the directory of Python.
    """
    # stevedore has kept what was installed before.
    extension.ExtensionManager.ENTRY_POINT_CACHE.clear()
    loader.load_all()
    host = ExampleHost(directory, '')
    host.configure()
    privsep.run_here(True)
    try:
        os_acc.initialize()
        plug()
        os_acc.unplug(instance())
    finally:
        privsep.run_here(False)
        os_acc._host.close()
        os_acc._host = None
        # Takes the options of configure() back, too.
        os_acc.CONF.reset()


@pytest.fixture
def host(example) -> Iterator[ExampleHost]:
    # The directories above tmp_path keep other users than root out.
    directory = pathlib.Path(tempfile.mkdtemp(prefix='os-acc-root-'))
    directory.chmod(0o755)
    sudo = Sudo(directory, example)
    made = ExampleHost(directory, sudo.command)
    made.share()
    yield made
    sudo.stop()
    shutil.rmtree(directory)


def instance(number: int = 0) -> objects.InstanceInfo:
    return objects.InstanceInfo(uuid=uuid.UUID(int=number + 1, version=4))


def plug(number: int = 0) -> str:
    request = objects.AcceleratorRequest(
        uuid=uuid.uuid4(), resource_class='CUSTOM_EXAMPLE'
    )
    (van,) = os_acc.plug(instance(number), [request])
    return van.handle.name


def raised(call: Callable[[], object]) -> str:
    try:
        call()
    except exception.ExceptionBase as err:
        cause = err.__cause__ or err
        return f'{type(cause).__name__}: {cause}'
    pytest.fail('no error')


def test_plug_and_unplug(host):
    assert host.run(NOVA, lambda: [plug(0), plug(1)]) == ['a', 'b']
    assert host.used() == ['a', 'b']
    assert host.run(NOVA, lambda: os_acc.unplug(instance())) == 1
    assert host.used() == ['b']
    assert host.run(NOVA, lambda: os_acc.unplug(instance(1))) == 1
    assert host.used() == []


def test_the_undo_after_a_kill(host):
    def die() -> None:
        from acc_example import privileged

        occupy = privileged.occupy

        def occupy_and_die(slot: str) -> None:
            occupy(slot)
            os.kill(os.getpid(), signal.SIGKILL)

        privileged.occupy = occupy_and_die
        plug()

    child = host.start(NOVA, die)
    assert processes.wait(child) == -signal.SIGKILL
    assert host.used() == ['a']
    # initialize() recovers.
    assert host.run(NOVA, lambda: len(os_acc.get_vans())) == 0
    assert host.used() == []


def test_the_daemon_is_root_in_a_session_of_its_own(host):
    def work() -> None:
        plug()
        time.sleep(300)

    child = host.start(NOVA, work)
    try:
        wait_for(host.used)
        (pid,) = daemons(host)
        assert pathlib.Path(f'/proc/{pid}').stat().st_uid == 0
        assert os.getsid(pid) == pid != os.getsid(child)
    finally:
        os.kill(child, signal.SIGKILL)
        processes.wait(child)
    # It ends with the service.
    wait_for(lambda: not daemons(host))


def daemons(host: ExampleHost) -> list[int]:
    found = []
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
        try:
            arguments = path.read_text().split('\0')
        except OSError:
            continue
        if {str(host.conf), HELPER} <= set(arguments):
            found.append(int(path.parent.name))
    return found


def wait_for(look: Callable[[], object]):
    deadline = time.monotonic() + 60
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return seen


def test_a_daemon_that_is_killed_is_the_end_of_the_stream(host):
    def work() -> str:
        plug()
        (host.directory / 'state' / 'ready').touch()
        wait_for(lambda: (host.directory / 'killed').exists())
        return plug(1)

    child = host.start(NOVA, work)
    wait_for(lambda: (host.directory / 'state' / 'ready').exists())
    (pid,) = daemons(host)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not daemons(host))
    (host.directory / 'killed').touch()
    # The next call starts another daemon.
    assert host.end(child) == {'result': 'b'}
    assert host.used() == ['a', 'b']


def test_the_caller_has_no_say_over_the_place(host):
    def work() -> list[str]:
        from acc_example import privileged

        os_acc.CONF.set_override('slots', ['../x'], 'os_acc_example')
        os_acc.CONF.set_override('directory', '/', 'os_acc_example')
        return [
            raised(functools.partial(privileged.occupy, name))
            for name in ('../x', 'c')
        ]

    for error in host.run(NOVA, work):
        assert error.startswith('InvalidRequest: ')
    assert host.used() == []


def test_a_configuration_that_others_can_write(host):
    host.conf.chmod(0o666)
    error = host.run(NOVA, lambda: raised(plug))
    assert error.startswith('InvalidRequest: ')
    assert str(host.conf) in error
    assert host.used() == []


def test_without_a_way_to_root(host):
    helper, host.helper = host.helper, '/usr/bin/env false'
    error = host.run(NOVA, lambda: raised(plug))
    assert error.startswith('PrivilegeError: ')
    assert '[os_acc_example_privileged] helper_command' in error
    # The undo needs root, too. The journal keeps the VAN until it has it.
    host.helper = helper
    assert host.run(NOVA, lambda: len(os_acc.get_vans())) == 0
    assert host.used() == []
