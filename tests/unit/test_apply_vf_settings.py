# SPDX-License-Identifier: Apache-2.0

"""What the VFs of a NIC have while no network port is set up on them."""

from __future__ import annotations

import errno
import uuid

import applied
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.desired import export
from os_acc.privileged import undo_log
from os_acc.privileged.pci import vfs

PF = '0000:08:00.0'
VFS = ('0000:08:00.1', '0000:08:00.2')
OTHER = '0000:61:00.0'
MACS = ['02:00:00:00:00:0a', '02:00:00:00:00:0b']
SETTINGS = {'vlan': 101, 'vlan_qos': 3, 'spoof_check': False}
FRESH = {
    'mac_address': '00:00:00:00:00:00',
    'vlan': [0, 0],
    'vlan_protocol': 0x8100,
    'trusted': False,
    'spoof_check': True,
}
SET = FRESH | {'vlan': [101, 3], 'spoof_check': False}


@pytest.fixture
def nic(kernel):
    kernel.add_function(
        PF, '8086:1572', 0x020000, 'i40e', totalvfs=4, net='ens8f0'
    )
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return kernel


def apply(settings=SETTINGS, number=2, check=False, pf=PF):
    entry = {'address': pf, 'num_vfs': number}
    if settings:
        entry['vf_settings'] = settings
    document = {'version': 1, 'offered': [entry]}
    return os_acc.apply(document, check=check)


def step(report):
    (found,) = (each for each in report.steps if each.part == 'vfs')
    return found


def with_port(address, **values):
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        handle=objects.PCIHandle(address=address),
        port=objects.PortBinding(**values),
    )


def test_set_with_the_vfs(nic):
    before = nic.snapshot()
    for check in (True, False):
        found = step(apply(check=check))
        assert found.after == (
            '2 VFs, kept, with spoof_check False, vlan [101, 3]'
        )
    assert nic.ports[PF] == [SET, SET]
    writes = list(nic.writes)
    for check in (True, False):
        assert apply(check=check).results() == {'unchanged'}
    assert nic.writes == writes
    found = export.export(os_acc._host)
    assert found['offered'][0]['vf_settings'] == SETTINGS
    assert os_acc.apply(found).results() == {'unchanged'}
    os_acc.apply({'version': 1})
    assert nic.snapshot() == before
    assert undo_log.vfs.names() == []


@pytest.mark.parametrize(
    ('settings', 'expected'),
    [
        ({}, [FRESH, FRESH]),
        ({'trusted': 'yes'}, [FRESH | {'trusted': True}] * 2),
        (
            {'mac_addresses': [each.upper() for each in MACS]},
            [FRESH | {'mac_address': each} for each in MACS],
        ),
    ],
)
def test_other_settings(nic, settings, expected):
    """Nothing of those before is left."""
    apply()
    assert step(apply(settings, check=True)).result == 'would change'
    assert step(apply(settings)).result == 'changed'
    assert nic.ports[PF] == expected
    assert step(apply(settings)).result == 'unchanged'
    apply()
    assert nic.ports[PF] == [SET, SET]


def test_a_release_returns_a_vf_to_them(nic):
    apply()
    guest = devices.instance()
    os_acc.plug(guest, [with_port(VFS[0], vlan=7, spoof_check=True)])
    assert nic.ports[PF] == [FRESH | {'vlan': [7, 0]}, SET]
    os_acc.unplug(guest)
    assert nic.ports[PF] == [SET, SET]


@pytest.mark.parametrize('port', [{}, {'spoof_check': True}])
def test_a_guest_gets_them_whatever_was_changed(nic, port):
    """By somebody else, or by the guest before, if it is trusted."""
    settings = {'trusted': True, 'mac_addresses': MACS, 'vlan': 101}
    apply(settings)
    there = [{**each} for each in nic.ports[PF]]
    guest = devices.instance()
    os_acc.plug(guest, [devices.pci(VFS[0])])
    nic.ports[PF][0] |= {'mac_address': '02:00:00:00:00:ee', 'vlan': [0, 0]}
    os_acc.unplug(guest)
    request = with_port(VFS[0], **port) if port else devices.pci(VFS[0])
    os_acc.plug(guest, [request])
    assert nic.ports[PF] == there
    os_acc.unplug(guest)
    assert nic.ports[PF] == there


def test_a_guest_does_not_get_a_vf_that_cannot_have_them(nic):
    apply()
    nic.ports[PF][0]['vlan'] = [0, 0]
    nic.fail(f'{PF}/vf/0/vlan', errno.EPERM)
    assert 'vlan cannot be set' in str(devices.refused(devices.pci(VFS[0])))


def test_a_guest_without_a_port_has_them(nic):
    """Also if its VF is made for it alone."""
    settings = {'vlan': 9}
    devices.spec({'address': PF, 'num_vfs': 1, 'vf_settings': settings})
    before = nic.snapshot()
    guest = devices.instance()
    os_acc.plug(guest, [devices.pci(VFS[0])])
    assert nic.ports[PF] == [FRESH | {'vlan': [9, 0]}]
    os_acc.unplug(guest)
    assert nic.snapshot() == before


