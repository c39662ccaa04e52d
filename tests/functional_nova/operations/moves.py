# SPDX-License-Identifier: Apache-2.0

"""The base of the tests that move servers between hosts."""

from __future__ import annotations

import time
from typing import Any

import fixtures
from nova import context as nova_context
from nova import objects as nova_objects
from nova.compute import manager
from nova.compute import task_states
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver

import acc_plug_libvirt
from acc_plug_libvirt import attach
from acc_plug_libvirt import detach
from operations import base
from operations import cyborg
import os_acc

CLASS = 'CUSTOM_PCI_8086_4940'
NOTHING: list[Any] = []


def _here() -> str:
    name: str = os_acc.this_host().conf.os_acc.host
    return name


class MovesTest(base.OperationsTest):
    """Each host reports its own PF with 4 VFs.

    The stand-ins for libvirt have no disks to copy, and attach devices to
    running guests.
    """

    HOSTS = ()
    COMPUTES = ('compute1', 'compute2')
    #: What the VFs are bound to while a guest has them.
    VFIO_DRIVER = 'vfio-pci'

    def setUp(self) -> None:
        super().setUp()
        self.flags(resource_classes=['*'], group='os_acc_nova')
        # A busy machine needs it for the VFs of two hosts.
        self.set_os_acc(device_timeout=100.0)
        patch = base.Patch(self)
        every = os_acc.get_devices

        def own() -> list[Any]:
            bus = cyborg.BUSES.get(_here(), ('',))[0]
            return [e for e in every() if e.address.startswith(f'0000:{bus}')]

        patch.setattr(os_acc, 'get_devices', own)
        patch.setattr(
            driver.LibvirtDriver, 'migrate_disk_and_power_off', self._power_off
        )
        self._patch_running_guests(patch)
        self._patch_waiting(patch)
        for host in self.COMPUTES:
            self.add_host(host)
        self.flavor_id = self.flavor(1)

    @staticmethod
    def _power_off(of: Any, context: Any, instance: Any, *args: Any) -> str:
        of._destroy(instance)
        return '{}'

    def _patch_running_guests(self, patch: base.Patch) -> None:
        """Let os-acc's plugin reach the stand-in for libvirt of its host."""

        def domain(uuid: str) -> Any:
            try:
                return self.connections[_here()].lookupByUUIDString(uuid)
            except fakelibvirt.libvirtError:
                return None

        def runs(plugin: Any, info: Any) -> bool:
            found = domain(info.uuid)
            return found is not None and bool(found.isActive())

        def attach_to_guest(libvirt: Any, van: Any, seconds: float) -> None:
            # What is attached already stays so.
            domain(van.instance_uuid).detachDevice(van.guest_config)
            domain(van.instance_uuid).attachDevice(van.guest_config)

        def detach_from_guest(
            libvirt: Any, van: Any, xml: str, *times: Any
        ) -> None:
            if (found := domain(van.instance_uuid)) is not None:
                found.detachDevice(xml)

        patch.setattr(acc_plug_libvirt.LibvirtPlugin, 'runs_guest', runs)
        patch.setattr(attach, 'attach', attach_to_guest)
        patch.setattr(detach, 'detach', detach_from_guest)

    def flavor(self, number: int, **extra_spec: str) -> str:
        """Create a flavor with a number of VFs."""
        if number:
            extra_spec[f'resources:{CLASS}'] = str(number)
        made: str = self._create_flavor(extra_spec=extra_spec)
        return made

    def boot(self, state: str = 'ACTIVE', **kwargs: Any) -> dict[str, Any]:
        return super().boot(state, host='compute1', **kwargs)

    def _patch_waiting(self, patch: base.Patch) -> None:
        """Wait as long as a busy machine needs, where Nova's tests do not."""
        wait = self.notifier.wait_for_versioned_notifications

        def patient(
            event_type: str, n_events: int = 1, timeout: float = 100.0
        ) -> Any:
            return wait(event_type, n_events=n_events, timeout=timeout)

        patch.setattr(
            self.notifier, 'wait_for_versioned_notifications', patient
        )

    def _wait_for_migration_status(
        self, server: dict[str, Any], expected_statuses: list[str]
    ) -> Any:
        return self.wait_for_migration(server, *expected_statuses)

    def migrations(self, server: dict[str, Any]) -> list[Any]:
        """The migrations of a server, the oldest first."""
        found = self.admin_api.api_get('/os-migrations').body['migrations']
        return sorted(
            (each for each in found if each['instance_uuid'] == server['id']),
            key=lambda each: each['id'],
        )

    def wait_for_migration(
        self, server: dict[str, Any], *states: str, after: int = 0
    ) -> Any:
        """Wait until the newest migration of a server has one of the states.

        :param after: how many migrations there were before
        :returns: the migration
        """
        found: list[Any] = []
        for _ in range(200):
            found = self.migrations(server)
            if len(found) > after and found[-1]['status'] in states:
                return found[-1]
            time.sleep(0.5)
        raise AssertionError(f'no migration is {states}: {found}')

    def reboot(self, server: dict[str, Any]) -> None:
        """Hard reboot a server, however long it takes."""
        number = len(self.notified('instance.reboot.end'))
        self.act(server, 'reboot', type='HARD')
        self.wait_for('instance.reboot.end', number + 1)
        self._wait_for_state_change(server, 'ACTIVE')

    def of(self, host: str, server: dict[str, Any]) -> list[tuple[str, str]]:
        """The states and addresses of a server's VANs on a host."""
        return [
            (van.state, van.handle.address) for van in self.vans(host, server)
        ]

    def used(self) -> list[int]:
        """What Placement has allocated of each host's VFs."""
        return [
            sum(
                self._get_provider_usages(uuid).get(CLASS, 0)
                for uuid in self.providers(host).values()
            )
            for host in self.COMPUTES
        ]

    def states(self, server: dict[str, Any]) -> list[list[str]]:
        """The states of a server's VANs on each host."""
        return [
            [state for state, _ in self.of(host, server)]
            for host in self.COMPUTES
        ]

    def assert_has_devices(
        self, server: dict[str, Any], host: str, number: int = 1
    ) -> None:
        """Check that only one host has a server's accelerators.

        The guest has them.
        """
        self.assertEqual(host, self.host_of(server))
        for other in self.COMPUTES:
            if other != host:
                self.assertEqual(NOTHING, self.of(other, server))
        found = self.of(host, server)
        self.assertEqual(['plugged'] * number, [state for state, _ in found])
        guest = self.domain(server, host)
        self.assertTrue(guest.isActive())
        self.assertEqual(number, len(guest._def['devices']['hostdevs']))
        for _, address in found:
            self.assertEqual(self.VFIO_DRIVER, self.kernel.driver_of(address))
            self.assertEqual(self.pf(host)[:-1], address[:-1])

    def assert_runs(
        self, server: dict[str, Any], host: str, number: int = 1
    ) -> None:
        """See assert_has_devices(): they are those of Placement, too."""
        self.assert_has_devices(server, host, number)
        expected = {self.pf(host): {CLASS: number}} if number else {}
        self.assertEqual(expected, self.allocated(server))
        self.assertEqual(
            [number if each == host else 0 for each in self.COMPUTES],
            self.used(),
        )

    def assert_nothing_left(self) -> None:
        for host in self.COMPUTES:
            self.assert_released(host)
        self.assertEqual([0] * len(self.COMPUTES), self.used())

    def fails(self, name: str, error: Exception) -> fixtures.MonkeyPatch:
        """Make a function fail, for a block."""

        def fail(*args: Any, **kwargs: Any) -> None:
            raise error

        return fixtures.MonkeyPatch(name, fail)

    def kill_source(self, server: dict[str, Any]) -> Any:
        """Migrate a server cold until its source has handed over.

        :returns: Nova's Instance, with the task state that a kill leaves
        """
        with fixtures.MockPatchObject(
            manager.ComputeManager,
            '_terminate_volume_connections',
            side_effect=RuntimeError('killed'),
        ):
            self.act(server, 'migrate')
            self._wait_for_state_change(server, 'ERROR')
        instance = self.load(server)
        instance.task_state = task_states.RESIZE_MIGRATING
        instance.save()
        self.assertEqual(['outgoing'], self.states(server)[0])
        return instance

    def load(self, server: dict[str, Any]) -> Any:
        """Nova's Instance of a server, which can be saved."""
        cell = self.cell_mappings['cell1']
        context = nova_context.get_admin_context()
        nova_context.set_target_cell(context, cell)
        return nova_objects.Instance.get_by_uuid(context, server['id'])
