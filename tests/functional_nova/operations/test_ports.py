# SPDX-License-Identifier: Apache-2.0

"""Network ports with an accelerator: os-acc's is the device half only."""

from __future__ import annotations

import copy

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from operations import base
from operations import cyborg


class TestPorts(base.OperationsTest):
    """A server whose port has a VF."""

    PROFILE = 'port'
    HOSTS = ()
    PF_SPEC = {'physical_network': 'physnet4'}

    def setUp(self) -> None:
        # Nova's stand-in for libvirt knows the VFs of this bus.
        buses = {'compute1': ('81', '02'), 'compute2': ('11', '12')}
        original = dict(cyborg.BUSES)
        cyborg.BUSES.update(buses)
        self.addCleanup(cyborg.BUSES.update, original)
        super().setUp()
        pci = fakelibvirt.HostPCIDevicesInfo(num_pfs=1, num_vfs=4)
        self.add_host('compute1', pci_info=pci)
        port = copy.deepcopy(self.neutron.ports_with_accelerator[0])
        port['device_profile'] = 'port'
        port['binding:vif_details'] = {'vlan': 42}
        self.neutron._ports[port['id']] = port
        self.port = port['id']
        self.server = self.boot(
            flavor_id=self._create_flavor(),
            networks=[{'port': self.port}],
        )

    def assert_in_interface_only(self) -> None:
        """Check that the guest has the VF once, as its interface."""
        (arq,) = self.cyborg.of(self.server)
        (van,) = self.vans(server=self.server)
        self.assertEqual(arq['uuid'], van.uuid)
        self.assertEqual('vfio-pci', self.driver_of(arq))
        self.assertEqual([], self.hostdevs(self.server))
        root = etree.fromstring(self.xml_of(self.server))
        addresses = root.findall('.//devices/*/source/address')
        found = [
            f'{int(each.get("bus"), 16):02x}.{int(each.get("function"), 16)}'
            for each in addresses
        ]
        info = arq['attach_handle_info']
        self.assertEqual([f'81.{info["function"]}'], found)
        (interface,) = root.iter('interface')
        self.assertEqual('hostdev', interface.get('type'))

    def test_the_vf_is_given_once(self) -> None:
        self.assert_in_interface_only()
        writes = len(self.kernel.writes)
        # Here Nova gives the ARQs of ports too.
        self._reboot_server(self.server, hard=True)
        self.assert_in_interface_only()
        self._stop_server(self.server)
        self._start_server(self.server)
        self.assert_in_interface_only()
        self.assertEqual(writes, len(self.kernel.writes))
        self._delete_server(self.server)
        self.assert_released()

    def test_beside_an_accelerator_of_the_flavor(self) -> None:
        self._delete_server(self.server)
        flavor = self._create_flavor(extra_spec={'accel:device_profile': 'vf'})
        self.server = self.boot(
            flavor_id=flavor, networks=[{'port': self.port}]
        )
        for _ in range(2):
            by_profile = {
                arq['device_profile_name']: arq['uuid']
                for arq in self.cyborg.of(self.server)
            }
            self.assertEqual({'vf', 'port'}, set(by_profile))
            self.assertEqual(2, len(self.vans(server=self.server)))
            (device,) = self.hostdevs(self.server)
            self.assertIn(f'ua-acc-{by_profile["vf"]}', device)
            self._reboot_server(self.server, hard=True)
        self._delete_server(self.server)
        self.assert_released()
