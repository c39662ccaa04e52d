# SPDX-License-Identifier: Apache-2.0

"""The operations that Nova allows with accelerators, on one host."""

from __future__ import annotations

import errno
import pathlib
from typing import Any

import fixtures
from nova.compute import task_states
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client
from nova.virt.libvirt import driver

from operations import base
import os_acc
from os_acc import objects


def _snapshot(
    self: Any, context: Any, instance: Any, image_id: str, update: Any
) -> None:
    update(task_state=task_states.IMAGE_PENDING_UPLOAD)
    update(
        task_state=task_states.IMAGE_UPLOADING,
        expected_state=task_states.IMAGE_PENDING_UPLOAD,
    )


class TestOneHost(base.OperationsTest):
    """A server with a VF and a mediated device."""

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot()
        self.arqs = self.assert_plugged(self.server)
        self.before = self.hostdevs(self.server)
        self.writes = len(self.kernel.writes)

    def assert_untouched(self) -> None:
        """Check that the guest has its devices, and no device was touched."""
        self.assert_plugged(self.server)
        self.assertEqual(self.before, self.hostdevs(self.server))
        self.assertEqual(self.writes, len(self.kernel.writes))
        self.assertEqual(self.arqs, self.cyborg.of(self.server))

    def remove_by_hand(self) -> None:
        """Remove the mdev and unbind the VF, as a careless operator does."""
        vf, mdev = self.arqs
        path = self.kernel.mdev / mdev['attach_handle_uuid']
        self.kernel.write(f'{path}/remove', '1')
        address = f'0000:01:00.{vf["attach_handle_info"]["function"]}'
        self.kernel.write(
            f'{self.kernel.pci}/drivers/vfio-pci/unbind', address
        )
        self.assertFalse(self.has_mdev(mdev))
        self.assertIsNone(self.driver_of(vf))

    def test_create_and_delete(self) -> None:
        self._delete_server(self.server)
        self.assert_released()
        self.assertEqual({}, self.cyborg.arqs)
        self.assertEqual([], self.notified('compute.exception'))

    def test_what_touches_no_device(self) -> None:
        self._reboot_server(self.server)
        self.assert_untouched()
        self.act(self.server, 'pause')
        self._wait_for_state_change(self.server, 'PAUSED')
        self.act(self.server, 'unpause')
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assert_untouched()
        # Nova's tests have no disks, and a snapshot touches only those.
        self.useFixture(
            fixtures.MockPatchObject(
                driver.LibvirtDriver, 'snapshot', _snapshot
            )
        )
        self.act(self.server, 'createImage', name='snapshot')
        self.wait_for('instance.snapshot.end')
        self.act(
            self.server,
            'createBackup',
            name='backup',
            backup_type='daily',
            rotation=1,
        )
        self.wait_for('instance.snapshot.end', 2)
        self.assert_untouched()
        self._stop_server(self.server)
        self.assert_untouched()

    def test_a_guest_that_is_defined_again_keeps_its_devices(self) -> None:
        self._reboot_server(self.server, hard=True)
        self.assert_untouched()
        self._stop_server(self.server)
        self._start_server(self.server)
        self.assert_untouched()

    def test_rescue_and_unrescue(self) -> None:
        # Nova keeps the XML in the directory of the instance's disks, and its
        # tests make no disks.
        path = pathlib.Path(base.CONF.instances_path)
        (path / self.server['id']).mkdir()
        # libvirt returns the XML that it got, the stand-in only parts of it.
        self.useFixture(
            fixtures.MockPatchObject(
                fakelibvirt.Domain,
                'XMLDesc',
                lambda domain, flags: self.xml_of(self.server),
            )
        )
        self._rescue_server(self.server)
        self.assert_untouched()
        self._unrescue_server(self.server)
        self.assert_untouched()
        self._delete_server(self.server)
        self.assert_released()

    def test_a_hard_reboot_repairs(self) -> None:
        self.remove_by_hand()
        self._reboot_server(self.server, hard=True)
        self.assert_plugged(self.server)
        self.assertEqual(self.before, self.hostdevs(self.server))

    def test_a_failed_hard_reboot_is_repeated(self) -> None:
        self.remove_by_hand()
        self.kernel.fail('*/acme-1/create', errno.EIO)
        self._reboot_server(self.server, hard=True, expected_state='ERROR')
        self.assertIn('Failed to plug the acc', self.message(self.server))
        self.assertIn('Input/output error', self.message(self.server))
        # Nova sends instance.reboot.error only if the old guest still runs.
        self.wait_for('compute.exception')
        (error,) = self.notified('compute.exception')
        self.assertEqual('AcceleratorPlugFailure', error['exception'])
        self.assertIn('Input/output error', error['exception_message'])
        # Nothing was released: the VANs are still the instance's.
        self.assertEqual(2, len(self.vans(server=self.server)))
        self._reboot_server(self.server, hard=True)
        self.assert_plugged(self.server)
        self.assertEqual(self.before, self.hostdevs(self.server))

    def test_rebuild(self) -> None:
        self._rebuild_server(self.server, base.OTHER_IMAGE)
        self.assertEqual(self.arqs, self.assert_plugged(self.server))
        self.assertEqual(self.before, self.hostdevs(self.server))

    def test_shelve_and_unshelve(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, 'SHELVED')
        self.assert_untouched()
        self._shelve_offload_server(self.server)
        self.assert_released()
        self.assertEqual({}, self.cyborg.arqs)
        self._unshelve_server(self.server)
        self.assertNotEqual(self.arqs, self.assert_plugged(self.server))
        self._delete_server(self.server)
        self.assert_released()

    def test_refused_operations(self) -> None:
        resize = {'flavorRef': '2', 'OS-DCF:diskConfig': 'AUTO'}
        for name, body in {
            'resize': resize,
            'migrate': None,
            'os-migrateLive': {'host': None, 'block_migration': 'auto'},
            'suspend': None,
        }.items():
            refused = self.assertRaises(
                client.OpenStackApiException,
                self.api.post_server_action,
                self.server['id'],
                {name: body},
            )
            self.assertIn(refused.response.status_code, (400, 403))
            self.assertIn('accelerator', refused.response.text.lower())
        self.assert_untouched()

    def test_nova_compute_is_restarted(self) -> None:
        self.restart('compute1')
        self.assert_untouched()
        self._reboot_server(self.server, hard=True)
        self.assert_untouched()

    def test_the_host_is_rebooted(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        self.kernel.reboot()
        self.assertFalse(self.has_mdev(self.arqs[1]))
        domain = self.domain(self.server)
        domain._state = base.fakelibvirt.VIR_DOMAIN_SHUTOFF
        # Cyborg need not answer: all is in the journal.
        self.cyborg.mock_get_arqs.side_effect = RuntimeError('no Cyborg')
        self.restart('compute1')
        self.assertEqual(self.arqs, self.assert_plugged(self.server))
        self.assertEqual(self.before, self.hostdevs(self.server))
        self.assertEqual('ACTIVE', self._show_server(self.server)['status'])
        self.assertTrue(self.domain(self.server).isActive())

    def test_delete_when_the_domain_is_gone(self) -> None:
        self.domain(self.server).undefine()
        self._delete_server(self.server)
        self.assert_released()

    def test_delete_when_domain_and_service_are_gone(self) -> None:
        # Nova deletes the server in its database, and calls no driver.
        service = self.admin_api.get_services(binary='nova-compute')[0]['id']
        self.computes['compute1'].stop()
        self.admin_api.put_service(service, {'forced_down': True})
        # The command's VANs are not Nova's to release.
        by_command = objects.InstanceInfo(
            uuid='5d1c7e6a-0f83-4b0e-9c59-5f3f1c9be002'
        )
        handle = objects.PCIHandle(address='0000:01:00.4')
        self.acc.stop('compute1')
        with self.acc.host('compute1'):
            os_acc.initialize(owner='os-acc')
            os_acc.plug(
                by_command,
                [
                    objects.AcceleratorRequest(
                        uuid='0f5d1c7e-6a83-4b0e-9c59-5f3f1c9be001',
                        handle=handle,
                    )
                ],
            )
        self._delete_server(self.server)
        self.domain(self.server).undefine()
        self.assertEqual(2, len(self.vans(server=self.server)))
        self.admin_api.put_service(service, {'forced_down': False})
        self.restart('compute1')
        (left,) = self.vans()
        self.assertEqual(by_command.uuid, left.instance_uuid)
        self.assertFalse(self.has_mdev(self.arqs[1]))

    def test_a_delete_that_fails_is_repeated(self) -> None:
        mdev = self.arqs[1]
        path = self.kernel.mdev / mdev['attach_handle_uuid']
        group = (path / 'iommu_group').readlink().name
        pid = self.kernel.hold(self.kernel.root / 'dev/vfio' / group)
        self.api.delete_server(self.server['id'])
        self._wait_for_state_change(self.server, 'ERROR')
        self.assertIn('Failed to release the acc', self.message(self.server))
        self.assertIn('qemu', self.message(self.server))
        self.wait_for('compute.exception')
        (error,) = self.notified('compute.exception')
        self.assertEqual('AcceleratorUnplugFailure', error['exception'])
        self.assertIn('qemu', error['exception_message'])
        # The other device was released.
        (left,) = self.vans()
        self.assertEqual('error', left.state)
        self.kernel.end(pid)
        self.api.delete_server(self.server['id'])
        self.wait_for('instance.delete.end')
        self.assert_released()