def test_other_settings_wait_for_a_guest(nic):
    apply()
    guest = devices.instance()
    (van,) = os_acc.plug(guest, [with_port(VFS[1], vlan=7)])
    for check in (True, False):
        found = step(apply({'vlan': 5}, check=check))
        assert van.uuid in found.reason
    assert found.result == 'in the way'
    assert nic.ports[PF] == [SET, SET | {'vlan': [7, 0]}]
    os_acc.unplug(guest)
    assert step(os_acc.apply_again()).result == 'changed'
    assert nic.ports[PF] == [FRESH | {'vlan': [5, 0]}] * 2


def test_the_nic_leaves_while_it_is_looked_at(nic, monkeypatch):
    apply()
    look = vfs.settings_of_vfs

    def gone(pf):
        nic.take_off(pf)
        return look(pf)

    monkeypatch.setattr(vfs, 'settings_of_vfs', gone)
    found = step(apply(number=3))
    assert (found.result, 'has none' in found.reason) == ('failed', True)


def test_the_nic_refuses_them(nic):
    """The VFs of before are there again, with their settings."""
    apply()
    nic.fail(f'{PF}/vf/1/trusted', errno.EOPNOTSUPP)
    found = step(apply({'trusted': True}))
    assert found.result == 'failed'
    assert 'trusted cannot be set to True' in found.reason
    assert nic.ports[PF] == [SET, SET]
    assert step(apply()).result == 'unchanged'


def test_vfs_of_others_get_none(nic):
    path = f'{nic.pci}/devices/{PF}'
    nic.write(f'{path}/sriov_drivers_autoprobe', '0')
    nic.write(f'{path}/sriov_numvfs', '2')
    found = step(apply())
    assert found.result == 'in the way'
    assert 'no record of creating them' in found.reason
    assert nic.ports[PF] == [FRESH, FRESH]


def test_after_a_reboot(nic):
    apply()
    guest = devices.instance()
    os_acc.plug(guest, [with_port(VFS[1], vlan=7)])
    nic.reboot()
    os_acc.initialize(reset=True)
    assert nic.ports[PF] == [SET, SET | {'vlan': [7, 0]}]
    os_acc.unplug(guest)
    assert nic.ports[PF] == [SET, SET]
    assert step(apply()).result == 'unchanged'


def test_no_network_card(nic):
    nic.add_function(OTHER, '8086:4940', 0x0B4000, 'qat', totalvfs=2)
    found = step(apply(pf=OTHER))
    assert found.result == 'failed'
    assert 'it is no network card' in found.reason
    assert not any('sriov_numvfs' in path for path, _ in nic.writes)


@pytest.mark.parametrize(
    ('settings', 'number', 'key'),
    [
        ([], 2, 'vf_settings'),
        ({}, 2, 'vf_settings'),
        ({'vlan': 1}, None, 'vf_settings'),
        ({'rate': 1}, 2, 'vf_settings.rate'),
        ({'vlan': 4095}, 2, 'vf_settings.vlan'),
        ({'vlan': True}, 2, 'vf_settings.vlan'),
        ({'vlan': 1, 'vlan_qos': 8}, 2, 'vf_settings.vlan_qos'),
        ({'vlan_qos': 1}, 2, 'vf_settings.vlan_qos'),
        ({'trusted': 'perhaps'}, 2, 'vf_settings.trusted'),
        ({'mac_addresses': MACS}, 3, 'vf_settings.mac_addresses'),
        ({'mac_addresses': MACS[:1] * 2}, 2, 'vf_settings.mac_addresses'),
        (
            {'mac_addresses': ['01:00:00:00:00:01']},
            1,
            'vf_settings.mac_addresses',
        ),
    ],
)
def test_a_wrong_document(nic, settings, number, key):
    entry = {'address': PF, 'vf_settings': settings}
    if number:
        entry['num_vfs'] = number
    with pytest.raises(exception.InvalidRequest) as caught:
        os_acc.apply({'version': 1, 'offered': [entry]})
    assert key in str(caught.value)
    assert nic.writes == []


@pytest.mark.parametrize(
    ('names', 'fits'),
    [
        ({'vendor_id': '8086', 'product_id': '1572'}, False),
        ({'address': '*:08:00.*'}, False),
        ({'devname': 'ens8f0'}, True),
    ],
)
def test_two_pfs_would_have_the_same_mac_addresses(nic, names, fits):
    entry = names | {'num_vfs': 2, 'vf_settings': {'mac_addresses': MACS}}
    document = {'version': 1, 'offered': [entry]}
    if fits:
        assert step(os_acc.apply(document)).result == 'changed'
        return
    with pytest.raises(exception.InvalidRequest, match='several PFs'):
        os_acc.apply(document)


@pytest.mark.timeout(600)
@pytest.mark.parametrize('undone', [False, True])
def test_a_crash_before_each_write(nic, monkeypatch, undone):
    """A restart, or the next apply, finishes what was begun."""
    before = nic.snapshot()

    def act():
        if undone:
            return os_acc.apply({'version': 1})
        return apply({'vlan': 5})

    number, died = 0, True
    while died:
        apply()
        died = applied.dies_at(nic, monkeypatch, number, act)
        os_acc.initialize(reset=True)
        act()
        assert act().results() <= {'unchanged'}, number
        if undone:
            assert nic.snapshot() == before, number
            assert undo_log.vfs.names() == [], number
        else:
            assert nic.ports[PF] == [FRESH | {'vlan': [5, 0]}] * 2, number
        number += 1
    assert number > 5
