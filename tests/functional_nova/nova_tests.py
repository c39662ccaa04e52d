# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Runs Nova's own functional tests with os_acc.LibvirtDriver.

Usage: python tests/functional_nova/nova_tests.py [REGULAR_EXPRESSION]

The tests are those in the installed package nova. They run with stestr, in
both of Nova's concurrency modes: native threads and eventlet. With the
environment variable OS_ACC_NOVA_UNCHANGED=1 they run with Nova's own driver,
for a comparison.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

import nova

#: Tests with accelerators, and those of the libvirt driver that have to do
#: with devices, or with a guest that is defined again.
TESTS = (
    r'Accel|TestBug2140631Cyborg|functional\.libvirt\.test_'
    r'(vgpu|pci_in_placement|pci_sriov_servers|live_migration|rescue)'
)
# By the value of OS_NOVA_DISABLE_EVENTLET_PATCHING.
MODES = {'1': 'native threads', '0': 'eventlet'}
SWITCH = pathlib.Path(__file__).parent / 'switch'


def furnish(folder: pathlib.Path) -> None:
    """Make a folder look like Nova's source tree, as its tests expect it.

    The tests read etc/nova/api-paste.ini beside the package.
    """
    package = pathlib.Path(nova.__file__).parent
    (folder / 'nova').symlink_to(package)
    (folder / 'etc').mkdir()
    (folder / 'etc/nova').symlink_to(pathlib.Path(sys.prefix) / 'etc/nova')


def environment(folder: pathlib.Path, mode: str) -> dict[str, str]:
    made = {**os.environ, 'OS_NOVA_DISABLE_EVENTLET_PATCHING': mode}
    path = [str(folder)]
    if os.environ.get('OS_ACC_NOVA_UNCHANGED') != '1':
        path.insert(0, str(SWITCH))
    made['PYTHONPATH'] = os.pathsep.join(path)
    return made


def run(tests: str, mode: str) -> bool:
    """Run the tests in one mode.

    :returns: whether all of them passed
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        furnish(folder)
        print(f'=== {MODES[mode]}: {tests}', flush=True)
        done = subprocess.run(
            [
                *(sys.executable, '-m', 'stestr'),
                *('--test-path', './nova/tests/functional'),
                *('--top-dir', '.'),
                *('run', tests),
            ],
            cwd=folder,
            env=environment(folder, mode),
            check=False,
        )
        return done.returncode == 0


def main() -> int:
    tests = '|'.join(sys.argv[1:]) or TESTS
    passed = [run(tests, mode) for mode in MODES]
    return 0 if all(passed) else 1


if __name__ == '__main__':
    sys.exit(main())
