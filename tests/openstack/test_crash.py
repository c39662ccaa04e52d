# SPDX-License-Identifier: Apache-2.0

"""nova-compute is killed (kill -9), and starts again."""

from __future__ import annotations

from collections.abc import Iterator

import cloud as clouds
import configuration
import processes
import pytest
from servers import Servers
from servers import ids
from servers import states
from servers import vans

COUNT = 2
#: Seconds for which a step of os-acc hangs: longer than the test takes.
HANGS = 600


class Compute:
    """nova-compute, in which steps of os-acc can hang."""

    def __init__(self, cloud: clouds.Cloud) -> None:
        self._cloud = cloud
        self._hangs = False

    def hang_at(self, step: str) -> None:
        """Start nova-compute again, with a step of os-acc that hangs."""
        self._hangs = True
        self._cloud.compute.stop()
        configuration.set_delays(**{step: HANGS})
        self._cloud.start_compute()

    def crash(self) -> None:
        """Kill nova-compute, and start it so that nothing hangs."""
        self._cloud.compute.kill()
        configuration.set_delays()
        self._cloud.start_compute()
        self._hangs = False

    def end(self) -> None:
        """Let nothing hang, also after a failed test."""
        if self._hangs:
            self.crash()


@pytest.fixture
def compute(cloud: clouds.Cloud, servers: Servers) -> Iterator[Compute]:
    # This ends before the fixture servers, which deletes all servers.
    made = Compute(cloud)
    yield made
    made.end()


def test_in_spawn(compute: Compute, servers: Servers) -> None:
    compute.hang_at('prepareVAN')
    server = servers.begin(servers.flavor(COUNT))
    processes.wait_until('VANs in preparation', lambda: vans(server))
    assert states(vans(server)) == {'preparing'}

    compute.crash()

    # What was half done is undone. Nova does not repeat the build.
    servers.wait(server, 'ERROR')
    assert vans() == []
    servers.delete(server)


def test_in_delete(compute: Compute, servers: Servers) -> None:
    compute.hang_at('unprepareVAN')
    server = servers.create(servers.flavor(COUNT))
    servers.demo.compute.delete_server(server)
    processes.wait_until(
        'VANs in release',
        lambda: 'unpreparing' in states(vans(server)),
    )

    compute.crash()

    # Nova repeats the delete, but in a context without a token, with which it
    # cannot call Cyborg. The compute driver deletes the ARQs.
    servers.wait_until_gone(server)
    assert vans() == []
    assert servers.arqs() == []


def test_beside_a_running_guest(compute: Compute, servers: Servers) -> None:
    server = servers.create(servers.flavor(COUNT))
    before = ids(vans(server))

    compute.crash()

    assert ids(vans(server)) == before
    servers.wait(server, 'ACTIVE')
    servers.demo.compute.reboot_server(server, 'HARD')
    servers.wait(server, 'ACTIVE')
    assert ids(vans(server)) == before
    assert states(vans(server)) == {'plugged'}
