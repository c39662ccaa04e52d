# SPDX-License-Identifier: Apache-2.0

"""Runs functional tests in Nova's own framework, with os_acc.LibvirtDriver.

Usage: python tests/functional_nova/nova_tests.py [REGULAR_EXPRESSION...]

These are tests of Nova, in the installed package nova, and ours, in the
directory operations. They run with stestr, in both of Nova's concurrency
modes: native threads and eventlet. With regular expressions, only the tests
that match one of them run. Without, all of ours run, and those of Nova that
TESTS selects. If the environment variable OS_ACC_NOVA_TESTS is few, each test
runs in one mode: those of ours that OURS_FEW selects with native threads, and
those of Nova that FEW selects with eventlet.

With the environment variable OS_ACC_NOVA_UNCHANGED=1, Nova's own tests run
with Nova's own driver, for a comparison, and ours do not run.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import nova

#: Nova's tests with accelerators, and those of the libvirt driver that have to
#: do with devices, or with a guest that is defined again. The tests of SR-IOV
#: network ports (SRIOV, VDPA, RemoteManaged) also pass, and would double the
#: time.
TESTS = (
    r'Accel|TestBug2140631Cyborg|functional\.libvirt\.test_'
    r'(vgpu|pci_in_placement|pci_sriov_servers\.\w*PCI|live_migration|rescue)'
)
#: Those of them that start guests with mdevs, or rescue guests, by the libvirt
#: driver. The others use Nova's fake driver or Nova's own PCI devices.
FEW = r'functional\.libvirt\.test_(vgpu|rescue)'
#: Those of ours that do not move a server, and two that do: a cold and a live
#: move. Each move takes about a minute.
OURS_FEW = r'^(?!.*_moves\.)|_moves\.\w+\.test_migrate$'
#: Nova's tests that pass with Nova's driver and fail with that of os-acc, by
#: a regular expression, with the reason. Any other failure fails the run.
KNOWN: dict[str, str] = {
    r'libvirt\.test_(machine_type|stateless_firmware)\.': (
        'The test replaces _get_guest_config() of the base class by a '
        'function that calls the bound method of the driver, which calls that '
        'of the base class: an endless recursion with any subclass'
    ),
}
# By the value of OS_NOVA_DISABLE_EVENTLET_PATCHING.
MODES = {'1': 'native threads', '0': 'eventlet'}
#: The time limit of each test. On a busy machine they take up to 60 s.
TEST_SECONDS = 400
HERE = pathlib.Path(__file__).parent
NOVA_S, OURS = './nova/tests/functional', './operations'


def furnish(directory: pathlib.Path) -> None:
    """Make a directory look like Nova's source tree, as its tests expect it.

    The tests read etc/nova/api-paste.ini beside the package.
    """
    package = pathlib.Path(nova.__file__).parent
    (directory / 'nova').symlink_to(package)
    (directory / 'etc').mkdir()
    (directory / 'etc/nova').symlink_to(pathlib.Path(sys.prefix) / 'etc/nova')
    (directory / 'operations').symlink_to(HERE / 'operations')


def environment(
    directory: pathlib.Path, path: str, mode: str
) -> dict[str, str]:
    made = {**os.environ, 'OS_NOVA_DISABLE_EVENTLET_PATCHING': mode}
    made.setdefault('OS_TEST_TIMEOUT', str(TEST_SECONDS))
    # The directory above has the modules kernel and nova_cell_lock.
    search = [str(directory), str(HERE.parent)]
    if path == NOVA_S and not unchanged():
        search.insert(0, str(HERE / 'switch'))
    made['PYTHONPATH'] = os.pathsep.join(search)
    return made


def unchanged() -> bool:
    return os.environ.get('OS_ACC_NOVA_UNCHANGED') == '1'


def stestr(
    path: str,
    directory: pathlib.Path,
    mode: str,
    *args: str,
    quiet: bool = False,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, '-m', 'stestr'),
            *('--test-path', path),
            *('--top-dir', '.'),
            *args,
        ],
        cwd=directory,
        env=environment(directory, path, mode),
        stdout=subprocess.PIPE if quiet else None,
        text=True,
        check=False,
    )


def run(path: str, tests: str, mode: str) -> bool:
    """Run the tests below a path in one mode.

    :returns: whether all of them passed, but for KNOWN
    """
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        furnish(directory)
        print(f'=== {MODES[mode]}: {path}: {tests}', flush=True)
        start = time.monotonic()
        # Two workers: the tests of more at once time out on a small machine.
        args = ('run', '--concurrency', '2', tests)
        done = stestr(path, directory, mode, *args)
        print(f'=== {time.monotonic() - start:.0f} s', flush=True)
        if done.returncode == 0:
            return True
        if path == NOVA_S:
            # Nova's tests wait 10 s at most, which a busy machine exceeds.
            print('=== the failed tests again, one by one', flush=True)
            again = ('run', '--failing', '--serial')
            if stestr(path, directory, mode, *again).returncode == 0:
                return True
        listed = stestr(path, directory, mode, 'failing', '--list', quiet=True)
        failed = listed.stdout.split()
        unknown = [each for each in failed if not _is_known(each)]
        for each in unknown:
            print(f'=== FAILED: {each}')
        return bool(failed) and not unknown


def _is_known(test: str) -> bool:
    for pattern, reason in KNOWN.items():
        if not unchanged() and re.search(pattern, test):
            print(f'=== known: {test}: {reason}')
            return True
    return False


def main(args: Sequence[str]) -> int:
    few = os.environ.get('OS_ACC_NOVA_TESTS') == 'few'
    passed = []
    for mode in MODES:
        selected = '|'.join(args) or (FEW if few else TESTS)
        if not few or MODES[mode] == 'eventlet':
            passed.append(run(NOVA_S, selected, mode))
        if not unchanged() and not (few and MODES[mode] == 'eventlet'):
            selected = '|'.join(args) or (OURS_FEW if few else '.')
            passed.append(run(OURS, selected, mode))
    return 0 if all(passed) else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
