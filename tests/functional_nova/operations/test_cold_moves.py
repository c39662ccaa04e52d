# SPDX-License-Identifier: Apache-2.0

"""Resize and cold migration of servers with accelerators, without Cyborg."""

from __future__ import annotations

from typing import Any

import fixtures
from nova.compute import rpcapi
from nova.compute import task_states

from operations import moves
from os_acc import exception
from os_acc import objects


class TestColdMoves(moves.MovesTest):
    def test_migrate(self) -> None:
        """Revert, migrate again, confirm, hard reboot, delete."""
        server = self.boot()
        self.assert_runs(server, 'compute1')
        before = self.of('compute1', server)
        self._migrate_server(server)
        self.assertEqual([['outgoing'], ['plugged']], self.states(server))
        self.assertEqual([1, 1], self.used())
        self._revert_resize(server)
        self.assert_runs(server, 'compute1')
        self.assertEqual(before, self.of('compute1', server))
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assert_runs(server, 'compute2')
        self.reboot(server)
        self.assert_runs(server, 'compute2')
        self._delete_server(server)
        self.assert_nothing_left()

    def test_resize_up(self) -> None:
        server = self.boot()
        self._resize_server(server, self.flavor(2))
        self.assertEqual([['outgoing'], ['plugged'] * 2], self.states(server))
        self.assertEqual([1, 2], self.used())
        self._confirm_resize(server)
        self.assert_runs(server, 'compute2', 2)

    def test_resize_to_none_and_back(self) -> None:
        server = self.boot()
        before = self.of('compute1', server)
        none = self.flavor(0)
        self._resize_server(server, none)
        self.assertEqual([['outgoing'], []], self.states(server))
        self.assertEqual([1, 0], self.used())
        self._revert_resize(server)
        self.assert_runs(server, 'compute1')
        self.assertEqual(before, self.of('compute1', server))
        self._resize_server(server, none)
        self._confirm_resize(server)
        self.assert_runs(server, 'compute2', 0)
        self.assert_nothing_left()

    def test_resize_on_the_same_host(self) -> None:
        # Nova's driver undefines a guest that is not on the host of this
        # option. The hosts of the test share it.
        self.flags(allow_resize_to_same_host=True, host='compute1')
        service = self.admin_api.get_services(
            host='compute2', binary='nova-compute'
        )[0]['id']
        self.admin_api.put_service(service, {'status': 'disabled'})
        server = self.boot()
        two = self.flavor(2)
        self._resize_server(server, two)
        self.assertEqual([['plugged'] * 2, []], self.states(server))
        self.assertEqual([3, 0], self.used())
        self._revert_resize(server)
        self.assert_runs(server, 'compute1')
        self._resize_server(server, two)
        self._confirm_resize(server)
        self.assert_runs(server, 'compute1', 2)

    def test_the_source_fails(self) -> None:
        """Before the guest is stopped, and after."""
        server = self.boot()
        busy = exception.MigrationConflict(
            instance=server['id'], reason='the card burns'
        )
        with self.fails('os_acc.migration.hand_over', busy):
            self.act(server, 'migrate')
            self.wait_for('compute.exception')
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None, 'status': 'ACTIVE'}
        )
        self.assertIn('the card burns', self.faults(server)[-1])
        self.assert_runs(server, 'compute1')
        copy = OSError('the disk is full')
        with self.fails(
            'nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off',
            copy,
        ):
            self.act(server, 'migrate')
            self._wait_for_state_change(server, 'ERROR')
        self.reboot(server)
        self.assert_runs(server, 'compute1')

    def test_the_target_fails(self) -> None:
        """The source releases its device, and a hard reboot plugs here."""
        server = self.boot()
        gone = exception.DeviceNotFound(wanted='a VF', reason='it fell out')
        with self.fails('os_acc.plug', gone):
            self.act(server, 'migrate')
            self._wait_for_state_change(server, 'ERROR')
        self.assertEqual('compute2', self.host_of(server))
        self.assertIn('it fell out', self.faults(server)[-1])
        self.assertEqual([['outgoing'], []], self.states(server))
        # Nova has deleted the allocation of the source.
        self.assertEqual([0, 1], self.used())
        self._run_periodics()
        self.assert_released('compute1')
        self.reboot(server)
        self.assert_runs(server, 'compute2')

    def test_the_confirmation_fails(self) -> None:
        server = self.boot()
        self._migrate_server(server)
        (van,) = self.vans('compute1', server)
        pf = objects.PCIHandle(address=van.handle.address)
        failure = exception.DeviceBusy(device=pf.address, holder='qemu')
        with self.fails('os_acc.migration.finish', failure):
            self.act(server, 'confirmResize')
            self._wait_for_state_change(server, 'ERROR')
        self.assertIn('qemu', self.faults(server)[-1])
        self.assertEqual([0, 1], self.used())
        self._run_periodics()
        self.reboot(server)
        self.assert_runs(server, 'compute2')

    def test_both_computes_restart_before_the_target_begins(self) -> None:
        server = self.boot()
        messages: list[Any] = []
        with fixtures.MonkeyPatch(
            'nova.compute.rpcapi.ComputeAPI.finish_resize',
            lambda api, *args: messages.append(args),
        ):
            self.act(server, 'migrate')
            self._wait_for_server_parameter(
                server, {'OS-EXT-STS:task_state': task_states.RESIZE_MIGRATED}
            )
        for host in self.COMPUTES:
            self.restart(host)
        self.assertEqual([['outgoing'], []], self.states(server))
        rpcapi.ComputeAPI().finish_resize(*messages[0])
        self._wait_for_state_change(server, 'VERIFY_RESIZE')
        self.assertEqual([['outgoing'], ['plugged']], self.states(server))
        self._confirm_resize(server)
        self.assert_runs(server, 'compute2')

    def test_the_source_restarts_before_the_instance_is_the_targets(
        self,
    ) -> None:
        server = self.boot()
        before = self.of('compute1', server)
        self.kill_source(server)
        self.assertEqual([['outgoing'], []], self.states(server))
        self.restart('compute1')
        self.assertEqual([['plugged'], []], self.states(server))
        # Nova's own revert has failed: see MovingDriver.
        self.reboot(server)
        self.assert_runs(server, 'compute1')
        self.assertEqual(before, self.of('compute1', server))
