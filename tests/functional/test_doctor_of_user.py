# SPDX-License-Identifier: Apache-2.0

"""os-acc doctor, where a user nova may start the daemon by a rule of sudo.

The rule is that of the documentation. The user and the rule exist only in a
mount namespace of the test.
"""

from __future__ import annotations

from collections.abc import Iterator
import glob
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

import os_acc

USER, NUMBER = 'nova', 64921
BIN = pathlib.Path(sys.executable).parent
PAGE = pathlib.Path(__file__).parents[2] / 'doc/source/linux.rst'
SECONDS = 300


def needed() -> set[pathlib.Path]:
    """The directories that Python and os-acc are in."""
    of_package = pathlib.Path(os_acc.__file__).parents[1]
    places = [sys.prefix, sys.base_prefix, of_package, *sys.path]
    return {
        pathlib.Path(each).resolve()
        for each in places
        if each and os.path.isdir(each)
    }


def closed(path: pathlib.Path) -> pathlib.Path | None:
    """The first directory on the way to a path that keeps the user out."""
    for directory in reversed(path.parents):
        if not directory.stat().st_mode & stat.S_IXOTH:
            return directory
    return None


def opening(scratch: pathlib.Path) -> Iterator[str]:
    """Commands that let the user reach what Python needs, such as in /root.

    An empty directory takes the place of a closed one, with only that in it.
    """
    inside: dict[pathlib.Path, list[pathlib.Path]] = {}
    for path in sorted(needed()):
        directory = closed(path)
        if directory is not None:
            inside.setdefault(directory, []).append(path)
    number = 0
    for directory, paths in inside.items():
        held = []
        for path in paths:
            hold = scratch / f'hold{number}'
            number += 1
            held.append((hold, path))
            yield f'mkdir {hold}; mount --rbind {path} {hold}'
        yield f'mount -t tmpfs -o mode=755 none {directory}'
        for hold, path in held:
            yield f'mkdir -p {path}; mount --rbind {hold} {path}'


def rule(config: pathlib.Path) -> str:
    """The rule of the documentation, with the paths of this host."""
    (line,) = re.findall(r'^ +(nova ALL = .*)$', PAGE.read_text(), re.M)
    for old, new in (
        ('/usr/bin/privsep-helper', str(BIN / 'privsep-helper')),
        (r'/etc/nova/nova\.conf', str(config).replace('.', r'\.')),
    ):
        assert line.count(old) == 1
        line = line.replace(old, new)
    return line + '\n'


class Host:
    """A host with a user of the service, its configuration and state path."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.etc = directory / 'etc'
        self.etc.mkdir(mode=0o755)
        state = directory / 'state'
        state.mkdir(mode=0o700)
        os.chown(state, NUMBER, NUMBER)
        self.config = self.etc / 'nova.conf'
        self.config.write_text(
            f'[os_acc]\nplugin = noop\nstate_path = {state}\n'
            'device_spec = {"address": "ffff:3b:00.0"}\n'
        )
        os.chown(self.config, 0, NUMBER)
        self.config.chmod(0o640)
        for name, line in (
            ('passwd', f'{USER}:*:{NUMBER}:{NUMBER}::{directory}:/bin/sh\n'),
            ('group', f'{USER}:*:{NUMBER}:\n'),
        ):
            text = pathlib.Path('/etc', name).read_text().rstrip('\n')
            (self.etc / name).write_text(f'{text}\n{line}')
        self.rules = self.etc / 'sudoers.d'
        self.rules.mkdir(mode=0o755)

    def allow(self) -> None:
        path = self.rules / USER
        path.write_text(rule(self.config))
        path.chmod(0o440)

    def doctor(self, *prefix: str) -> dict[str, tuple[str, str]]:
        """:returns: verdict and finding by subject"""
        scratch = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        scratch.chmod(0o755)
        command = (
            f'{" ".join(prefix)} {BIN}/os-acc --config-file {self.config} '
            'doctor --json'
        )
        script = [
            'set -eu',
            *opening(scratch),
            *(
                f'mount --bind {self.etc}/{name} /etc/{name}'
                for name in ('passwd', 'group', 'sudoers.d')
            ),
            'cd /',
            f'exec {command}',
        ]
        done = subprocess.run(
            [
                *('unshare', '--mount', '--propagation', 'private'),
                *('sh', '-c', '\n'.join(script)),
            ],
            env={'PATH': os.defpath, 'HOME': '/', 'PYTHONWARNINGS': 'ignore'},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        try:
            found = json.loads(done.stdout)['findings']
        except ValueError:
            pytest.fail(f'{done}')
        return {
            each['subject']: (each['verdict'], each['finding'])
            for each in found
        }


@pytest.fixture
def host() -> Iterator[Host]:
    if os.geteuid() != 0:
        pytest.skip('only root can make a mount namespace with a user')
    if shutil.which('sudo') is None:
        pytest.skip('sudo is not installed')
    # The directories above tmp_path keep other users than root out.
    directory = pathlib.Path(tempfile.mkdtemp(prefix='os-acc-doctor-'))
    directory.chmod(0o755)
    yield Host(directory)
    shutil.rmtree(directory)


def root_sees_all() -> bool:
    """Whether this host lets root read which files are open."""
    for link in glob.glob('/proc/[0-9]*/fd/*'):
        try:
            os.readlink(link)
        except PermissionError:
            return False
        except OSError:
            pass  # it has been closed
    return True


def test_a_user_with_the_documented_rule(host):
    host.allow()
    assert host.doctor()[f'privsep daemon of user {USER}'] == (
        'ok',
        'this user can start it, and it is root',
    )
    found = host.doctor(
        *('setpriv', '--reuid', USER, '--regid', USER, '--init-groups')
    )
    verdict, text = found['privsep daemon']
    if root_sees_all():
        assert (verdict, text) == (
            'ok',
            'it starts, and has the capabilities that it needs',
        )
    else:
        # Such as on a machine that hides the open files of process 1.
        assert verdict == 'error'
        assert 'every plug will fail' in text
        assert '/fd/' in text
    assert f'privsep daemon of user {USER}' not in found
    # The daemon reads the same entry of device_spec.
    assert 'privsep daemon: device_spec' not in found
    assert 'record of the privsep daemon' not in found


def test_a_user_without_a_rule(host):
    verdict, finding = host.doctor()[f'privsep daemon of user {USER}']
    assert verdict == 'error'
    assert f'privsep-helper --config-file {host.config}' in finding
