# SPDX-License-Identifier: Apache-2.0

"""The base of the tests: one or more compute hosts with devices."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import pathlib
from typing import Any

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects as nova_objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base
import nova.virt.os_acc
import nova_cell_lock

import acc_plug_libvirt
from operations import cyborg
from operations import node_devices
import os_acc
from os_acc import fixture
from os_acc.testing.kernel import Kernel
from os_acc_nova import moving_driver

CONF = base.CONF
IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'
OTHER_IMAGE = '70a599e0-31e7-49b7-b260-868f441e862b'
OURS = 'os_acc.LibvirtDriver'
IN_TREE = 'libvirt.LibvirtDriver'

nova_cell_lock.repair()


class Patch:
    """What Kernel.install() uses of pytest's monkeypatch."""

    def __init__(self, test: fixtures.TestWithFixtures) -> None:
        self._test = test

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        self._test.useFixture(fixtures.MockPatchObject(obj, name, value))


class OperationsTest(base.ServersTestBase):
    """Each host has a PF with 4 VFs, and a GPU for 4 mediated devices.

    :ivar kernel: the devices of all hosts
    :ivar cyborg: see cyborg.Cyborg
    :ivar acc: OSAccFixture, in which each compute service is a host
    :ivar connections: the stand-in for libvirt on each host
    :ivar node_devices: libvirt's node devices of type mdev, of all hosts
    """

    microversion = 'latest'
    ADMIN_API = True
    # The errors of an operation reach the API only by the server's fault.
    CAST_AS_CALL = False
    #: The compute driver of the hosts, unless a test restarts one.
    DRIVER = OURS
    #: The hosts that are started before the test.
    HOSTS: tuple[str, ...] = ('compute1',)
    PROFILE = 'two'
    #: Further keys of device_spec for the PFs.
    PF_SPEC: dict[str, str] = {}

    def setUp(self) -> None:
        super().setUp()
        # With 0, the thread in which a service shuts down may outlive the
        # test, and shut down the thread pools of the next one.
        self.flags(manager_shutdown_timeout=30)
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.flags(state_path=str(path))
        self.acc = self.useFixture(
            fixture.OSAccFixture(str(path / 'os-acc'), owner='nova')
        )
        for cls in (
            nova.virt.os_acc.LibvirtDriver,
            moving_driver.MovingDriver,
        ):
            self.acc.follow(cls, lambda driver: driver._host.get_hostname())
        self.kernel = Kernel(path / 'host')
        self.kernel.install(Patch(self))
        self.node_devices = node_devices.NodeDevices(self.kernel)
        self.cyborg = self.useFixture(cyborg.Cyborg())
        self._patch_libvirt()
        self.set_os_acc(release_timeout=0.2, device_timeout=5.0)
        self._offer_devices()
        self.flavor_id = self._create_flavor(
            extra_spec={'accel:device_profile': self.PROFILE}
        )
        for host in self.HOSTS:
            self.add_host(host)

    @staticmethod
    def set_os_acc(**options: Any) -> None:
        """Set options of [os_acc]. OSAccFixture resets them at the end."""
        for name, value in options.items():
            os_acc.CONF.set_override(name, value, 'os_acc')

    def _wait_for_server_parameter(
        self, server: Any, expected: Any, max_retries: int = 10, **kwargs: Any
    ) -> Any:
        # Nova's own tests wait 5 s, which a busy machine exceeds.
        return super()._wait_for_server_parameter(
            server, expected, max_retries=200, **kwargs
        )

    def wait_for(self, event_type: str, number: int = 1) -> None:
        """Wait for a notification."""
        self.notifier.wait_for_versioned_notifications(
            event_type, n_events=number, timeout=100.0
        )

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver=self.DRIVER)

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        made = super()._get_connection(*args, **kwargs)
        self.connections[made.hostname] = made
        for name in (
            'nodeDeviceCreateXML',
            'nodeDeviceDefineXML',
            'nodeDeviceLookupByName',
        ):
            setattr(made, name, getattr(self.node_devices, name))
        return made

    def _patch_libvirt(self) -> None:
        """Keep the XML of domains, which the stand-in parses and drops.

        The plugin asks libvirtd itself for a guest; here it asks the stand-in.
        """
        self.connections: dict[str, Any] = {}
        self._xml: dict[str, str] = {}
        define = fakelibvirt.Connection.defineXML

        def define_and_keep(connection: Any, xml: str) -> Any:
            domain = define(connection, xml)
            self._xml[domain.UUIDString()] = xml
            return domain

        patch = Patch(self)
        patch.setattr(fakelibvirt.Connection, 'defineXML', define_and_keep)
        patch.setattr(
            acc_plug_libvirt.LibvirtPlugin,
            'has_guest',
            lambda plugin, info: any(
                info.uuid == domain.UUIDString()
                for connection in self.connections.values()
                for domain in connection._vms.values()
            ),
        )

    def _offer_devices(self) -> None:
        spec = []
        for vfs, gpu in cyborg.BUSES.values():
            pf, parent = f'0000:{vfs}:00.0', f'0000:{gpu}:00.0'
            self.kernel.add_function(
                pf, '8086:4940', 0x0B4000, 'qat', totalvfs=4
            )
            self.kernel.add_function(parent, '10de:1eb8', 0x030200)
            self.kernel.add_mdev_parent(
                (self.kernel.pci / 'devices' / parent).resolve(),
                {cyborg.MDEV_TYPE: 1},
                4,
            )
            spec += [
                {'address': pf, 'num_vfs': 4, **self.PF_SPEC},
                {'address': parent},
            ]
        self.set_os_acc(device_spec=[json.dumps(each) for each in spec])

    def add_host(self, name: str, **kwargs: Any) -> None:
        """Start a compute service, and put its devices into Placement.

        :param kwargs: see start_compute() of Nova's ServersTestBase
        """
        self.start_compute(name, **kwargs)
        root = self.compute_rp_uuids[name]
        for resource in ('FPGA', 'PGPU'):
            made = self.placement.post(
                '/resource_providers',
                version='1.20',
                body={
                    'name': f'{name}-{resource}',
                    'parent_provider_uuid': root,
                },
            ).body
            self._update_inventory(
                made['uuid'],
                {
                    'resource_provider_generation': made['generation'],
                    'inventories': {resource: {'total': 4}},
                },
            )

    def restart(self, host: str, driver: str = OURS, **kwargs: Any) -> None:
        """Restart nova-compute on a host, perhaps with another driver."""
        self.acc.stop(host)
        self.flags(compute_driver=driver)
        self.restart_compute_service(host, **kwargs)

    def boot(self, state: str = 'ACTIVE', **kwargs: Any) -> dict[str, Any]:
        """Create a server with the accelerators of the profile."""
        kwargs = {'networks': 'none', 'flavor_id': self.flavor_id, **kwargs}
        server: dict[str, Any] = self._create_server(
            image_uuid=IMAGE, expected_state=state, **kwargs
        )
        return server

    def host_of(self, server: dict[str, Any]) -> str:
        found: str = self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']
        return found

    def act(self, server: dict[str, Any], action: str, **body: Any) -> Any:
        return self.api.post_server_action(
            server['id'], {action: body or None}
        )

    def message(self, server: dict[str, Any]) -> str:
        """The message of the server's fault."""
        found: str = self.api.get_server(server['id'])['fault']['message']
        return found

    def faults(self, server: dict[str, Any]) -> list[str]:
        """The messages of all faults of the server, the oldest first."""
        context = nova_context.get_admin_context()
        cell = self.cell_mappings['cell1']
        with nova_context.target_cell(context, cell) as inside:
            found = nova_objects.InstanceFaultList.get_by_instance_uuids(
                inside, [server['id']]
            )
        return [each.message for each in reversed(found)]

    def notified(self, event_type: str) -> list[dict[str, Any]]:
        """The payloads of the notifications of this type."""
        return [
            each['payload']['nova_object.data']
            for each in self.notifier.versioned_notifications
            if each['event_type'] == event_type
        ]

    @contextlib.contextmanager
    def on(self, host: str) -> Iterator[None]:
        """Call os_acc in the block as the host's nova-compute does."""
        with self.acc.host(host):
            yield

    def vans(
        self, host: str = 'compute1', server: dict[str, Any] | None = None
    ) -> list[Any]:
        with self.on(host):
            return list(os_acc.get_vans(server and server['id']))

    def xml_of(self, server: dict[str, Any]) -> str:
        """The XML of the domain, as libvirt got it."""
        return self._xml[server['id']]

    def hostdevs(self, server: dict[str, Any]) -> list[str]:
        """The <hostdev> elements of the domain, as libvirt got them."""
        root = etree.fromstring(self.xml_of(server))
        return [_canonical(each) for each in root.iter('hostdev')]

    @staticmethod
    def pf(host: str) -> str:
        """The address of the PF that ARQs on a host are for."""
        return f'0000:{cyborg.BUSES[host][0]}:00.0'

    def providers(self, host: str) -> dict[str, str]:
        """The UUIDs of the providers of os-acc's devices, by address."""
        answer = self.placement.get(
            f'/resource_providers?in_tree={self.compute_rp_uuids[host]}',
            version='1.14',
        ).body
        mark = f'{host}_os-acc_'
        return {
            each['name'].removeprefix(mark): each['uuid']
            for each in answer['resource_providers']
            if each['name'].startswith(mark)
        }

    def allocated(self, server: dict[str, Any]) -> dict[str, Any]:
        """What is allocated to a server of os-acc's devices, by address."""
        found = self._get_allocations_by_server_uuid(server['id'])
        return {
            address: found[uuid]['resources']
            for host in self.compute_rp_uuids
            for address, uuid in self.providers(host).items()
            if uuid in found
        }

    def domain(self, server: dict[str, Any], host: str = 'compute1') -> Any:
        return self.connections[host].lookupByUUIDString(server['id'])

    def driver_of(self, arq: dict[str, Any]) -> str | None:
        """The host's driver of the VF of an ARQ."""
        info = arq['attach_handle_info']
        return self.kernel.driver_of(
            f'0000:{info["bus"]}:00.{info["function"]}'
        )

    def has_mdev(self, arq: dict[str, Any]) -> bool:
        return (self.kernel.mdev / arq['attach_handle_uuid']).exists()

    def assert_plugged(
        self, server: dict[str, Any], host: str = 'compute1'
    ) -> list[dict[str, Any]]:
        """Check that all halves of the accelerators are there.

        :returns: the ARQs
        """
        arqs = self.cyborg.of(server)
        vans = self.vans(host, server)
        self.assertEqual(
            {arq['uuid'] for arq in arqs}, {van.uuid for van in vans}
        )
        self.assertEqual({'plugged'}, {van.state for van in vans})
        self.assertEqual({'nova'}, {van.owner for van in vans})
        for arq in arqs:
            if arq['attach_handle_type'] == 'PCI':
                self.assertEqual('vfio-pci', self.driver_of(arq))
            else:
                self.assertTrue(self.has_mdev(arq))
        expected = [
            _canonical(etree.fromstring(van.guest_config)) for van in vans
        ]
        self.assertEqual(expected, self.hostdevs(server))
        for van, device in zip(vans, expected, strict=True):
            self.assertIn(f'ua-acc-{van.uuid}', device)
        self.assertEqual(2 if self.PROFILE == 'two' else 1, len(arqs))
        return arqs

    def assert_released(self, host: str = 'compute1') -> None:
        """Check that a host has no accelerator in use."""
        self.assertEqual([], self.vans(host))
        vfs, gpu = cyborg.BUSES[host]
        for link in (self.kernel.pci / 'devices').glob(f'0000:{vfs}:00.*'):
            self.assertNotEqual('vfio-pci', self.kernel.driver_of(link.name))
        parent = (self.kernel.pci / f'devices/0000:{gpu}:00.0').resolve()
        self.assertEqual(
            [],
            [
                link.name
                for link in self.kernel.mdev.iterdir()
                if link.resolve().parent == parent
            ],
        )


def _canonical(element: etree._Element) -> str:
    text: str = etree.tostring(
        element, method='c14n', with_tail=False
    ).decode()
    return ''.join(line.strip() for line in text.splitlines())
