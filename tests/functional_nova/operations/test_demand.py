# SPDX-License-Identifier: Apache-2.0

"""A boot that finds no host leads to a programming; a new boot finds it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from nova import context as nova_context

from operations import base
import os_acc
from os_acc.placement import functions
from os_acc_nova import demand

CLASS = 'CUSTOM_FAKE_TEST'
# stestr runs this by a link.
SAMPLE = (
    pathlib.Path(__file__).resolve().parents[2]
    / 'data/nova-build-instances-error.json'
)


class TestDemand(base.OperationsTest):
    """The host has a fake device that can be programmed."""

    HOSTS = ()

    def setUp(self) -> None:
        super().setUp()
        for name, value in (
            ('devices', ['f0:test:4:single']),
            ('discover', True),
        ):
            os_acc.CONF.set_override(name, value, 'os_acc_fake')
            self.addCleanup(os_acc.CONF.clear_override, name, 'os_acc_fake')
        self.flags(resource_classes=[CLASS], group='os_acc_nova')
        self.set_os_acc(host='compute1')
        self.add_host('compute1')
        self.flavor_id = self._create_flavor(
            vcpu=1,
            memory_mb=512,
            extra_spec={
                f'resources:{CLASS}': '1',
                f'trait:{functions.trait("aes")}': 'required',
            },
        )

    def failure(self) -> dict[str, Any]:
        """Boot in vain; return the payload of the notification."""
        self.boot(state='ERROR')
        self.wait_for(demand.EVENT)
        (found,) = [
            each['payload']
            for each in self.notifier.versioned_notifications
            if each['event_type'] == demand.EVENT
        ]
        payload: dict[str, Any] = found
        return payload

    def test_the_second_boot_succeeds(self) -> None:
        pool = {'function': 'aes', 'on_demand': True}
        with self.on('compute1'):
            os_acc.apply({'version': 1, 'pools': [pool]})
            self.assertEqual([], os_acc.keep_pools().steps)
        payload = self.failure()
        with self.on('compute1'):
            demand.Endpoint().error(
                {}, 'nova-conductor:c1', demand.EVENT, payload, {}
            )
            (found,) = os_acc.this_host().journal.demand()
            self.assertEqual(
                (CLASS, 'aes'), (found.resource_class, found.function_id)
            )
            (step,) = os_acc.keep_pools().steps
            self.assertEqual(('f0', 'changed'), (step.name, step.result))
        # What nova-compute does within a second.
        self.computes['compute1'].manager.update_available_resource(
            nova_context.get_admin_context()
        )
        server = self.boot()
        (van,) = self.vans('compute1', server)
        self.assertEqual('f0', van.device)

    def test_the_sample_of_the_unit_tests_is_nova_s(self) -> None:
        """It has the fields that the service reads, in the same places."""
        ours = json.loads(SAMPLE.read_text())
        self.assertEqual(_names(ours), _names(self.failure()))


def _names(value: Any) -> Any:
    """The names and versions of the objects in a notification."""
    if not isinstance(value, dict):
        return None
    if 'nova_object.data' not in value:
        return None
    return (
        value['nova_object.name'],
        value['nova_object.version'].partition('.')[0],
        {
            name: found
            for name, each in value['nova_object.data'].items()
            if name in ('reason', 'request_spec', 'flavor')
            and (found := _names(each))
        },
    )
