# SPDX-License-Identifier: Apache-2.0

"""Hosts and devices that have the function of a flavor go first."""

from __future__ import annotations

from typing import Any

from nova import context as nova_context
from nova.scheduler import filters
from nova.scheduler import weights

from operations import base
import os_acc
from os_acc.placement import functions

CLASS = 'CUSTOM_FAKE_TEST'
OURS = 'os_acc_nova.scheduling'


class TestScheduling(base.OperationsTest):
    """Each host has two fake devices that can be programmed."""

    HOSTS = ()

    def setUp(self) -> None:
        super().setUp()
        for name, value in (
            ('devices', ['f0:test:4:single', 'f1:test:4:single']),
            ('discover', True),
        ):
            os_acc.CONF.set_override(name, value, 'os_acc_fake')
            self.addCleanup(os_acc.CONF.clear_override, name, 'os_acc_fake')
        self.flags(resource_classes=[CLASS], group='os_acc_nova')
        manager = self.scheduler.manager.host_manager
        # As nova-scheduler does with the options weight_classes,
        # available_filters and enabled_filters.
        (weigher,) = weights.HostWeightHandler().get_matching_classes(
            [f'{OURS}.FunctionWeigher']
        )
        (last,) = filters.HostFilterHandler().get_matching_classes(
            [f'{OURS}.FunctionFilter']
        )
        manager.weighers.append(weigher())
        manager.enabled_filters.append(last())

    def programmed(self, function: str) -> dict[str, Any]:
        """Boot a server with a function; return its host and device."""
        flavor = self._create_flavor(
            vcpu=1,
            memory_mb=512,
            extra_spec={
                f'resources:{CLASS}': '1',
                'os_acc:function_id': function,
            },
        )
        server = self.boot(flavor_id=flavor)
        host = self.host_of(server)
        (van,) = self.vans(host, server)
        self.assertEqual(function, van.function_id)
        self.assertEqual({van.device: {CLASS: 1}}, self.allocated(server))
        for each in self.computes.values():
            # What nova-compute does within a second.
            each.manager.update_available_resource(
                nova_context.get_admin_context()
            )
        return {'host': host, 'device': van.device}

    def test_two_hosts(self) -> None:
        self.add_host('compute1')
        self.add_host('compute2')
        first = self.programmed('aes')
        # The fake devices of both hosts are the same ones. So Placement is
        # told that those of the other host have no function. Nova's own
        # weighers prefer it for the next server.
        (other,) = {'compute1', 'compute2'} - {first['host']}
        for uuid in self.providers(other).values():
            self._set_provider_traits(uuid, [functions.EMPTY])
        self.assertEqual(first, self.programmed('aes'))

    def test_a_single_host(self) -> None:
        self.add_host('compute1')
        aes = self.programmed('aes')
        self.assertEqual(aes, self.programmed('aes'))
        sha = self.programmed('sha')
        self.assertNotEqual(aes, sha)
        self.assertEqual(sha, self.programmed('sha'))
