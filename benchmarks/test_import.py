# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The time of ``import os_acc``. The peer is ``import os_vif``.

Each import runs in a new process. The group also has the time of a Python that
imports neither, as "nothing".
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
STATEMENTS = {
    'os_acc': 'import os_acc',
    'os_vif': 'import os_vif',
    'nothing': 'pass',
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


def _run(folder: pathlib.Path, name: str, *options: str) -> str:
    # All modules are compiled, and no module of this folder is imported.
    environ = {**os.environ, 'PYTHONPYCACHEPREFIX': str(folder)}
    environ.pop('PYTHONDONTWRITEBYTECODE', None)
    done = subprocess.run(
        [sys.executable, *options, '-c', STATEMENTS[name]],
        cwd=folder,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stderr


def _modules(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """Return how many modules are imported, and the slowest of them."""
    modules = []
    for line in _run(folder, name, '-X', 'importtime').splitlines():
        # import time: self [us] | cumulative | imported package
        own, _, rest = line.removeprefix('import time:').partition('|')
        if own.strip().isdigit():
            modules.append((int(own), rest.partition('|')[2].strip()))
    modules.sort(reverse=True)
    return {
        'modules': len(modules),
        'heaviest_us': {module: own for own, module in modules[:5]},
    }
