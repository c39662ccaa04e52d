# SPDX-License-Identifier: Apache-2.0

"""The life of a server with accelerators: every operation of its owner."""

from __future__ import annotations

import guest
from openstack.compute.v2.server import Server
import processes
import pytest
from servers import Servers
from servers import ids
from servers import states
from servers import vans

COUNT = 2


@pytest.fixture
def server(servers: Servers) -> Server:
    made = servers.create(servers.flavor(COUNT))
    expect_plugged(servers, made)
    return made


def expect_plugged(servers: Servers, server: Server) -> set[str]:
    """Check that all services agree on the accelerators of a server.

    :returns: the UUIDs of its VANs
    """
    arqs = servers.arqs(server.id)
    assert [arq['state'] for arq in arqs] == ['Bound'] * COUNT
    found = vans(server)
    assert states(found) == {'plugged'}, found
    assert ids(found) == {arq['uuid'] for arq in arqs}
    handles = {van['handle'] for van in found}
    assert len(handles) == COUNT
    assert servers.allocated(server.id) == COUNT
    return ids(found)


def test_the_guest_runs(servers: Servers, server: Server) -> None:
    processes.wait_until(
        'the guest is up', lambda: guest.UP in servers.console(server)
    )


def test_delete(servers: Servers, server: Server) -> None:
    servers.delete(server)

    assert vans() == []


def test_stop_and_start(servers: Servers, server: Server) -> None:
    before = ids(vans(server))

    servers.demo.compute.stop_server(server)
    servers.wait(server, 'SHUTOFF')
    assert expect_plugged(servers, server) == before

    servers.demo.compute.start_server(server)
    servers.wait(server, 'ACTIVE')
    assert expect_plugged(servers, server) == before


def test_hard_reboot(servers: Servers, server: Server) -> None:
    before = ids(vans(server))

    servers.demo.compute.reboot_server(server, 'HARD')
    servers.wait(server, 'ACTIVE')

    assert expect_plugged(servers, server) == before


def test_rebuild(servers: Servers, server: Server) -> None:
    before = ids(vans(server))
    image = servers.demo.image.find_image(guest.IMAGE)

    servers.demo.compute.rebuild_server(server, image=image.id)
    servers.wait(server, 'ACTIVE')

    # Nova unplugs and plugs the same ARQs again.
    assert expect_plugged(servers, server) == before


def test_shelve_and_unshelve(servers: Servers, server: Server) -> None:
    before = ids(vans(server))

    servers.demo.compute.shelve_server(server)
    servers.wait(server, 'SHELVED_OFFLOADED')
    assert vans() == []
    assert servers.arqs() == []
    assert servers.allocated(server.id) == 0

    servers.demo.compute.unshelve_server(server)
    servers.wait(server, 'ACTIVE')
    # Nova makes new ARQs.
    assert not expect_plugged(servers, server) & before
