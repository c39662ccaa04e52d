# SPDX-License-Identifier: Apache-2.0

"""Fixtures of the benchmarks, and the table at the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import gc
import importlib.util
import os
import pathlib
import statistics
import time
from typing import Any
from typing import NamedTuple

from oslo_config import cfg
import pytest

import os_acc
from os_acc import loader

CONF = cfg.CONF

if 'os_acc_lab=1' not in pathlib.Path('/proc/cmdline').read_text().split():
    collect_ignore = ['lab']
else:
    collect_ignore = []
# The benchmark of Cyborg runs in another environment: see README.rst.
if importlib.util.find_spec('cyborg') is None:
    collect_ignore.append('test_cyborg.py')
# So does that of Nova's compute driver.
if importlib.util.find_spec('placement') is None:
    collect_ignore.append('test_nova_spawn.py')
# And that of the Kubernetes driver.
if importlib.util.find_spec('os_acc_dra') is None:
    collect_ignore.append('test_dra.py')
# With a container runtime, it must not use the directories of this host.
if not os.path.ismount('/var/lib/os-acc-root'):
    collect_ignore.append('test_dra_container.py')


class Aim(NamedTuple):
    """The aim of one benchmark: a line of the table.

    :ivar test: the name of the test
    :ivar ratio: the maximum of os-acc's time divided by the peer's time
    :ivar seconds: the maximum of os-acc's time, in seconds
    """

    subject: str
    test: str
    ratio: float | None = None
    seconds: float | None = None


AIMS = (
    Aim('plug, unplug / TaskFlow', 'test_plug[rows=0]', 0.35),
    Aim('  driver saves / TaskFlow', 'test_plug[saving]'),
    Aim('  5000 rows / 0 rows', 'test_plug[rows=5000]', 1.2),
    Aim('plug alone / TaskFlow', 'test_plug_alone', 0.35),
    Aim('  / 8 saves', 'test_plug_commits', 3.0),
    Aim('  events / without', 'test_events', 1.1),
    Aim('plug, undone / TaskFlow', 'test_rollback[rows=0]', 0.35),
    Aim('  driver saves / TaskFlow', 'test_rollback[saving]'),
    Aim('  5000 rows / 0 rows', 'test_rollback[rows=5000]', 1.2),
    Aim('plug 8, saving / 8 saves', 'test_commits', 3.0),
    Aim('10,000 VANs', 'test_read[vans]', seconds=0.5),
    Aim('  handles', 'test_read[handles]'),
    Aim('import / os_vif', 'test_import[os_acc]', 1.1),
    Aim('van list / its libraries', 'test_command', 1.2),
    Aim('XML of 100 VANs / Nova', 'test_xml', 1.0),
    Aim('8 x 200 ms / TaskFlow', 'test_parallel', seconds=0.4),
    Aim('64 PFs, 4032 VFs / lspci', 'test_discovery[vfs]', 0.2),
    Aim('4096 functions / lspci', 'test_discovery[plain]', 0.5),
    Aim('  4096 / 512', 'test_growth[512]', 8.8),
    Aim('  4096 / 1024', 'test_growth[1024]', 4.4),
    Aim('  4096 / 2048', 'test_growth[2048]', 2.2),
    Aim('driver cyborg / without', 'test_time', 1.05),
    Aim('spawn / Nova alone', 'test_spawn'),
    Aim('DRA claim / gRPC alone', 'test_claim'),
    Aim('  prepare / ctr run', 'test_prepare'),
    Aim('DRA slice / PUT alone', 'test_slices'),
    Aim('VF / sysfs alone', 'test_vf', 1.5),
    Aim('  made before / sysfs', 'test_vf_from_nothing', 1.5),
    Aim('live plug / libvirt', 'test_live_plug', 1.15),
    Aim('program a port / ioctl', 'test_programming'),
)


class Figures(NamedTuple):
    """The medians of os-acc's seconds, the peer's seconds and the ratio."""

    own: float
    peer: float
    ratio: float


_FIGURES = pytest.StashKey[dict[str, Figures]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = {}


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the measured figures beside the aims."""
    done = config.stash[_FIGURES]
    if not done:
        return
    terminalreporter.section('os-acc beside its peers: medians, in ms')
    terminalreporter.line(
        f'{"":26}{"os-acc":>10}{"peer":>10}{"ratio":>8}  aim'
    )
    for aim in AIMS:
        if aim.test in done:
            figures = done[aim.test]
            wanted = ''
            if aim.ratio is not None:
                wanted = f'<= {aim.ratio}'
            if aim.seconds is not None:
                wanted = f'<= {aim.seconds * 1000:g} ms'
            terminalreporter.line(
                f'{aim.subject:26}{figures.own * 1000:10.2f}'
                f'{figures.peer * 1000:10.2f}{figures.ratio:8.3f}  {wanted}'
            )


