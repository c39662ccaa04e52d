# SPDX-License-Identifier: Apache-2.0

"""A host dies while a server moves, and the server is evacuated."""

from __future__ import annotations

import time
from typing import Any

import fixtures
from nova.compute import task_states
from nova.compute import vm_states

from operations import cyborg
from operations import moves
from operations import test_live_moves
from operations.moves import CLASS


class EvacuatingTest(moves.MovesTest):
    """Hosts that die and come back. A third one can take their servers."""

    COMPUTES = ('compute1', 'compute2', 'compute3')

    def setUp(self) -> None:
        self.useFixture(
            fixtures.MockPatchObject(
                cyborg, 'BUSES', {**cyborg.BUSES, 'compute3': ('21', '22')}
            )
        )
        super().setUp()

    def _forced_down(self, host: str, value: bool) -> None:
        services = self.admin_api.get_services(
            host=host, binary='nova-compute'
        )
        self.admin_api.put_service(services[0]['id'], {'forced_down': value})

    def die(self, host: str) -> None:
        """End nova-compute of a host, and say that the host is down."""
        self.computes[host].stop()
        self._forced_down(host, True)

    def evacuate(self, server: dict[str, Any], host: str) -> None:
        """Evacuate a server to a host, and start it there."""
        body = {'evacuate': {'host': host}}
        self.admin_api.post_server_action(server['id'], body)
        self._wait_for_server_parameter(
            server,
            {
                'OS-EXT-SRV-ATTR:host': host,
                'OS-EXT-STS:task_state': None,
                'status': 'SHUTOFF',
            },
        )
        self._start_server(server)

    def come_back(self, host: str) -> None:
        self.restart(host)
        self._forced_down(host, False)

    def assert_is_at(self, host: str, server: dict[str, Any]) -> None:
        """Check that all others have released it, and delete it.

        Nova keeps the allocations of a move whose host has died.
        """
        self.assert_has_devices(server, host)
        self.assertEqual({CLASS: 1}, self.allocated(server)[self.pf(host)])
        self._delete_server(server)
        for each in self.COMPUTES:
            self.assert_released(each)


class TestColdMoves(EvacuatingTest):
    def test_the_source_dies(self) -> None:
        """It has handed over, and the target knows nothing yet."""
        server = self.boot()
        instance = self.kill_source(server)
        instance.vm_state = vm_states.ACTIVE
        instance.save()
        self.die('compute1')
        self.evacuate(server, 'compute2')
        self.come_back('compute1')
        self.assert_is_at('compute2', server)

    def test_the_target_dies(self) -> None:
        """It is the server's host already, and has begun nothing."""
        server = self.boot()
        with fixtures.MonkeyPatch(
            'nova.compute.rpcapi.ComputeAPI.finish_resize',
            lambda api, *args: None,
        ):
            self.act(server, 'migrate')
            self._wait_for_server_parameter(
                server, {'OS-EXT-STS:task_state': task_states.RESIZE_MIGRATED}
            )
        target = self.host_of(server)
        self.assertEqual(['outgoing'], self.states(server)[0])
        self.die(target)
        # Nova does not evacuate to the source, which still has the domain.
        (last,) = {*self.COMPUTES} - {'compute1', target}
        self.evacuate(server, last)
        self.come_back(target)
        self._run_periodics()
        self.assert_is_at(last, server)


class TestLiveMoves(EvacuatingTest, test_live_moves.LiveMovesTest):
    def begin(self) -> dict[str, Any]:
        """Migrate until both hosts have their part, and no further."""
        server = self.boot()
        self.useFixture(
            fixtures.MockPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.live_migration'
            )
        )
        body = {'host': 'compute2', 'block_migration': 'auto'}
        self.act(server, 'os-migrateLive', **body)
        states = [['outgoing'], ['incoming'], []]
        for _ in range(200):
            if self.states(server) == states:
                break
            time.sleep(0.5)
        self.assertEqual(states, self.states(server))
        return server

    def evacuated(self, host: str) -> dict[str, Any]:
        """Let the source die, move the server to a host, and come back."""
        server = self.begin()
        self.die('compute1')
        self.evacuate(server, host)
        self.come_back('compute1')
        return server

    def test_to_the_target(self) -> None:
        """It is prepared for the server."""
        server = self.evacuated('compute2')
        self.assert_is_at('compute2', server)

    def test_to_a_third_host(self) -> None:
        server = self.evacuated('compute3')
        self._run_periodics()
        self.assert_is_at('compute3', server)
