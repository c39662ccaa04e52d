# SPDX-License-Identifier: Apache-2.0

"""The resource providers of devices, when devices or os-acc change."""

from __future__ import annotations

import json
from typing import Any

from nova import context as nova_context

from operations import base

CLASS = 'CUSTOM_PCI_8086_4940'
TRAIT = 'CUSTOM_RACK_7'


class TestProviders(base.OperationsTest):
    """One host with two PFs, each of which is a provider."""

    HOSTS = ()

    def setUp(self) -> None:
        super().setUp()
        self.flags(resource_classes=[CLASS], group='os_acc_nova')
        self.add_host('compute1')
        self.root = self.compute_rp_uuids['compute1']
        self.flavor_id = self._create_flavor(
            extra_spec={f'resources:{CLASS}': '1'}
        )

    def device_of(self, server: dict[str, Any]) -> str:
        """The PF of the server's VF, and that of its allocation."""
        (van,) = self.vans('compute1', server)
        self.assertEqual({van.device: {CLASS: 1}}, self.allocated(server))
        device: str = van.device
        return device

    def offer(self, *devices: str) -> None:
        """Offer these devices only."""
        spec = [json.dumps({'address': pf, 'num_vfs': 4}) for pf in devices]
        self.set_os_acc(device_spec=spec)
        self.report()

    def report(self) -> None:
        """Do what nova-compute does once a minute."""
        self.computes['compute1'].manager.update_available_resource(
            nova_context.get_admin_context()
        )

    def totals(self) -> dict[str, dict[str, int]]:
        return {
            address: {
                name: each['total']
                for name, each in self._get_provider_inventory(uuid).items()
            }
            for address, uuid in self.providers('compute1').items()
        }

    def test_a_device_that_vanishes(self) -> None:
        server = self.boot()
        used = self.device_of(server)
        (other,) = {*self.providers('compute1')} - {used}
        self.offer(used)
        self.assertEqual({used: {CLASS: 4}}, self.totals())
        self.offer(other)
        # What is allocated stays, and nothing more can be allocated.
        self.assertEqual({used: {CLASS: 1}, other: {CLASS: 4}}, self.totals())
        self.assertEqual({used: {CLASS: 1}}, self.allocated(server))
        self.offer(used, other)
        self.assertEqual({used: {CLASS: 4}, other: {CLASS: 4}}, self.totals())
        self.assertEqual(used, self.device_of(server))

    def test_a_trait_of_the_deployer(self) -> None:
        device, uuid = sorted(self.providers('compute1').items())[-1]
        own = self._get_provider_traits(uuid)
        self._create_trait(TRAIT)
        self._set_provider_traits(uuid, [*own, TRAIT])
        self.report()
        self.assertEqual({*own, TRAIT}, {*self._get_provider_traits(uuid)})
        flavor = self._create_flavor(
            extra_spec={
                f'resources1:{CLASS}': '1',
                f'trait1:{TRAIT}': 'required',
            }
        )
        server = self.boot(flavor_id=flavor)
        self.assertEqual(device, self.device_of(server))
        self.restart('compute1')
        self.assertEqual({*own, TRAIT}, {*self._get_provider_traits(uuid)})

    def test_what_an_earlier_version_reported_is_moved(self) -> None:
        servers = [self.boot() for _ in range(2)]
        devices = [self.device_of(server) for server in servers]
        traits = self._get_provider_traits(self.root)
        self.as_before(servers)
        self.restart('compute1')
        for server, device in zip(servers, devices, strict=True):
            self.assertEqual(device, self.device_of(server))
            found = self._get_allocations_by_server_uuid(server['id'])
            self.assertEqual(
                {'DISK_GB', 'MEMORY_MB', 'VCPU'},
                {*found[self.root]['resources']},
            )
        self.assertNotIn(CLASS, self._get_provider_inventory(self.root))
        self.assertEqual(
            {*traits, TRAIT}, {*self._get_provider_traits(self.root)}
        )
        self._reboot_server(servers[0], hard=True)
        self._delete_server(servers[1])
        self.assertEqual(devices[0], self.device_of(servers[0]))

    def as_before(self, servers: list[dict[str, Any]]) -> None:
        """Bring Placement to what a provider.yaml of os-acc made of it."""
        children = self.providers('compute1').values()
        inventories = self._get_provider_inventory(self.root)
        inventories[CLASS] = {'total': 8, 'max_unit': 8}
        self._update_inventory(
            self.root,
            {
                'resource_provider_generation': self.generation(),
                'inventories': inventories,
            },
        )
        self._create_trait(TRAIT)
        self._set_provider_traits(
            self.root,
            [
                *self._get_provider_traits(self.root),
                'CUSTOM_PCI_VENDOR_8086',
                TRAIT,
            ],
        )
        for server in servers:
            path = f'/allocations/{server["id"]}'
            body = self.placement.get(path, version='1.28').body
            resources = body['allocations'][self.root]['resources']
            resources[CLASS] = 1
            body['allocations'] = {self.root: {'resources': resources}}
            self.placement.put(path, version='1.28', body=body)
        for uuid in children:
            self.placement.delete(f'/resource_providers/{uuid}')

    def generation(self) -> int:
        found: int = self.placement.get(
            f'/resource_providers/{self.root}'
        ).body['generation']
        return found
