# SPDX-License-Identifier: Apache-2.0

"""Hosts with guests from before os-acc, and the way back."""

from __future__ import annotations

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from operations import base
from operations import node_devices


class TestAdoption(base.OperationsTest):
    """A server that Nova's own libvirt driver has created."""

    DRIVER = base.IN_TREE

    def setUp(self) -> None:
        super().setUp()
        # libvirt creates the VFs' host side itself; here they must exist.
        pf = self.kernel.pci / 'devices/0000:01:00.0'
        self.kernel.write(f'{pf}/sriov_numvfs', '4')
        self.server = self.boot()
        self.arqs = self.cyborg.of(self.server)

    def devices(self) -> tuple[set[str], set[str]]:
        """The UUIDs of mdevs and the functions of VFs that the guest has."""
        root = etree.fromstring(self.xml_of(self.server))
        addresses = root.findall('.//hostdev/source/address')
        return (
            {each.get('uuid') for each in addresses if each.get('uuid')},
            {
                f'{int(each.get("bus"), 16):02x}.'
                f'{int(each.get("function"), 16)}'
                for each in addresses
                if each.get('bus')
            },
        )

    def expected(self) -> tuple[set[str], set[str]]:
        vf, mdev = self.arqs
        info = vf['attach_handle_info']
        return (
            {mdev['attach_handle_uuid']},
            {f'{info["bus"]}.{info["function"]}'},
        )

    def test_a_hard_reboot_takes_the_devices_over(self) -> None:
        self.assertEqual(self.expected(), self.devices())
        self.assertEqual(1, len(self.node_devices.defined))
        self.restart('compute1')
        # The guest keeps running with its devices.
        self.assertEqual([], self.vans())
        self.assertEqual(1, len(self.node_devices.defined))
        self.assertTrue(self.has_mdev(self.arqs[1]))
        self._reboot_server(self.server, hard=True)
        self.assertEqual(self.arqs, self.assert_plugged(self.server))
        self.assertEqual(self.expected(), self.devices())
        self.assertEqual(set(), self.node_devices.defined)
        self._delete_server(self.server)
        self.assert_released()

    def test_a_guest_that_was_not_taken_over_is_deleted(self) -> None:
        self.restart('compute1')
        self._delete_server(self.server)
        self.assertEqual([], self.vans())
        # As with Nova's own driver, its mdev stays.
        self.assertTrue(self.has_mdev(self.arqs[1]))

    def test_a_definition_that_stays_is_told(self) -> None:
        self.restart('compute1')
        denied = fakelibvirt.make_libvirtError(
            fakelibvirt.libvirtError, 'denied', error_code=1
        )
        with fixtures.MockPatchObject(
            node_devices.NodeDevice, 'undefine', side_effect=denied
        ):
            self._reboot_server(self.server, hard=True)
        self.assert_plugged(self.server)
        (name,) = self.node_devices.defined
        self.assertIn(
            f'virsh nodedev-undefine {name}', self.stdlog.logger.output
        )

    def test_the_way_back(self) -> None:
        self.restart('compute1')
        self._reboot_server(self.server, hard=True)
        self._shelve_server(self.server)
        self.assert_released()
        self.restart('compute1', base.IN_TREE)
        self._unshelve_server(self.server)
        self.arqs = self.cyborg.of(self.server)
        self.assertEqual(self.expected(), self.devices())
        for device in self.hostdevs(self.server):
            self.assertNotIn('ua-acc', device)
        self.assertEqual([], self.vans())
