# SPDX-License-Identifier: Apache-2.0

"""Live migration of servers with accelerators, without Cyborg."""

from __future__ import annotations

from typing import Any

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base as nova_base

from acc_plug_libvirt import detach
from operations import base
from operations import moves
from os_acc import exception


class LiveMovesTest(nova_base.LibvirtMigrationMixin, moves.MovesTest):
    """Live migrations from compute1 to compute2.

    :ivar job_fails: whether libvirt's job fails
    :ivar moved_xml: the XML that the target got
    """

    def setUp(self) -> None:
        super().setUp()
        self.job_fails = False
        self.src, self.dest = (
            self.computes[each] for each in self.COMPUTES[:2]
        )

    def _migrate_stub(
        self, domain: Any, destination: str, params: Any, flags: int
    ) -> None:
        self.moved_xml = params['destination_xml']
        if self.job_fails:
            self.domain(self.server).fail_job()
            return
        super()._migrate_stub(domain, destination, params, flags)

    def boot(self, state: str = 'ACTIVE', **kwargs: Any) -> dict[str, Any]:
        self.server = super().boot(state, **kwargs)
        return self.server

    def migrate(self, *states: str, status: str = 'ACTIVE') -> None:
        """Migrate the server, and wait for the end of the migration."""
        body = {'host': 'compute2', 'block_migration': 'auto'}
        before = len(self.migrations(self.server))
        # libvirt forgets a job that has failed. Its stand-in does not.
        self.domain(self.server)._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE
        self.act(self.server, 'os-migrateLive', **body)
        self.wait_for_migration(self.server, *states, after=before)
        self._wait_for_server_parameter(
            self.server, {'OS-EXT-STS:task_state': None, 'status': status}
        )


class TestLiveMoves(LiveMovesTest):
    """By replug."""

    def test_migrate(self) -> None:
        server = self.boot()
        self.migrate('completed')
        root = etree.fromstring(self.moved_xml)
        self.assertEqual(moves.NOTHING, list(root.iter('hostdev')))
        self.assert_runs(server, 'compute2')
        self.reboot(server)
        self.assert_runs(server, 'compute2')
        self._delete_server(server)
        self.assert_nothing_left()

    def test_failures_before_the_guest_has_moved(self) -> None:
        """The guest goes on at the source, with its accelerators."""
        server = self.boot()
        before = self.of('compute1', server)
        for name in (
            'os_acc.migration.describe',
            'os_acc.nova.allocated_requests',
            'os_acc.migration.prepare',
            'acc_plug_libvirt.detach.detach',
        ):
            error = exception.DeviceNotFound(
                wanted='a VF', reason=f'no {name}'
            )
            with self.fails(name, error):
                self.migrate('failed', 'error')
            self.assertIn(f'no {name}', ' '.join(self.faults(server)))
            self.assert_runs(server, 'compute1')
            self.assertEqual(before, self.of('compute1', server))
        self.job_fails = True
        self.migrate('failed')
        self.assert_runs(server, 'compute1')
        self.assertEqual(before, self.of('compute1', server))

    def test_the_target_does_not_attach(self) -> None:
        server = self.boot()
        error = exception.HypervisorError(
            what='libvirt', reason='no slot is left'
        )
        with self.fails('acc_plug_libvirt.attach.attach', error):
            self.migrate('completed', status='ERROR')
        self.assertIn('no slot', self.message(server))
        self.assertEqual([[], ['incoming']], self.states(server))
        self.reboot(server)
        self.assert_runs(server, 'compute2')

    def test_what_a_flavor_forbids(self) -> None:
        for way, text in (('cold', 'migrate it cold'), ('live', 'by replug')):
            flavor_id = self.flavor(1, **{'os_acc:migration': way})
            server = self.boot(flavor_id=flavor_id)
            self.migrate('error')
            self.assertIn(text, ' '.join(self.faults(server)))
            self.assertEqual([['plugged'], []], self.states(server))


class TestLiveWithDevices(LiveMovesTest):
    """The guest keeps its VFs, whose variant driver can save their state."""

    VFIO_DRIVER = 'mlx5_vfio_pci'
    PF_SPEC = {'vfio_driver': VFIO_DRIVER}

    def setUp(self) -> None:
        super().setUp()
        self.kernel.add_driver(self.VFIO_DRIVER)
        self.kernel.migrates = {self.VFIO_DRIVER}
        self.flags(live_migration_permit_post_copy=False, group='libvirt')
        self.flavor_id = self.flavor(2)
        patch = base.Patch(self)
        self.detached: list[str] = []
        stand_in = detach.detach

        def noted(libvirt: Any, van: Any, *args: Any) -> None:
            self.detached.append(van.uuid)
            stand_in(libvirt, van, *args)

        patch.setattr(detach, 'detach', noted)

    def hostdevs(self) -> list[str]:
        """The PCI address of each in the XML that the target got."""
        found = []
        for each in etree.fromstring(self.moved_xml).iter('hostdev'):
            address = each.find('source/address')
            parts = [
                address.get(name).removeprefix('0x')
                for name in ('domain', 'bus', 'slot', 'function')
            ]
            found.append('{}:{}:{}.{}'.format(*parts))
        return found

    def test_migrate(self) -> None:
        server = self.boot()
        before = [van.uuid for van in self.vans('compute1', server)]
        self.migrate('completed')
        self.assertEqual(moves.NOTHING, self.detached)
        self.assert_runs(server, 'compute2', 2)
        vans = self.vans('compute2', server)
        self.assertEqual(before, [van.uuid for van in vans])
        self.assertEqual([van.handle.address for van in vans], self.hostdevs())
        self.reboot(server)
        self.assert_runs(server, 'compute2', 2)
        self._delete_server(server)
        self.assert_nothing_left()

    def test_failures_before_the_guest_has_moved(self) -> None:
        """The guest goes on at the source, and never gave its devices up."""
        server = self.boot()
        before = self.of('compute1', server)
        for name in ('os_acc.migration.prepare', 'os_acc.migration.hand_over'):
            error = exception.DeviceBusy(device='a VF', reason=f'no {name}')
            with self.fails(name, error):
                self.migrate('failed', 'error')
            self.assertIn(f'no {name}', ' '.join(self.faults(server)))
            self.assert_runs(server, 'compute1', 2)
        self.job_fails = True
        self.migrate('failed')
        self.assert_runs(server, 'compute1', 2)
        self.assertEqual(before, self.of('compute1', server))
        self.assertEqual(moves.NOTHING, self.detached)
        self.job_fails = False
        self.migrate('completed')
        self.assert_runs(server, 'compute2', 2)

    def test_a_target_whose_kernel_cannot(self) -> None:
        server = self.boot()
        self.kernel.migrates = set()
        self.migrate('failed', 'error')
        self.assertIn('cannot migrate', ' '.join(self.faults(server)))
        self.assert_runs(server, 'compute1', 2)

    def test_post_copy_makes_it_a_replug(self) -> None:
        self.flags(live_migration_permit_post_copy=True, group='libvirt')
        server = self.boot()
        vans = [van.uuid for van in self.vans('compute1', server)]
        self.migrate('completed')
        self.assertEqual(sorted(vans), sorted(self.detached))
        flavor_id = self.flavor(1, **{'os_acc:migration': 'live'})
        server = self.boot(flavor_id=flavor_id)
        self.migrate('error')
        self.assertIn('post_copy', ' '.join(self.faults(server)))
        self.assertEqual([['plugged'], []], self.states(server))
