# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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


@pytest.fixture(autouse=True)
def without_delays(cloud: clouds.Cloud, servers: Servers) -> Iterator[None]:
    """Afterwards, nova-compute runs without delays, also after a failure."""
    yield
    cloud.compute.kill()
    configuration.set_delays()
    cloud.start_compute()


def restart(cloud: clouds.Cloud, **delays: float) -> None:
    """Start nova-compute again, with steps of os-acc that hang."""
    cloud.compute.stop()
    configuration.set_delays(**delays)
    cloud.start_compute()


def start_after_kill(cloud: clouds.Cloud) -> None:
    configuration.set_delays()
    cloud.start_compute()


def test_in_spawn(cloud: clouds.Cloud, servers: Servers) -> None:
    restart(cloud, prepareVAN=HANGS)
    server = servers.begin(servers.flavor(COUNT))
    processes.wait_until('VANs in preparation', lambda: vans(server))
    assert states(vans(server)) == {'preparing'}

    cloud.compute.kill()
    start_after_kill(cloud)

    # What was half done is undone. Nova does not repeat the build.
    servers.wait(server, 'ERROR')
    assert vans() == []
    servers.delete(server)


def test_in_delete(cloud: clouds.Cloud, servers: Servers) -> None:
    restart(cloud, unprepareVAN=HANGS)
    server = servers.create(servers.flavor(COUNT))
    servers.demo.compute.delete_server(server)
    processes.wait_until(
        'VANs in release',
        lambda: 'unpreparing' in states(vans(server)),
    )

    cloud.compute.kill()
    start_after_kill(cloud)

    # Nova repeats the delete.
    servers.wait_until_gone(server)


def test_beside_a_running_guest(cloud: clouds.Cloud, servers: Servers) -> None:
    server = servers.create(servers.flavor(COUNT))
    before = ids(vans(server))

    cloud.compute.kill()
    start_after_kill(cloud)

    assert ids(vans(server)) == before
    servers.wait(server, 'ACTIVE')
    servers.demo.compute.reboot_server(server, 'HARD')
    servers.wait(server, 'ACTIVE')
    assert ids(vans(server)) == before
    assert states(vans(server)) == {'plugged'}
