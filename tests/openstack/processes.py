# SPDX-License-Identifier: Apache-2.0

"""The processes of the services, and how the tests wait for them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import pathlib
import signal
import subprocess
import time
from typing import TypeVar
import urllib.error
import urllib.request

import layout

#: Seconds that a wait may take. No wait takes more than a twentieth of it on
#: an idle machine with two cores.
DEADLINE = 600.0
T = TypeVar('T')


class Timeout(AssertionError):
    """What was waited for has not come."""


class Ended(AssertionError):
    """A service has ended, or a command has failed."""


def wait_until(
    what: str, condition: Callable[[], T], seconds: float = DEADLINE
) -> T:
    """Wait until a condition is true.

    :param what: names the condition in the error
    :returns: what the condition returned
    :raises Timeout: after the given seconds
    """
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            raise Timeout(f'after {seconds:.0f} s still not: {what}')
        time.sleep(0.2)
    return result


def expect_empty(what: str, look: Callable[[], object]) -> None:
    """Wait until there is nothing left.

    Placement's allocations go a moment after the server.

    :raises AssertionError: with what is left
    """
    try:
        wait_until(f'no {what}', lambda: not look())
    except Timeout as err:
        raise AssertionError(f'{what} are left: {look()}') from err


def run(*command: str, env: Mapping[str, str] | None = None) -> str:
    """Run a command that ends by itself, and return its output.

    :raises Ended: if it failed, with its output
    """
    done = finish(*command, env=env)
    if done.returncode != 0:
        raise Ended(
            f'{" ".join(command)} ended with {done.returncode}:\n'
            f'{done.stdout}\n{done.stderr}'
        )
    return done.stdout


def finish(
    *command: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself, whatever its exit code."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        env=environment(env),
    )


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a service or command."""
    return {**os.environ, 'HOME': str(layout.ROOT), **(extra or {})}


class Service:
    """A process that runs until it is stopped.

    It leads a process group. Its output goes to NAME.out in the directory of
    the logs.

    :param env: environment variables beside those of this process
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | pathlib.Path],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._command = [str(each) for each in command]
        self._environment = environment(env)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> pathlib.Path:
        return layout.LOGS / f'{self.name}.out'

    @property
    def pid(self) -> int:
        """The ID of the process. The service must have been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self.output.open('ab') as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def wait_until(self, what: str, condition: Callable[[], T]) -> T:
        """Wait for a condition, as long as the service runs.

        :raises Ended: if the service ends
        :raises Timeout: see wait_until
        """

        def check() -> T:
            self.check()
            return condition()

        return wait_until(f'{self.name}: {what}', check)

    def wait_for_http(self, url: str) -> None:
        """Wait until the service answers requests."""
        self.wait_until(f'answer of {url}', lambda: _answers(url))

    def check(self) -> None:
        """Check that the service runs.

        :raises Ended: if not
        """
        if self._process is None or self._process.poll() is not None:
            raise Ended(
                f'{self.name} has ended:\n{tail(self.output, lines=30)}'
            )

    def stop(self) -> None:
        """Stop the service by SIGTERM, as systemd does."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the service, with all processes of its group (kill -9)."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        self._process.wait(DEADLINE)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError as err:
        return err.code == 300  # the list of the versions of an API
    except OSError:
        return False


def tail(path: pathlib.Path, lines: int) -> str:
    """Return the last lines of a file; '' if there is no file."""
    try:
        text = path.read_text(errors='replace')
    except FileNotFoundError:
        return ''
    return '\n'.join(text.splitlines()[-lines:])
