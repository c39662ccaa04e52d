# SPDX-License-Identifier: Apache-2.0

"""The fixture ``host``: a real journal, real locks, a driver and a plugin.

The driver and the plugin record their calls: see recording.py.
"""

from __future__ import annotations

from collections.abc import Iterator
import gc
import os
import pathlib
import signal
import sys
import tempfile
import threading

import hypothesis
import pages
import pytest
import recording

import os_acc
from os_acc import loader
from os_acc.containers import options as container_opts
from os_acc.kernel import file_system
from os_acc.kernel import sysfs
from os_acc.privileged import context
from os_acc.privileged import notes
from os_acc.privileged import privsep
from os_acc.privileged import root_folder
from os_acc.testing import kernel as kernel_module

# An example that takes long on a busy machine is no failure.
hypothesis.settings.register_profile(
    'os-acc',
    deadline=None,
    # A failure says how to repeat it, also on another machine.
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile('os-acc')

MEMORY = '/dev/shm'
# Bytes that must be free there. All unit tests together need 350 MB.
_NEEDED = 1 << 30


def _has_room(directory: str) -> bool:
    """Whether the tests can write files there and run them as programs."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return (
        os.access(directory, os.W_OK)
        and found.f_bavail * found.f_frsize >= _NEEDED
        and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--write-screens',
        action='store_true',
        help='write the files of tests/unit/screens anew',
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        'markers',
        'shown(page, language, marker): the test runs the code block of the '
        'page that contains the marker. See test_programming_page.py.',
    )
    _keep_in_memory(config)
    if sys.version_info < (3, 12) and config.pluginmanager.hasplugin('_cov'):
        _start_threads_one_by_one()


def _start_threads_one_by_one() -> None:
    """Let Thread.start() return only when the thread is being measured.

    Python 3.11 fails in sys.settrace() if another thread is in it, and the
    audit hook of os_acc.testing lets the threads alternate there: "Cannot
    install a trace function while another trace function is being installed".
    The thread then ends before it has done anything. Python 3.12 has removed
    this error.
    """
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        begun = threading.Event()
        run = thread.run

        def begin() -> None:
            begun.set()
            run()

        thread.run = begin  # type: ignore[method-assign]
        original(thread)
        if not begun.wait(60):
            raise RuntimeError(f'{thread} did not start within 60 s')

    threading.Thread.start = start  # type: ignore[method-assign]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers for each CPU: many tests wait for a deadline."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave the tests of the kit that kill processes to tests/functional."""
    slow = [
        each for each in items if each.get_closest_marker('os_acc_processes')
    ]
    here = pathlib.Path(__file__).parent
    slow = [each for each in slow if here in each.path.parents]
    config.hook.pytest_deselected(items=slow)
    items[:] = [each for each in items if each not in slow]


def pytest_collection_finish() -> None:
    """Let the garbage collector skip the modules and the collected tests.

    They stay until the end, and each full collection would look at them.
    """
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_daemon_is_left() -> Iterator[None]:
    """Check that a test leaves the privileged half as it was."""
    yield
    if (left := context.pctxt.channel) is not None:
        context.pctxt.stop()
    assert left is None
    assert not privsep.runs_here()
    assert context.pctxt.client_mode


@pytest.fixture(autouse=True)
def _no_option_is_left() -> Iterator[None]:
    """Check that the next test does not get an option of this one."""
    yield
    left = _overrides()
    for group, name in left:
        os_acc.CONF.clear_override(name, group)
    assert left == []


def _overrides() -> list[tuple[str, str]]:
    """Group and name of each option of os-acc that a test has set."""
    return [
        (group, name)
        for group, made in os_acc.CONF._groups.items()
        if group.startswith('os_acc')
        for name, option in made._opts.items()
        if 'override' in option
    ]


@pytest.fixture(autouse=True)
def _reads_what_is_shown(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a test with the marker shown reads the block of the page."""
    pages.READ.clear()
    yield
    read = set(pages.READ)
    for mark in request.node.iter_markers('shown'):
        page, language, _ = mark.args
        (text,) = pages.blocks(*mark.args)
        assert (page, language, text) in read, mark


def _keep_in_memory(config: pytest.Config) -> None:
    """Keep the temporary files of the unit tests in memory if possible.

    The tests create about 200,000 small files and commit to hundreds of
    journals, which takes twice the time on a disk. Set TMPDIR to keep them
    elsewhere. Other tests of the same run would use the same directory, so
    this is done only if the run has unit tests alone.
    """
    here = pathlib.Path(__file__).parent
    asked = [config.invocation_params.dir / arg for arg in config.args]
    only = all(path.resolve().is_relative_to(here) for path in asked)
    if only and 'TMPDIR' not in os.environ and _has_room(MEMORY):
        # The environment is for the workers of xdist and other processes.
        os.environ['TMPDIR'] = tempfile.tempdir = MEMORY


@pytest.fixture
def clean(tmp_path, monkeypatch) -> Iterator[None]:
    """os_acc as in a new process, with a state path of its own."""
    monkeypatch.setattr(os_acc, '_host', None)
    # Not the devices of the machine that the tests run on.
    monkeypatch.setattr(sysfs, 'SYS', str(tmp_path / 'sys'))
    # Not the privileged half's directories of this machine, nor a daemon.
    monkeypatch.setattr(root_folder, 'PATH', str(tmp_path / 'os-acc'))
    monkeypatch.setattr(notes, 'FOLDER', str(tmp_path / 'held'))
    monkeypatch.setattr(context, 'start_in_background', lambda: None)
    # The temporary files may be in memory, where no journal should be.
    state, type_of = str(tmp_path / 'state'), file_system.type_of
    monkeypatch.setattr(
        file_system,
        'type_of',
        lambda path: 'ext4' if path == state else type_of(path),
    )
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    conf.set_override('state_path', str(tmp_path / 'state'), 'os_acc')
    conf.set_override('device_spec_dir', str(tmp_path / 'specs'), 'os_acc')
    conf.set_override('lock_timeout', 5.0, 'os_acc')
    yield
    if os_acc._host is not None:
        os_acc._host.close()
    conf.clear_override('plugin', 'os_acc')
    conf.reset()
    for group, name in _overrides():
        conf.clear_override(name, group)


@pytest.fixture
def kernel(clean, tmp_path, monkeypatch) -> kernel_module.Kernel:
    """A tree of files in place of the kernel, without privsep's daemon."""
    made = kernel_module.Kernel(tmp_path / 'host')
    made.install(monkeypatch)
    os_acc.CONF.set_override('release_timeout', 0.2, 'os_acc')
    # A busy machine takes its time; who waits in vain sets less.
    os_acc.CONF.set_override('device_timeout', 60.0, 'os_acc')
    os_acc.CONF.register_opts(container_opts.OPTS, container_opts.GROUP)
    os_acc.CONF.set_override(
        'spec_dir', str(made.root / 'run/cdi'), container_opts.GROUP
    )
    return made


@pytest.fixture
def host(clean, monkeypatch) -> recording.Host:
    made = recording.Host()
    monkeypatch.setattr(loader, 'load_all', made.load)
    os_acc.CONF.set_override('plugin', 'recording', 'os_acc')
    os_acc.initialize()
    return made


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where the tests run in the background: a shell ignores it there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
