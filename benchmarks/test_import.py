# SPDX-License-Identifier: Apache-2.0

"""The time of ``import os_acc``, and of ``os-acc van list``.

The peer of the import is ``import os_vif``. The peer of the command is the
import of the two libraries that it cannot do without. Each is a new process.
The time of a Python that imports nothing is in the group too, as "nothing".
"""

from __future__ import annotations

from collections.abc import Callable
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROUNDS = 25
COMMAND_ROUNDS = 15
STATEMENTS = {
    'os_acc': 'import os_acc',
    'os_vif': 'import os_vif',
    'nothing': 'pass',
    'libraries': 'import cliff.app, oslo_versionedobjects.base',
    # Each process runs in a directory where nothing was plugged.
    'van_list': 'from os_acc.cli import app; '
    'app.main(["--state-path", "none", "van", "list"])',
}


@pytest.mark.benchmark(group='import')
@pytest.mark.parametrize(
    ('name', 'peer'),
    [
        pytest.param('os_acc', 'os_vif', id='os_acc'),
        pytest.param('os_vif', 'os_acc', id='os_vif'),
        pytest.param('nothing', 'os_acc', id='nothing'),
    ],
)
def test_import(
    benchmark: Any,
    take_turns: Callable[..., None],
    tmp_path: pathlib.Path,
    name: str,
    peer: str,
) -> None:
    take_turns(
        lambda: _run(tmp_path, name), lambda: _run(tmp_path, peer), ROUNDS
    )
    benchmark.extra_info |= _modules(tmp_path, name)


@pytest.mark.benchmark(group='command')
def test_command(
    benchmark: Any, take_turns: Callable[..., None], tmp_path: pathlib.Path
) -> None:
    take_turns(
        lambda: _run(tmp_path, 'van_list'),
        lambda: _run(tmp_path, 'libraries'),
        COMMAND_ROUNDS,
    )
    benchmark.extra_info |= _modules(tmp_path, 'van_list')


def _run(directory: pathlib.Path, name: str, *options: str) -> str:
    # Modules are compiled before they are timed; cwd has none to import.
    environ = {**os.environ, 'PYTHONPYCACHEPREFIX': str(directory)}
    environ.pop('PYTHONDONTWRITEBYTECODE', None)
    done = subprocess.run(
        [sys.executable, *options, '-c', STATEMENTS[name]],
        cwd=directory,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stderr


def _modules(directory: pathlib.Path, name: str) -> dict[str, Any]:
    """How many modules it imports, and which of them take longest."""
    modules = []
    for line in _run(directory, name, '-X', 'importtime').splitlines():
        # import time: self [us] | cumulative | imported package
        own, _, rest = line.removeprefix('import time:').partition('|')
        if own.strip().isdigit():
            modules.append((int(own), rest.partition('|')[2].strip()))
    modules.sort(reverse=True)
    return {
        'modules': len(modules),
        'heaviest_us': {module: own for own, module in modules[:5]},
    }
