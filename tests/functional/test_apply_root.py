# SPDX-License-Identifier: Apache-2.0

"""os-acc apply as root, where the journal belongs to a service's user.

This needs root. The command does a part of the work as the service's user, who
can read os-acc on a host, but perhaps not where these tests run. So it imports
all before.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import tempfile

import pytest

TESTS = str(pathlib.Path(__file__).parents[1])
ENV = {**os.environ, 'PYTHONPATH': TESTS}
USER = pwd.getpwnam('nobody')
MAIN = """
import import_all
import_all.load()
from os_acc.cli import app
raise SystemExit(app.main())
"""
# Holds the lock of the document until its standard input ends, as
# "os-acc pools --keep" of a service does.
HOLDER = """
import os, sys
from os_acc import locking
os.setuid(int(sys.argv[2]))
with locking.Locks(sys.argv[1], 3).document():
    print('held', flush=True)
    sys.stdin.read()
"""


class Host:
    """A host whose service runs as nobody.

    :param top: a directory that everybody can read
    """

    def __init__(self, top: str) -> None:
        self.state, self.locks = f'{top}/state', f'{top}/locks'
        self.specs, self.conf = f'{top}/specs', f'{top}/os-acc.conf'
        self.path = f'{top}/host.json'
        for directory in (self.state, self.locks):
            os.mkdir(directory, 0o700)
            os.chown(directory, USER.pw_uid, USER.pw_gid)
        pathlib.Path(self.conf).write_text(
            f'[os_acc]\nplugin = noop\nstate_path = {self.state}\n'
            f'lock_path = {self.locks}\nlock_timeout = 2\n'
            f'device_spec_dir = {self.specs}\n'
            '[os_acc_fake]\n'
            'devices = fpga:pci:2:dynamic,card:pci:2:single\n'
            f'discover = True\nhardware_path = {self.state}/hardware\n'
        )

    def apply(
        self, *arguments: str, **parts: object
    ) -> subprocess.CompletedProcess[str]:
        pathlib.Path(self.path).write_text(json.dumps({'version': 1, **parts}))
        return subprocess.run(
            [
                *(sys.executable, '-c', MAIN, '--config-file', self.conf),
                *('apply', self.path, '-f', 'json', *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            env=ENV,
        )

    @contextlib.contextmanager
    def lock_held(self) -> Iterator[None]:
        """Another process of the service holds the document's lock."""
        with subprocess.Popen(
            [sys.executable, '-c', HOLDER, self.locks, str(USER.pw_uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENV,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b'held\n'
            yield
            holder.communicate()

    def offered(self) -> dict[str, tuple[str, int]]:
        """The files of device_spec_dir: text and time."""
        return {
            each.name: (each.read_text(), each.stat().st_mtime_ns)
            for each in pathlib.Path(self.specs).iterdir()
        }


@pytest.fixture
def host() -> Iterator[Host]:
    top = tempfile.mkdtemp()
    os.chmod(top, 0o755)
    try:
        yield Host(top)
    finally:
        shutil.rmtree(top)


def rows(
    done: subprocess.CompletedProcess[str],
) -> list[tuple[str, str, str]]:
    return [
        (each['part'], each['name'], each['result'])
        for each in json.loads(done.stdout)
    ]


ONE, TWO = {'address': '0000:02:00.0'}, {'address': '0000:03:00.0'}


def test_root_where_the_journal_is_a_services(host):
    """Root writes what is offered, and the service's user does the rest."""
    function = {'device': 'fpga', 'region': '0', 'function': 'aes'}
    for expected in ('changed', 'unchanged'):
        done = host.apply(offered=[ONE], functions=[function])
        assert done.returncode == 0, done.stderr
        assert [result for _, _, result in rows(done)] == [expected] * 2
    (file,) = os.listdir(host.specs)
    assert os.stat(f'{host.specs}/{file}').st_uid == 0
    for directory, _, files in os.walk(host.state):
        for name in (directory, *files):
            found = os.stat(os.path.join(directory, name))
            assert found.st_uid == USER.pw_uid, name


def test_while_another_process_has_the_document(host):
    """Root offers nothing that the journal does not have."""
    assert host.apply(offered=[ONE]).returncode == 0
    before = host.offered()
    with host.lock_held():
        done = host.apply(
            offered=[ONE, TWO], reserved=[{**device_of(TWO), 'project': 'p'}]
        )
    assert done.returncode == 5, done.stderr
    assert host.offered() == before
    done = host.apply('--check', offered=[ONE])
    assert (done.returncode, rows(done)[0][2]) == (0, 'unchanged')


def test_all_rows_are_shown(host):
    """Also if what is offered is withdrawn, and a step fails."""
    assert host.apply(offered=[ONE]).returncode == 0
    parts = {
        'functions': [
            {'device': 'nosuch', 'function': 'aes'},
            {'device': 'card', 'function': 'gzip'},
        ]
    }
    (name,) = host.offered()
    expected = [
        ('offered', f'{host.specs}/{name}', 'changed'),
        ('functions', 'nosuch', 'failed'),
        ('functions', 'card', 'changed'),
    ]
    done = host.apply(**parts)
    assert (done.returncode, rows(done)) == (3, expected), done.stderr
    assert host.offered() == {}
    done = host.apply(**parts)
    assert done.returncode == 3
    assert rows(done) == [expected[1], ('functions', 'card', 'unchanged')]


def device_of(entry: dict[str, str]) -> dict[str, str]:
    return {'device': entry['address']}
