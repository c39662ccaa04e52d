# SPDX-License-Identifier: Apache-2.0

"""Failures of a create, and what two hosts do about them."""

from __future__ import annotations

from typing import Any
import uuid

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from operations import base
from operations import cyborg
import os_acc
from os_acc import objects


class TestTwoHosts(base.OperationsTest):
    HOSTS = ('compute1', 'compute2')

    def occupy(self, host: str, function: str) -> None:
        """Give a VF to another instance, which Nova does not know."""
        address = f'0000:{cyborg.BUSES[host][0]}:00.{function}'
        request = objects.AcceleratorRequest(
            uuid=uuid.uuid4(), handle=objects.PCIHandle(address=address)
        )
        with self.on(host):
            info = objects.InstanceInfo(uuid=uuid.uuid4())
            os_acc.plug(info, [request])

    def of_server(self, server: dict[str, Any]) -> dict[str, int]:
        return {host: len(self.vans(host, server)) for host in self.HOSTS}

    def fault(self, event_type: str) -> dict[str, Any]:
        (payload,) = self.notified(event_type)
        found: dict[str, Any] = payload['fault']['nova_object.data']
        return found

    def test_another_host_is_tried_if_a_device_is_busy(self) -> None:
        for host in self.HOSTS:
            self.occupy(host, '1')
        server = self.boot()
        self.assertEqual(2, self.cyborg.mock_bind_arqs.call_count)
        host = self.host_of(server)
        other = next(each for each in self.HOSTS if each != host)
        self.assert_plugged(server, host)
        self.assertEqual({host: 2, other: 0}, self.of_server(server))
        # Nova records no fault if another host serves.
        self.assertEqual([], self.faults(server))
        address = f'0000:{cyborg.BUSES[other][0]}:00.1'
        fault = self.fault('instance.create.error')
        self.assertEqual('AcceleratorPlugFailure', fault['exception'])
        self.assertIn(f'{address} is busy', fault['exception_message'])

    def test_no_other_host_is_tried_if_the_request_is_invalid(self) -> None:
        self.cyborg.changes['bus'] = 'zz'
        server = self.boot('ERROR')
        self.assertEqual(1, self.cyborg.mock_bind_arqs.call_count)
        self.assertIn('attach_handle_info.bus', self.message(server))
        fault = self.fault('instance.create.error')
        self.assertEqual('BuildAbortException', fault['exception'])
        self.assertIn('attach_handle_info.bus', fault['exception_message'])
        for host in self.HOSTS:
            self.assert_released(host)
        self._delete_server(server)

    def test_another_host_is_tried_if_the_binding_failed(self) -> None:
        # Which host is tried first is the scheduler's choice.
        bind = self.cyborg.mock_bind_arqs.side_effect

        def fail_once(bindings: Any) -> None:
            self.cyborg.unbound = {
                each['hostname'] for each in bindings.values()
            }
            bind(bindings)
            self.cyborg.mock_bind_arqs.side_effect = bind
            self.cyborg.unbound = set()

        self.cyborg.mock_bind_arqs.side_effect = fail_once
        server = self.boot()
        self.assert_plugged(server, self.host_of(server))
        self.assertIn(
            'BindFailed',
            self.fault('instance.create.error')['exception_message'],
        )

    def test_a_server_without_a_bound_arq_is_no_server(self) -> None:
        self.cyborg.unbound = set(self.HOSTS)
        server = self.boot('ERROR')
        self.assertEqual(2, self.cyborg.mock_bind_arqs.call_count)
        # Nova keeps no text of the attempts in the fault.
        self.assertIn('Exhausted all hosts', self.message(server))
        errors = [
            payload['fault']['nova_object.data']['exception_message']
            for payload in self.notified('instance.create.error')
        ]
        self.assertEqual(2, sum('BindFailed' in each for each in errors))
        for host in self.HOSTS:
            self.assert_released(host)

    def test_a_guest_that_does_not_start_leaves_nothing(self) -> None:
        start = fakelibvirt.Domain.createWithFlags
        failed: list[str] = []

        def fail_once(domain: Any, flags: int) -> None:
            if not failed:
                failed.append(domain._connection.hostname)
                raise fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError, 'the guest does not start'
                )
            start(domain, flags)

        self.useFixture(
            fixtures.MockPatchObject(
                fakelibvirt.Domain, 'createWithFlags', fail_once
            )
        )
        server = self.boot()
        self.assert_plugged(server, self.host_of(server))
        self.assertNotEqual(failed, [self.host_of(server)])
        self.assert_released(failed[0])

    def evacuate(self, server: dict[str, Any]) -> None:
        service = self.admin_api.get_services(
            host='compute1', binary='nova-compute'
        )[0]['id']
        self.computes['compute1'].stop()
        self.admin_api.put_service(service, {'forced_down': True})
        self._evacuate_server(server, expected_host='compute2')

    def boot_on_first(self) -> dict[str, Any]:
        return self.boot(host='compute1')

    def test_evacuate(self) -> None:
        server = self.boot_on_first()
        before = self.assert_plugged(server)
        self.evacuate(server)
        after = self.assert_plugged(server, 'compute2')
        self.assertNotEqual(before, after)
        # The source has its VANs until its nova-compute starts again.
        self.assertEqual(2, len(self.vans('compute1')))
        self._start_server(server)
        self.restart('compute1')
        self.assert_released('compute1')
        self.assertEqual(after, self.assert_plugged(server, 'compute2'))

    def test_nova_compute_starts_even_if_a_device_is_not_released(
        self,
    ) -> None:
        server = self.boot_on_first()
        mdev = self.assert_plugged(server)[1]
        self.evacuate(server)
        path = self.kernel.mdev / mdev['attach_handle_uuid']
        group = (path / 'iommu_group').readlink().name
        pid = self.kernel.hold(self.kernel.root / 'dev/vfio' / group)
        self.restart('compute1')
        (left,) = self.vans('compute1')
        self.assertEqual('error', left.state)
        self.assertIn('qemu', left.error)
        self.assertIn(
            'The accelerators were not released', self.stdlog.logger.output
        )
        self.assert_plugged(server, 'compute2')
        # Only what is left is tried again.
        self.kernel.end(pid)
        self.restart('compute1')
        self.assert_released('compute1')
        self.assert_plugged(server, 'compute2')
