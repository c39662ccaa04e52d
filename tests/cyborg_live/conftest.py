# SPDX-License-Identifier: Apache-2.0

"""The cloud that all tests use, and what a failed run shows."""

from __future__ import annotations

from collections.abc import Iterator
import pathlib
import sys

import pytest

# The modules that start the services.
sys.path.append(str(pathlib.Path(__file__).parents[1] / 'openstack'))

import live
import nova_part
import processes
import reporting

#: The logs that a failed run shows, and how many of their last lines.
SHOWN = {
    'cyborg-agent.log': 80,
    'cyborg-agent.out': 30,
    'cyborg-conductor.log': 80,
    'cyborg-api.log': 40,
    'nova-stub.out': 10,
    'glance-api.log': 20,
    'keystone.log': 10,
    'placement.log': 20,
    'rabbitmq.out': 20,
    'mariadb.out': 20,
}
_TIMINGS = pytest.StashKey[list[str]]()


@pytest.fixture(scope='session')
def cloud(pytestconfig: pytest.Config) -> live.Live:
    """Start the cloud. It ends with the process namespace of isolated.sh."""
    made = live.Live()
    pytestconfig.stash[_TIMINGS] = made.timings
    made.start()
    return made


@pytest.fixture(scope='session')
def all_arqs(cloud: live.Live) -> nova_part.Nova:
    return nova_part.Nova()


@pytest.fixture
def nova(
    cloud: live.Live, all_arqs: nova_part.Nova
) -> Iterator[nova_part.Nova]:
    """Does Nova's part. After the test, nothing is left anywhere."""
    before = cloud.kernel.snapshot()
    yield all_arqs
    for instance in {van.instance_uuid for van in live.vans()}:
        live.unplug(instance)
    all_arqs.delete_all()
    expect_nothing_left(all_arqs)
    assert cloud.kernel.snapshot() == before


def expect_nothing_left(nova: nova_part.Nova) -> None:
    """Check that no service has anything left of an instance."""
    assert live.vans() == []
    assert nova.arqs() == []
    assert live.sql('SELECT * FROM attach_handles WHERE in_use') == []
    processes.expect_empty('usages in Placement', nova.usages)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    reporting.note_result(report)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
    exitstatus: int,
    config: pytest.Config,
) -> None:
    timings = config.stash.get(_TIMINGS, [])
    reporting.summarize(terminalreporter, exitstatus, timings, SHOWN)
