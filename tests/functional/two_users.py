# SPDX-License-Identifier: Apache-2.0

"""Services of two users on one state path, each a child process.

The users and the group have numbers only: the tests make no account.
"""

from __future__ import annotations

from collections.abc import Callable
import importlib
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import uuid

import import_all as modules
import processes
import web

import os_acc
from os_acc import exception
from os_acc import objects

NOVA, CYBORG, STRANGER, GROUP = 64901, 64902, 64903, 64910
# A service's umask must not matter. Each user has the tightest that a service
# could have, or none.
UMASKS = {NOVA: 0o077, CYBORG: 0o027, STRANGER: 0o022, 0: 0o077}


def install(path: pathlib.Path) -> None:
    """Share a directory, with the command of the documentation."""
    whose = ('-o', str(NOVA), '-g', str(GROUP))
    subprocess.run(['install', '-d', '-m', '2770', *whose, path], check=True)


class Host:
    """A state path below a directory that each user can reach."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.state = directory / 'state'
        self.log = directory / 'log'
        self.log.mkdir(mode=0o777)
        self.log.chmod(0o777)

    def share(self) -> None:
        """Do what the documentation says."""
        install(self.state)

    def share_all(self) -> None:
        """Do what it says for a directory that has files already."""
        setgid = ('-type', 'd', '-exec', 'chmod', 'g+s', '{}', '+')
        for command in (
            ('chgrp', '-R', str(GROUP), self.state),
            ('chmod', '-R', 'u=rwX,g=u,o=', self.state),
            ('find', self.state, *setgid),
        ):
            subprocess.run(command, check=True)

    def before(self) -> None:
        """Do what a service does while it is still root."""

    def configure(self) -> None:
        processes.configure(
            str(self.state),
            devices=['f0:pci:4:single', 't0:test:6'],
            discover=True,
        )
        os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
        os_acc.CONF.set_override('allow_http', True, 'os_acc_bitstreams')

    def start(
        self,
        user: int,
        work: Callable[[], object],
        groups: tuple[int, ...] = (GROUP,),
        read_only: bool = False,
    ) -> int:
        """Start a service of a user.

        :param work: its result, as JSON, or its error is kept for result()
        :returns: its process id
        """

        def child() -> None:
            self.before()
            os.umask(UMASKS[user])
            os.setgroups(groups if user else ())
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            self.configure()
            try:
                os_acc.initialize(read_only=read_only, owner=f'u{user}')
                seen = {'result': work()}
            except exception.ExceptionBase as err:
                if isinstance(err, exception.PlugException):
                    err = err.__cause__ or err
                seen = {'error': f'{type(err).__name__}: {err}'}
            (self.log / str(os.getpid())).write_text(json.dumps(seen))

        return processes.start(child)

    def end(self, pid: int) -> dict[str, object]:
        """Wait for a service; returns its result or error."""
        assert processes.wait(pid) == 0
        seen: dict[str, object] = json.loads((self.log / str(pid)).read_text())
        return seen

    def run(self, user: int, work: Callable[[], object], **how: object):
        seen = self.end(self.start(user, work, **how))
        assert 'error' not in seen, seen['error']
        return seen['result']

    def error(self, user: int, work: Callable[[], object], **how: object):
        return self.end(self.start(user, work, **how))['error']

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command os-acc as root."""
        return subprocess.run(
            [
                *(sys.executable, '-c'),
                'import os, sys; os.umask(0o077); from os_acc.cli import app; '
                'sys.exit(app.main(sys.argv[1:]))',
                *('--state-path', str(self.state), *arguments),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    def check_modes(self) -> set[int]:
        """Check that each user can use each file; returns their owners."""
        owners = set()
        for place in (self.state, *self.state.rglob('*')):
            found = place.lstat()
            owners.add(found.st_uid)
            mode = 0o2770 if stat.S_ISDIR(found.st_mode) else 0o660
            assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (
                GROUP,
                mode,
            ), f'{place}: {found}'
        return owners


def instance(number: int = 0) -> objects.InstanceInfo:
    return objects.InstanceInfo(
        uuid=uuid.UUID(int=number + 1, version=4), name='i', project_id='p'
    )


def request(function: str | None = None) -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=uuid.uuid4(),
        driver='fake',
        resource_class='CUSTOM_FAKE_PCI' if function else 'CUSTOM_FAKE_TEST',
        function_id=function,
    )


def plug(function: str | None = None, number: int = 0) -> list[str]:
    vans = os_acc.plug(instance(number), [request(function)])
    return [van.state for van in vans]


def program(function: str) -> bool:
    return os_acc.program_device('f0', None, function)


def import_all() -> None:
    """Import all that a service imports late.

    The users of the tests may not be able to read the directory of Python.
    """
    for name in modules.modules():
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as directory, web.serving() as server:
        Host(pathlib.Path(directory)).configure()
        try:
            os_acc.initialize()
            plug('aes')
            os_acc.unplug(instance())
            url = server.put('/aes.gbs', b'aes')
            os_acc.program_device('f0', url, 'aes')
            os_acc.get_devices()
            os_acc.initialize(reset=True, read_only=True)
        finally:
            os_acc._host.close()
            os_acc._host = None
            os_acc.CONF.reset()
