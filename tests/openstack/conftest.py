# SPDX-License-Identifier: Apache-2.0

"""The cloud that all tests use, and what a failed run shows."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
import cloud as clouds
import guest
import processes
import pytest
import reporting
import servers as accelerated

#: The logs that a failed run shows, and how many of their last lines.
SHOWN = {
    'nova-compute.log': 80,
    'nova-compute-2.log': 40,
    'libvirtd-2.log': 10,
    'os-acc-nova-demand.log': 10,
    'os-acc-nova-demand-2.log': 10,
    'nova-conductor.log': 30,
    'nova-scheduler.log': 20,
    'nova-api.log': 20,
    'cyborg-api.log': 30,
    'cyborg-conductor.log': 30,
    'cyborg-agent.log': 20,
    'glance-api.log': 20,
    'keystone.log': 10,
    'placement.log': 10,
    'libvirtd.log': 20,
    'rabbitmq.out': 20,
    'mariadb.out': 20,
}
_TIMINGS = pytest.StashKey[list[str]]()


@pytest.fixture(scope='session')
def cloud(pytestconfig: pytest.Config) -> clouds.Cloud:
    """Start the cloud. It ends with the process namespace of isolated.sh."""
    made = clouds.Cloud()
    pytestconfig.stash[_TIMINGS] = made.timings
    made.start()
    guest.upload(catalog.connect())
    return made


@pytest.fixture(scope='session')
def all_servers(cloud: clouds.Cloud) -> accelerated.Servers:
    return accelerated.Servers()


@pytest.fixture
def servers(
    all_servers: accelerated.Servers,
) -> Iterator[accelerated.Servers]:
    """Makes servers. After the test, no service has anything left of them."""
    yield all_servers
    for each in all_servers.existing():
        all_servers.demo.compute.delete_server(each)
    processes.expect_empty('servers', all_servers.existing)
    processes.expect_empty('VANs in os-acc', accelerated.vans)
    processes.expect_empty('ARQs in Cyborg', all_servers.arqs)
    processes.expect_empty('usages in Placement', all_servers.usages)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    reporting.note_result(report)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
    exitstatus: int,
    config: pytest.Config,
) -> None:
    timings = config.stash.get(_TIMINGS, [])
    reporting.summarize(terminalreporter, exitstatus, timings, SHOWN)
