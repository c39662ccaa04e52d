# SPDX-License-Identifier: Apache-2.0

"""Accelerators without Cyborg: a flavor requests them from Placement."""

from __future__ import annotations

from typing import Any

import fixtures
from nova.virt.libvirt import driver

from operations import base
import os_acc
from os_acc import exception

CLASS = 'CUSTOM_PCI_8086_4940'


class TestFlavor(base.OperationsTest):
    """Each host reports its devices.

    The devices of both hosts are on one generated sysfs, so each reports
    those of both.
    """

    HOSTS = ()
    #: How many VFs each host reports.
    TOTAL = 8

    def setUp(self) -> None:
        super().setUp()
        self.flags(resource_classes=['*'], group='os_acc_nova')
        self.add_host('compute1')
        self.flavor_id = self._create_flavor(
            extra_spec={
                f'resources:{CLASS}': '1',
                'trait:CUSTOM_PCI_VENDOR_8086': 'required',
            }
        )

    def hold(self, server: dict[str, Any], count: int = 1) -> list[Any]:
        """Check that a server has its VFs."""
        vans = self.vans('compute1', server)
        self.assertEqual(['plugged'] * count, [van.state for van in vans])
        for van in vans:
            self.assertEqual(
                'vfio-pci', self.kernel.driver_of(van.handle.address)
            )
        found = self.hostdevs(server)
        self.assertEqual(count, len(found))
        for van, device in zip(vans, found, strict=True):
            self.assertIn(f'ua-acc-{van.uuid}', device)
        return [van.handle.address for van in vans]

    def used(self) -> int:
        return sum(
            self._get_provider_usages(uuid).get(CLASS, 0)
            for uuid in self.providers('compute1').values()
        )

    def test_placement_has_a_provider_for_each_device(self) -> None:
        found = self.providers('compute1')
        self.assertEqual({self.pf('compute1'), self.pf('compute2')}, {*found})
        for uuid in found.values():
            there = self._get_provider_inventory(uuid)
            self.assertEqual({CLASS}, {*there})
            self.assertEqual(4, there[CLASS]['total'])
            self.assertIn(
                'CUSTOM_PCI_VENDOR_8086', self._get_provider_traits(uuid)
            )
        root = self._get_provider_inventory(self.compute_rp_uuids['compute1'])
        self.assertNotIn(CLASS, root)

    def test_create_reboot_rebuild_shelve_and_delete(self) -> None:
        server = self.boot()
        first = self.hold(server)
        self.assertEqual(1, self.used())
        self._reboot_server(server, hard=True)
        self.assertEqual(first, self.hold(server))
        self._rebuild_server(server, base.OTHER_IMAGE)
        self.hold(server)
        self.act(server, 'shelve')
        self._wait_for_state_change(server, 'SHELVED_OFFLOADED')
        self.assert_released()
        self.act(server, 'unshelve')
        self._wait_for_state_change(server, 'ACTIVE')
        self.hold(server)
        self._delete_server(server)
        self.assert_released()
        self.assertEqual(0, self.used())

    def unplug_by_hand(self, server: dict[str, Any]) -> None:
        """Stop a server, and unplug it as the command os-acc unplug does."""
        self._stop_server(server)
        with self.on('compute1'):
            os_acc.unplug(os_acc.objects.InstanceInfo(uuid=server['id']))
        self.assert_released()

    def test_a_start_plugs_what_was_unplugged_by_hand(self) -> None:
        server = self.boot()
        self.unplug_by_hand(server)
        self._start_server(server)
        self.hold(server)

    def test_a_hard_reboot_after_a_rebuild_that_failed(self) -> None:
        server = self.boot()
        with fixtures.MonkeyPatch('os_acc.plug', self._no_device):
            self.act(server, 'rebuild', imageRef=base.OTHER_IMAGE)
            self._wait_for_state_change(server, 'ERROR')
        self.assert_released()
        # Nova has deleted the allocation too.
        self.act(server, 'reboot', type='HARD')
        self.wait_for('compute.exception', 2)
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None, 'status': 'ERROR'}
        )
        self.assertIn('allocation set', self.faults(server)[-1])
        self.assert_released()
        self.allocate(server, self.pf('compute2'))
        self._reboot_server(server, hard=True)
        (address,) = self.hold(server)
        self.assertEqual(self.pf('compute2'), f'{address[:-1]}0')

    def allocate(self, server: dict[str, Any], device: str) -> None:
        """Set the allocation of a server, as a deployer does."""
        uuid = self.providers('compute1')[device]
        server = self.api.get_server(server['id'])
        self.placement.put(
            f'/allocations/{server["id"]}',
            version='1.28',
            body={
                'allocations': {uuid: {'resources': {CLASS: 1}}},
                'project_id': server['tenant_id'],
                'user_id': server['user_id'],
                'consumer_generation': None,
            },
        )

    @staticmethod
    def _no_device(*args: Any, **kwargs: Any) -> None:
        raise exception.DeviceNotFound(wanted=CLASS, reason='the card fell')

    def test_no_start_without_the_allocation(self) -> None:
        server = self.boot()
        self.unplug_by_hand(server)
        self._delete_allocation(server)
        self.act(server, 'os-start')
        self.wait_for('compute.exception')
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None, 'status': 'SHUTOFF'}
        )
        (fault,) = self.faults(server)
        self.assertIn(f'resources:{CLASS}=1', fault)
        self.assertIn('allocation set', fault)
        self.assert_released()

    def test_a_start_needs_no_placement_if_nothing_is_missing(self) -> None:
        server = self.boot()
        first = self.hold(server)
        self._delete_allocation(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(first, self.hold(server))

    def _delete_allocation(self, server: dict[str, Any]) -> None:
        self.placement.delete(f'/allocations/{server["id"]}', version='1.28')

    def test_no_suspend(self) -> None:
        server = self.boot()
        self.act(server, 'suspend')
        self.wait_for('compute.exception')
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None, 'status': 'ACTIVE'}
        )
        self.hold(server)
        self.assertIn(
            'Failed to suspend instance: the instance has 1 accelerators',
            self.faults(server)[-1],
        )

    def test_resize_to_such_a_flavor(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        # The stand-in for libvirt has no disks.
        self.useFixture(
            fixtures.MockPatchObject(
                driver.LibvirtDriver,
                'migrate_disk_and_power_off',
                return_value='{}',
            )
        )
        small = self._create_flavor()
        server = self.boot(flavor_id=small)
        self.assertEqual([], self.vans('compute1', server))
        self._resize_server(server, self.flavor_id)
        self.hold(server)
        self._revert_resize(server)
        self.assert_released()
        self._resize_server(server, self.flavor_id)
        self._confirm_resize(server)
        self.hold(server)

    def test_more_than_there_are(self) -> None:
        many = self._create_flavor(
            extra_spec={f'resources:{CLASS}': str(self.TOTAL + 1)}
        )
        self.boot('ERROR', flavor_id=many)
        self.assert_released()
