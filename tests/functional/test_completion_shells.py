# SPDX-License-Identifier: Apache-2.0

"""The printed completion in a real bash, zsh and fish.

For bash and zsh, the test types a line and the key Tab on a terminal. Fish
has a command for that.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest

from os_acc.cli import completion as completion_scripts
from os_acc.state import instance_names

SECONDS = 200
SHELLS = list(completion_scripts.SCRIPTS)
ADDRESSES = ('0000:3b:00.0', '0000:3b:00.1', '0000:af:00.0')
# What each instance's only VAN has as its UUID.
VANS = {
    name: instance_names.request_uuid(instance_names.instance_uuid(name), 0)
    for name in ('web-1', 'web-2')
}

# The commands that begin an interactive session without the user's files.
_INTERACTIVE = {
    'bash': ['bash', '--norc', '--noprofile', '-i'],
    'zsh': ['zsh', '-f', '-i'],
}
_SETUP = {
    'bash': "bind 'set show-all-if-ambiguous on'; "
    "bind 'set enable-bracketed-paste off'",
    'zsh': 'unset zle_bracketed_paste; setopt no_beep; '
    'autoload -Uz compinit; compinit -u -D; bindkey "^I" complete-word',
}
_CLEAR_LINE = b'\x15'  # Ctrl-U
_ESCAPE = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')


class Session:
    """An interactive shell on a terminal of 300 columns, which never wrap."""

    def __init__(
        self, shell: str, script: pathlib.Path, directory: str
    ) -> None:
        self._terminal, child = pty.openpty()
        termios.tcsetwinsize(child, (50, 300))
        self._process = subprocess.Popen(
            _INTERACTIVE[shell],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            env=environment(directory),
        )
        os.close(child)
        # The echo of this line does not contain the whole word.
        self.type(
            f"PS1='> '; {_SETUP[shell]}; source {script}; echo RE''ADY\n"
        )
        self.wait_for('READY')

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def complete(self, line: str, *expected: str) -> str:
        """Type a line and Tab, wait for texts, and remove the line.

        :returns: what the shell has shown since
        """
        self.type(f'{line}\t')
        shown = self.wait_for(*expected)
        os.write(self._terminal, _CLEAR_LINE)
        return shown

    def wait_for(self, *expected: str) -> str:
        shown = ''
        end = time.monotonic() + SECONDS
        while not all(each in shown for each in expected):
            left = end - time.monotonic()
            assert left > 0, f'{expected} not in {shown!r}'
            if select.select([self._terminal], [], [], min(left, 1))[0]:
                text = os.read(self._terminal, 65536).decode(errors='replace')
                shown += _ESCAPE.sub('', text)
        return shown

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._terminal)


def environment(directory: str) -> dict[str, str]:
    return {
        'PATH': f'{directory}:/usr/bin:/bin',
        'HOME': directory,
        'TERM': 'dumb',
        'LC_ALL': 'C.UTF-8',
    }


@pytest.fixture(scope='module')
def directory(tmp_path_factory) -> pathlib.Path:
    """A directory with os-acc, a configuration, a journal and the scripts."""
    made = tmp_path_factory.mktemp('completion')
    config = made / 'os-acc.conf'
    config.write_text(
        f'[os_acc]\nplugin = noop\nstate_path = {made}/state\n'
        '[os_acc_fake]\ndevices = nic0:pci:4, gpu0:mdev:1\ndiscover = True\n'
    )
    tool = made / 'os-acc'
    tool.symlink_to(pathlib.Path(sys.executable).with_name('os-acc'))
    for name in VANS:
        subprocess.run(
            [
                *(tool, '--config-file', config, 'plug', name),
                *('--resource-class', 'CUSTOM_FAKE_PCI'),
            ],
            check=True,
            timeout=SECONDS,
        )
    for shell in SHELLS:
        with open(made / f'script.{shell}', 'wb') as file:
            subprocess.run(
                [tool, 'complete', shell],
                stdout=file,
                check=True,
                timeout=SECONDS,
            )
    # PCI addresses need PCI devices. A command with fixed candidates will do.
    (made / 'fixed').mkdir()
    fixed = made / 'fixed/os-acc'
    fixed.write_text(
        '#!/bin/sh\n[ "$*" = "complete words" ] || exit 1\n'
        "word=$(tail -n 1)\nprintf '%s\\ta device\\n' "
        f'{" ".join(ADDRESSES)} | grep -e "^$word"\n'
    )
    fixed.chmod(0o755)
    return made


@pytest.fixture
def start(directory) -> Iterator[object]:
    """Start an interactive session of a shell."""
    with contextlib.ExitStack() as stack:

        def start(shell: str, place: pathlib.Path) -> Session:
            need(shell)
            made = Session(shell, directory / f'script.{shell}', str(place))
            stack.callback(made.close)
            return made

        yield start


def need(shell: str) -> None:
    """Skip the test without the shell: CI has all, and fails on a skip."""
    if shutil.which(shell) is None:
        pytest.skip(f'{shell} is not installed')


@pytest.mark.parametrize('shell', list(_INTERACTIVE))
def test_what_is_in_the_journal_and_on_the_host(start, directory, shell):
    session = start(shell, directory)
    line = f'os-acc --config-file {directory}/os-acc.conf'
    session.complete('os-acc van fo', 'os-acc van forget ')
    shown = session.complete(f'{line} van show ', *VANS.values())
    assert ('plugged, nic0, web-2' in shown) is (shell == 'zsh')
    session.complete(
        f'{line} van show {VANS["web-1"][:6]}', f'show {VANS["web-1"]} '
    )
    session.complete(f'{line} device show g', 'show gpu0 ')


@pytest.mark.parametrize('shell', list(_INTERACTIVE))
def test_addresses_and_files(start, directory, shell):
    session = start(shell, directory / 'fixed')
    session.complete('os-acc device show 0000:af', '0000:af:00.0 ')
    # Where several fit, zsh inserts what they share, and lists them only if
    # that is there already.
    session.complete('os-acc device show 0000:3', ' 0000:3b:00.')
    session.complete('os-acc device show 0000:3b:00.', '00.0', '00.1')
    for option in ('--config-file ', '--config-file='):
        session.complete(
            f'os-acc {option}{directory}/os-acc.c', f'{directory}/os-acc.conf '
        )


def fish(place: pathlib.Path, directory: pathlib.Path, line: str) -> list[str]:
    """What fish shows for a line and Tab: candidates, each with its text."""
    done = subprocess.run(
        [
            'fish',
            '--no-config',
            '--command',
            f'source {directory}/script.fish; complete --do-complete "{line}"',
        ],
        env=environment(str(place)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, '')
    return sorted(done.stdout.splitlines())


def test_fish(directory):
    need('fish')
    line = f'os-acc --config-file {directory}/os-acc.conf'
    assert fish(directory, directory, f'{line} van show ') == sorted(
        f'{van}\tplugged, nic0, {name}' for name, van in VANS.items()
    )
    assert fish(directory, directory, f'{line} device show g') == [
        'gpu0\tCUSTOM_FAKE_MDEV, 1 of 1 free'
    ]
    assert fish(
        directory / 'fixed', directory, 'os-acc device show 0000:3'
    ) == [f'{each}\ta device' for each in ADDRESSES[:2]]
    for option in ('--config-file ', '--config-file='):
        (found,) = fish(
            directory / 'fixed',
            directory,
            f'os-acc {option}{directory}/os-acc.c',
        )
        assert found.endswith(f'{directory}/os-acc.conf')