@pytest.fixture
def take_turns(
    benchmark: Any, request: pytest.FixtureRequest
) -> Callable[..., None]:
    """A function that measures an act, in turns with its peer.

    Both run alternately, so another load on the machine slows down both. The
    ratio is the median of the ratios of the rounds.
    """

    def do(
        act: Callable[[], Any],
        peer: Callable[[], Any],
        rounds: int,
        warmup_rounds: int = 2,
        before_peer: Callable[[], Any] = lambda: None,
        after_peer: Callable[[], Any] = lambda: None,
    ) -> None:
        peer_times = []

        def setup() -> None:
            before_peer()
            gc.collect()
            start = time.perf_counter()
            peer()
            peer_times.append(time.perf_counter() - start)
            after_peer()
            # Neither side pays for the garbage of the other.
            gc.collect()

        benchmark.pedantic(
            act, setup=setup, rounds=rounds, warmup_rounds=warmup_rounds
        )
        if benchmark.stats is None:
            return
        times = benchmark.stats.stats.data
        peer_times = peer_times[-len(times) :]
        ratios = [
            own / other for own, other in zip(times, peer_times, strict=True)
        ]
        figures = Figures(
            *(statistics.median(data) for data in (times, peer_times, ratios))
        )
        benchmark.extra_info |= {
            'peer_median': figures.peer,
            'peer_min': min(peer_times),
            'ratio': figures.ratio,
        }
        request.config.stash[_FIGURES][request.node.name] = figures

    return do


@pytest.fixture
def disk(tmp_path: pathlib.Path, benchmark: Any) -> pathlib.Path:
    """A directory on a real disk, because a commit in memory costs nothing.

    The time of an fsync on it is stored with the figures.
    """
    kind = _file_system(tmp_path)
    if kind in ('tmpfs', 'ramfs'):
        pytest.fail(
            f'{tmp_path} is on {kind}: give --basetemp=a disk directory'
        )
    benchmark.extra_info['file_system'] = kind
    benchmark.extra_info['fsync_ms'] = _fsync_ms(tmp_path)
    return tmp_path


@pytest.fixture
def initialize(
    disk: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Callable[[], None]]]:
    """A function that initializes os-acc with a state path of its own.

    Its parameters: the state path, and the drivers and plugins in place of
    the installed ones. It returns a function that puts that os-acc back in
    place when another was made after it.
    """
    made = []

    def do(
        state_path: pathlib.Path = disk,
        extensions: loader.Extensions | None = None,
    ) -> Callable[[], None]:
        if extensions is not None:
            monkeypatch.setattr(loader, 'load_all', lambda: extensions)
        CONF.set_override('state_path', str(state_path), group='os_acc')
        monkeypatch.setattr(os_acc, '_host', None)
        os_acc.initialize()
        attacher = os_acc._host
        made.append(attacher)
        return lambda: monkeypatch.setattr(os_acc, '_host', attacher)

    CONF.set_override('plugin', 'noop', group='os_acc')
    yield do
    for attacher in made:
        attacher.journal.close()
    CONF.clear_override('state_path', group='os_acc')
    CONF.clear_override('plugin', group='os_acc')


def _file_system(path: pathlib.Path) -> str:
    """Return the type of the file system that has a path."""
    best = ('', 'unknown')
    for line in pathlib.Path('/proc/self/mountinfo').read_text().splitlines():
        mount, _, source = line.partition(' - ')
        point, kind = mount.split()[4], source.split()[0]
        if path.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _fsync_ms(directory: pathlib.Path) -> float:
    """Measure the time to append 4 KiB to a file and fsync it (median)."""
    times = []
    with open(directory / 'fsync', 'wb', buffering=0) as file:
        for _ in range(50):
            file.write(bytes(4096))
            start = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1000, 3)
