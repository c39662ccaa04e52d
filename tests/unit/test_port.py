# SPDX-License-Identifier: Apache-2.0


"""PortBinding: what a request says of its network port."""

from __future__ import annotations

import uuid

import pytest

from os_acc import exception
from os_acc import objects

# As Neutron's SR-IOV mechanism driver binds a port on a VLAN network.
PORT = {
    'id': '9b3ee3c5-6a7e-4a0c-a2a1-0d6a4c1ef001',
    'name': 'fast',
    'mac_address': 'FA:16:3E:12:34:56',
    'port_security_enabled': False,
    'binding:vnic_type': 'direct',
    'binding:vif_type': 'hw_veb',
    'binding:vif_details': {
        'connectivity': 'l2',
        'port_filter': False,
        'vlan': '101',
    },
    'binding:profile': {
        'pci_slot': '0000:08:00.1',
        'pci_vendor_info': '8086:154c',
        'physical_network': 'physnet1',
        'trusted': 'true',
    },
}


def read(**changes) -> objects.PortBinding:
    keys = {key.replace('__', ':'): value for key, value in changes.items()}
    return objects.PortBinding.from_neutron(PORT | keys)


def test_from_neutron():
    made = read()
    assert made == objects.PortBinding(
        mac_address='fa:16:3e:12:34:56',
        vlan=101,
        trusted=True,
        spoof_check=False,
        physical_network='physnet1',
    )
    assert made.settings() == {
        'mac_address': 'fa:16:3e:12:34:56',
        'vlan': [101, 0],
        'trusted': True,
        'spoof_check': False,
    }


def test_what_neutron_does_not_say_stays_as_it_is():
    made = objects.PortBinding.from_neutron(
        {
            'mac_address': PORT['mac_address'],
            'binding:vnic_type': 'accelerator-direct',
            'binding:vif_details': None,
        }
    )
    assert made.settings() == {'mac_address': 'fa:16:3e:12:34:56'}
    assert made.physical_network is None


@pytest.mark.parametrize(
    ('value', 'expected'),
    [(True, True), ('True', True), ('no', False), ('0', False)],
)
def test_trusted_as_nova_reads_it(value, expected):
    assert read(binding__profile={'trusted': value}).trusted is expected


def test_a_port_that_open_vswitch_switches():
    """It has no VLAN, and the switch drops forged frames."""
    made = read(
        binding__vif_details={},
        binding__profile={'capabilities': ['switchdev']},
    )
    assert made.settings() == {'mac_address': 'fa:16:3e:12:34:56'}


@pytest.mark.parametrize(
    'kind', ['direct-physical', 'accelerator-direct-physical']
)
def test_a_port_of_a_whole_pf(kind):
    made = read(binding__vnic_type=kind)
    assert made.settings() == {}
    assert made.physical_network == 'physnet1'


@pytest.mark.parametrize(
    ('changes', 'field', 'value'),
    [
        ({'mac_address': None}, 'mac_address', 'None'),
        ({'mac_address': 'x'}, 'mac_address', "'x'"),
        ({'binding__vnic_type': 'normal'}, 'binding:vnic_type', 'normal'),
        ({'binding__vnic_type': None}, 'binding:vnic_type', 'None'),
        ({'binding__profile': 'x'}, 'binding:profile', "'x'"),
        ({'binding__vif_details': []}, 'binding:vif_details', '[]'),
        (
            {'binding__vif_details': {'vlan': '4095'}},
            'binding:vif_details.vlan',
            '4095',
        ),
        (
            {'binding__vif_details': {'vlan': 'x'}},
            'binding:vif_details.vlan',
            "'x'",
        ),
        (
            {'binding__profile': {'trusted': 'perhaps'}},
            'binding:profile.trusted',
            'perhaps',
        ),
        (
            {'binding__profile': {'physical_network': 'a b'}},
            'binding:profile.physical_network',
            'a b',
        ),
        (
            {'binding__profile': {'capabilities': 5}},
            'binding:profile.capabilities',
            '5',
        ),
        ({'port_security_enabled': 'yes'}, 'port_security_enabled', 'yes'),
    ],
)
def test_a_malformed_port(changes, field, value):
    with pytest.raises(exception.InvalidRequest) as caught:
        read(**changes)
    text = str(caught.value)
    assert text.startswith(f'port {PORT["id"]}: ')
    assert field in text
    assert value in text


def test_no_port_at_all():
    with pytest.raises(exception.InvalidRequest, match='a dict'):
        objects.PortBinding.from_neutron([PORT])


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('mac_address', '00:00:00:00:00:00'),
        ('mac_address', '01:80:c2:00:00:00'),
        ('mac_address', 'fa-16-3e-12-34-56'),
        ('mac_address', 'fa:16:3e:12:34'),
        ('mac_address', 5),
        ('vlan', 4095),
        ('vlan', -1),
        ('vlan', '5'),
        ('vlan', True),
        ('vlan_qos', 8),
        ('trusted', 'true'),
        ('spoof_check', 1),
        ('physical_network', ''),
    ],
)
def test_invalid_values(field, value):
    with pytest.raises(exception.InvalidRequest, match=field):
        objects.PortBinding(**{field: value})


def test_no_vlan_may_be_asked_for():
    assert objects.PortBinding(vlan=0).settings() == {'vlan': [0, 0]}


@pytest.mark.parametrize('vlan', [None, 0])
def test_a_priority_needs_a_vlan(vlan):
    made = objects.PortBinding(vlan_qos=1, vlan=vlan)
    with pytest.raises(exception.InvalidRequest, match='vlan_qos'):
        made.settings()


def test_a_request_with_a_port_is_read_again():
    made = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), port_uuid=PORT['id'], port=read()
    )
    again = objects.AcceleratorRequest.obj_from_primitive(
        made.obj_to_primitive()
    )
    assert again == made
    assert again.port.vlan == 101
    older = made.obj_to_primitive('1.0')['versioned_object.data']
    assert older['uuid'] == made.uuid
    assert not {'port', 'port_uuid'} & set(older)


def test_the_physical_network_of_a_request():
    made = objects.AcceleratorRequest(uuid=str(uuid.uuid4()))
    assert made.physical_network is None
    made.port = objects.PortBinding(physical_network='a')
    assert made.physical_network == 'a'
    made.handle = objects.PCIHandle(
        address='0000:01:00.1', physical_network='a'
    )
    assert made.physical_network == 'a'
    made.port = None
    assert made.physical_network == 'a'
    made.handle = objects.TestHandle(name='x')
    assert made.physical_network is None
