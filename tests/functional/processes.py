# SPDX-License-Identifier: Apache-2.0

"""Child processes of the tests, each of which uses os-acc."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import json
import os
import pathlib
import signal
import tempfile
from typing import Any

import os_acc

# Imported before the fork, so that a child starts in milliseconds.
from os_acc import host as _host  # noqa: F401
from os_acc import loader
from os_acc import objects
from os_acc.privileged.fpga import command as _programming  # noqa: F401
from os_acc.privileged.fpga import dfl as _dfl  # noqa: F401
from os_acc.privileged.fpga import reenumeration as _reenumeration  # noqa: F401
from os_acc.testing.children import run as run
from os_acc.testing.children import start as start
from os_acc.testing.children import wait as wait

objects.register_all()
# Imports all drivers and plugins.
loader.load_all()


def configure(state_path: str, **fake_options: Any) -> None:
    """Configure this process: the fake driver and the libvirt plugin."""
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    conf.set_override('state_path', state_path, 'os_acc')
    # One VAN at a time, so that the boundaries always have the same order.
    conf.set_override('max_workers', 1, 'os_acc')
    from os_acc.kinds.fake.driver.driver import FakeDriver

    FakeDriver.load('fake')
    for name, value in fake_options.items():
        conf.set_override(name, value, 'os_acc_fake')


class Boundaries:
    """Counts the boundaries between calls, and kills the process at one.

    :param kill_at: the number of the boundary, from 0; None: at none
    """

    def __init__(self, kill_at: int | None) -> None:
        self.names: list[str] = []
        self._kill_at = kill_at

    def cut(self, name: str) -> None:
        if len(self.names) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(name)

    def watch(self, cls: type, label: str, methods: list[str]) -> None:
        """Put a boundary before and after each call of the methods."""
        for method in methods:
            setattr(
                cls, method, self._wrap(getattr(cls, method), label, method)
            )

    def _wrap(
        self, original: Callable[..., Any], label: str, method: str
    ) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.cut(f'before {label}.{method}')
            result = original(*args, **kwargs)
            self.cut(f'after {label}.{method}')
            return result

        return wrapped


def run_watched(
    work: Callable[[], object],
    watched: Iterable[tuple[Any, str, list[str]]],
    kill_at: int | None = None,
    before: Callable[[], object] = lambda: None,
) -> tuple[int, list[str]]:
    """Do work in a new process, and kill it at a boundary.

    :param watched: a module or class, its label, and the functions of it that
        have a boundary before and after each call
    :param kill_at: see Boundaries
    :param before: what the process does first, without boundaries
    :returns: how it ended, and the boundaries that it passed; none if it did
        not end by itself
    """
    with tempfile.TemporaryDirectory() as directory:
        names = pathlib.Path(directory) / 'names'

        def child() -> None:
            before()
            boundaries = Boundaries(kill_at)
            for place, label, methods in watched:
                boundaries.watch(place, label, methods)
            work()
            names.write_text(json.dumps(boundaries.names))

        code = run(child)
        return code, json.loads(names.read_text()) if code == 0 else []
