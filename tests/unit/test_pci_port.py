# SPDX-License-Identifier: Apache-2.0


"""Network ports on VFs of NICs, by os-acc's own calls, on a kernel of files.

The kernel's part of rtnetlink is a fake here. tests/lab has the real one.
"""

from __future__ import annotations

import errno
import json
import logging
import uuid

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.privileged.pci import network as privileged
from os_acc.privileged.pci import vfs as privileged_vfs
from os_acc.testing import mortal

PF = '0000:08:00.0'
VFS = ('0000:08:00.1', '0000:08:00.2')
OTHER_PF = '0000:09:00.0'
OTHER_VF = '0000:09:00.1'
MAC = 'fa:16:3e:00:00:01'
NO_MAC = '00:00:00:00:00:00'
FRESH = {
    'mac_address': NO_MAC,
    'vlan': [0, 0],
    'vlan_protocol': 0x8100,
    'trusted': False,
    'spoof_check': True,
}
SET = FRESH | {
    'mac_address': MAC,
    'vlan': [101, 3],
    'trusted': True,
    'spoof_check': False,
}
SPECS = (
    {
        'address': PF,
        'num_vfs': 2,
        'physical_network': 'physnet1',
        'trusted': 'true',
    },
    {'address': OTHER_PF, 'num_vfs': 1, 'physical_network': 'physnet2'},
)


@pytest.fixture
def nics(kernel):
    """Two NICs without VFs; nothing is changed at the end."""
    kernel.add_function(
        PF, '8086:1572', 0x020000, 'i40e', totalvfs=2, net='ens8f0'
    )
    kernel.add_function(
        OTHER_PF, '8086:1572', 0x020000, 'i40e', totalvfs=1, net='ens9f0'
    )
    devices.spec(*SPECS)
    kernel.reboot()
    before = kernel.snapshot()
    os_acc.initialize()
    yield kernel
    for each in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=each, name='', project_id=''))
    assert kernel.snapshot() == before


@pytest.fixture
def kept(kernel, nics):
    """VFs that an administrator has made, and that outlive the VANs."""
    path = kernel.pci / 'devices' / PF
    kernel.write(f'{path}/sriov_drivers_autoprobe', '0')
    kernel.write(f'{path}/sriov_numvfs', '2')
    kernel.writes.clear()
    yield kernel
    for each in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=each, name='', project_id=''))
    kernel.write(f'{path}/sriov_numvfs', '0')
    kernel.write(f'{path}/sriov_drivers_autoprobe', '1')


def binding(**values) -> objects.PortBinding:
    return objects.PortBinding(
        **{
            'mac_address': MAC,
            'vlan': 101,
            'vlan_qos': 3,
            'trusted': True,
            'spoof_check': False,
            'physical_network': 'physnet1',
        }
        | values
    )


def request(
    address: str | None = None, **values
) -> objects.AcceleratorRequest:
    made = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        resource_class='SRIOV_NET_VF',
        port=binding(**values),
    )
    if address is not None:
        made.handle = objects.PCIHandle(address=address)
    return made


def cause(*requests) -> Exception:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def index(kernel, name: str) -> str:
    """The first write to a file of that name, by its place in the order."""
    return [path.rpartition('/')[2] for path, _ in kernel.writes].index(name)


# --- set and restored


def test_set_on_the_pf_and_restored(kept, caplog):
    before = kept.snapshot()
    instance, wanted = devices.instance(), request(VFS[1])
    wanted.port_uuid = str(uuid.uuid4())
    with caplog.at_level(logging.INFO):
        (van,) = os_acc.plug(instance, [wanted])
    said = f'VF {VFS[1]} serves port {wanted.port_uuid}: its PF has set '
    (line,) = (each for each in caplog.messages if said in each)
    assert f'[van: {van.uuid}]' in line
    assert MAC in line
    assert kept.ports[PF] == [FRESH, SET]
    assert van.handle.physical_network == 'physnet1'
    assert 'representor' not in van.driver_data
    kept.writes.clear()
    assert os_acc.unplug(instance) == 1
    assert kept.snapshot() == before
    # A trusted VF is no longer trusted when it gets another MAC address.
    assert index(kept, 'trusted') < index(kept, 'mac_address')


def test_what_was_there_comes_back(kept):
    """What an administrator has set."""
    theirs = {
        'mac_address': '02:11:22:33:44:55',
        'vlan': [7, 1],
        'vlan_protocol': 0x8100,
        'trusted': True,
        'spoof_check': False,
    }
    kept.ports[PF][0] = dict(theirs)
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0], trusted=False, spoof_check=True)])
    assert kept.ports[PF][0]['trusted'] is False
    os_acc.unplug(instance)
    assert kept.ports[PF][0] == theirs


def test_only_what_the_port_says_is_set(kept):
    instance = devices.instance()
    os_acc.plug(
        instance,
        [
            objects.AcceleratorRequest(
                uuid=str(uuid.uuid4()),
                handle=objects.PCIHandle(address=VFS[0]),
                port=objects.PortBinding(vlan=9),
            )
        ],
    )
    assert kept.ports[PF][0] == FRESH | {'vlan': [9, 0]}
    assert [path for path, _ in kept.writes if '/vf/' in path] == [
        f'{PF}/vf/0/vlan'
    ]


def test_a_request_without_a_port_touches_no_port(kept, monkeypatch):
    monkeypatch.setattr(
        privileged, 'read_port', lambda *args: pytest.fail('not needed')
    )
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(VFS[0])])
    os_acc.unplug(instance)
    assert not any('/vf/' in path for path, _ in kept.writes)


@pytest.mark.parametrize('managed', ['yes', 'no'])
def test_whoever_binds_the_vf(kept, managed):
    bind = 'libvirt' if managed == 'yes' else 'os-acc'
    devices.spec(SPECS[0] | {'bind': bind})
    before = kept.snapshot()
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [request(VFS[0])])
    assert van.handle.managed is (managed == 'yes')
    assert kept.ports[PF][0] == SET
    os_acc.unplug(instance)
    assert kept.snapshot() == before


def test_it_is_restored_before_the_hosts_driver_binds_the_vf(kept):
    path = kept.pci / 'devices' / PF
    kept.write(f'{path}/sriov_drivers_autoprobe', '1')
    kept.native[VFS[0]] = 'iavf'
    kept.add_driver('iavf')
    kept.bind(VFS[0], 'iavf')
    kept.add_net((kept.pci / 'devices' / VFS[0]).resolve(), 'ens8f0v0')
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0])])
    kept.writes.clear()
    os_acc.unplug(instance)
    assert kept.driver_of(VFS[0]) == 'iavf'
    assert index(kept, 'mac_address') < index(kept, 'bind')
    (kept.sys / 'class/net/ens8f0v0').unlink()
    kept.write(f'{path}/sriov_drivers_autoprobe', '0')


def test_a_driver_that_takes_no_zeros(kept):
    """Then the MAC address is what libvirt sets in this case."""
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0])])
    kept.fail(f'{PF}/vf/0/mac_address', errno.EINVAL)
    os_acc.unplug(instance)
    assert kept.ports[PF][0] == FRESH | {'mac_address': '02:00:00:00:00:00'}


def test_a_vf_that_has_not_come_up_yet(kept):
    for number in (errno.EAGAIN, errno.EBUSY):
        kept.fail(f'{PF}/vf/0/mac_address', number)
    os_acc.plug(devices.instance(), [request(VFS[0])])
    assert kept.ports[PF][0] == SET


def test_a_vf_that_never_comes_up(kept):
    os_acc.CONF.set_override('device_timeout', 0.4, 'os_acc')
    for _ in range(100):
        kept.fail(f'{PF}/vf/0/mac_address', errno.EAGAIN)
    err = cause(request(VFS[0]))
    assert isinstance(err, exception.DeviceError)
    assert 'mac_address cannot be set to fa:16:3e' in str(err)


def test_what_somebody_else_has_set_since_stays(kept, caplog):
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0])])
    kept.ports[PF][0]['vlan'] = [55, 0]
    with caplog.at_level(logging.WARNING):
        os_acc.unplug(instance)
    assert kept.ports[PF][0] == FRESH | {'vlan': [55, 0]}
    assert 'vlan was set to [55, 0] by somebody else' in caplog.text


def test_the_pfs_interface_is_gone(kept, caplog):
    """The settings stay, and the log says so. The device is released."""
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0])])
    net = kept.pci / 'devices' / PF / 'net'
    net.rename(net.with_name('net.away'))
    with caplog.at_level(logging.WARNING):
        assert os_acc.unplug(instance) == 1
    assert f'VF {VFS[0]} keeps the settings of its last guest' in caplog.text
    assert MAC in caplog.text
    assert kept.ports[PF][0] == SET
    net.with_name('net.away').rename(net)


def test_the_vfs_are_gone(kept):
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0])])
    kept.unbind(VFS[0])
    kept.set_numvfs(PF, 0)
    assert os_acc.unplug(instance) == 1


def test_what_cannot_be_restored_keeps_the_device(kept):
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0])])
    kept.fail(f'{PF}/vf/0/trusted', errno.EIO)
    with pytest.raises(exception.UnplugException, match='trusted cannot be'):
        os_acc.unplug(instance)
    (van,) = os_acc.get_vans(instance)
    assert van.state == 'error'
    assert [each.uuid for each in os_acc.recover().released] == [van.uuid]
    assert kept.ports[PF][0] == FRESH


def test_a_repeated_plug_must_ask_for_the_same(kept):
    instance, first = devices.instance(), request(VFS[0])
    os_acc.plug(instance, [first])
    kept.writes.clear()
    os_acc.plug(instance, [first])
    assert kept.writes == []
    first.port = binding(vlan=102)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, [first])
    assert isinstance(caught.value.__cause__, exception.InvalidRequest)
    assert 'port is PortBinding' in str(caught.value)


# --- crashes


@pytest.mark.parametrize('after', [False, True])
@pytest.mark.parametrize('undo', [False, True])
def test_a_crash_at_every_write(kept, monkeypatch, after, undo):
    """Whatever was done of plug or unplug, recover() undoes it."""
    before = kept.snapshot()
    number, died = 0, True
    while died:
        instance = devices.instance()
        if undo:
            os_acc.plug(instance, [request(VFS[0])])
        kept.crash_at(number, after)
        died = False
        try:
            if undo:
                os_acc.unplug(instance)
            else:
                os_acc.plug(instance, [request(VFS[0])])
        except mortal.Crash:
            died = True
        except (exception.PlugException, exception.UnplugException):
            died = kept.dead
        kept.revive()
        os_acc.initialize(reset=True)
        if not died:
            os_acc.unplug(instance)
        assert os_acc.get_vans() == objects.VANList()
        assert kept.snapshot() == before, f'after write {number}'
        number += 1
    # Two writes bind the VF or give it back, and four set up its port.
    assert number == 7


def test_after_a_reboot(nics):
    """The VFs are new, so what they have now is what comes back."""
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [request(VFS[1])])
    first = json.loads(van.driver_data['port'])
    assert nics.ports[PF][1] == SET
    nics.reboot()
    assert nics.ports[PF] == []
    assert len(os_acc.recover().restored) == 1
    assert nics.ports[PF] == [FRESH, SET]
    (van,) = os_acc.get_vans(instance)
    second = json.loads(van.driver_data['port'])
    assert second['before'] == first['before']
    assert second['boot'] != first['boot']


def test_released_after_a_reboot(kept):
    """What a VF has after a reboot is not os-acc's."""
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0])])
    kept.reboot()
    path = kept.pci / 'devices' / PF
    kept.write(f'{path}/sriov_drivers_autoprobe', '0')
    kept.write(f'{path}/sriov_numvfs', '2')
    # By chance the same as the last guest had.
    kept.ports[PF][0]['spoof_check'] = False
    kept.writes.clear()
    os_acc.unplug(instance)
    assert not any('/vf/' in path for path, _ in kept.writes)


# --- which VF


def test_chosen_by_physical_network(nics):
    instance = devices.instance()
    (van,) = os_acc.plug(
        instance,
        [request(physical_network='physnet2', trusted=None)],
    )
    assert van.handle.address == OTHER_VF
    assert van.handle.physical_network == 'physnet2'
    assert nics.ports[PF] == []
    err = cause(request(physical_network='physnet2', trusted=None))
    assert isinstance(err, exception.DeviceNotFound)
    assert 'on physical network physnet2' in str(err)


def test_no_vf_on_the_network(nics):
    err = cause(request(physical_network='physnet3'))
    assert isinstance(err, exception.DeviceNotFound)
    assert 'on physical network physnet3, which may be trusted' in str(err)
    assert nics.writes == []


def test_a_trusted_port_gets_a_device_that_may_be_trusted(nics):
    instance = devices.instance()
    vans = os_acc.plug(
        instance, [request(physical_network=None) for _ in range(2)]
    )
    assert {van.device for van in vans} == {PF}
    err = cause(request(physical_network=None))
    assert 'which may be trusted' in str(err)


@pytest.mark.parametrize('exists', [False, True])
def test_a_given_vf_on_another_network(nics, exists):
    if exists:
        os_acc.plug(devices.instance(), [devices.pci(VFS[0])])
    nics.writes.clear()
    err = cause(request(VFS[1], physical_network='physnet2'))
    assert isinstance(err, exception.DeviceNotFound)
    assert VFS[1] in str(err)
    assert 'has the physical network physnet1' in str(err)
    assert 'the request wants physnet2' in str(err)
    assert nics.writes == []


def test_an_arq_with_another_network(nics):
    wanted = devices.pci(VFS[0], physical_network='physnet2')
    assert 'the request wants physnet2' in str(cause(wanted))
    devices.spec({'address': PF, 'num_vfs': 2})
    assert 'physical network (none)' in str(cause(wanted))


def test_a_given_vf_that_may_not_be_trusted(nics):
    err = cause(request(OTHER_VF, physical_network=None))
    assert isinstance(err, exception.DeviceNotFound)
    assert 'does not have trusted' in str(err)
    assert nics.writes == []


def test_port_and_handle_contradict_each_other(nics):
    wanted = request(physical_network='physnet1')
    wanted.handle = objects.PCIHandle(
        address=VFS[0], physical_network='physnet2'
    )
    with pytest.raises(exception.InvalidRequest) as caught:
        os_acc.plug(devices.instance(), [wanted])
    for text in ('port.physical_network', 'physnet1', 'physnet2'):
        assert text in str(caught.value)


def test_a_priority_without_a_vlan(nics):
    with pytest.raises(exception.InvalidRequest, match='vlan_qos'):
        os_acc.plug(devices.instance(), [request(VFS[0], vlan=None)])


def test_a_driver_that_sets_up_no_ports(nics):
    wanted = request()
    wanted.resource_class, wanted.driver = None, 'mdev'
    with pytest.raises(exception.InvalidRequest, match='does not set up'):
        os_acc.plug(devices.instance(), [wanted])


# --- functions that have no such settings


def test_no_vf_of_a_nic(nics):
    nics.add_function(devices.PF, '8086:4940', 0x0B4000, 'qat', totalvfs=1)
    nics.add_function('0000:07:00.0', '8086:10d3', 0x020000)
    devices.spec(
        {'address': devices.PF, 'num_vfs': 1, 'trusted': True},
        {'address': '0000:07:00.0', 'trusted': True},
    )
    for address in (devices.VFS[0], '0000:07:00.0'):
        err = cause(request(address, physical_network=None))
        assert isinstance(err, exception.DeviceError)
        assert f'PCI function {address}' in str(err)
        assert 'it is not a VF of a NIC' in str(err)
    for address in (devices.PF, '0000:07:00.0'):
        (nics.pci / 'devices' / address).unlink()


def test_a_pf_with_two_ports(nics):
    """As mlx4: it is unknown which of them a VF uses."""
    nics.add_net((nics.pci / 'devices' / PF).resolve(), 'ens8f0d1')
    err = cause(request(VFS[0]))
    assert isinstance(err, exception.DeviceError)
    assert 'it has 2 network interfaces (ens8f0, ens8f0d1)' in str(err)
    (nics.sys / 'class/net/ens8f0d1').unlink()


def test_a_pf_without_an_interface(nics):
    net = nics.pci / 'devices' / PF / 'net'
    net.rename(net.with_name('net.away'))
    nics.ports[PF] = []
    err = cause(request(VFS[0]))
    assert isinstance(err, exception.DeviceNotFound)
    assert f'the network interface of PF {PF}' in str(err)
    net.with_name('net.away').rename(net)


def test_a_driver_that_does_not_tell(kept):
    """It could not be restored, so it is not set."""
    kept.ports[PF][0]['trusted'] = None
    err = cause(request(VFS[0]))
    assert isinstance(err, exception.DeviceError)
    assert 'does not report trusted' in str(err)
    assert not any('/vf/' in path for path, _ in kept.writes)
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0], trusted=None)])
    os_acc.unplug(instance)
    assert kept.ports[PF][0] == FRESH | {'trusted': None}
    kept.ports[PF][0]['trusted'] = False


def test_a_vlan_of_another_protocol(kept):
    kept.ports[PF][0] |= {'vlan': [5, 0], 'vlan_protocol': 0x88A8}
    assert '0x88a8' in str(cause(request(VFS[0])))
    assert kept.ports[PF][0]['mac_address'] == NO_MAC


def test_a_driver_that_refuses(kept):
    before = kept.snapshot()
    kept.fail(f'{PF}/vf/0/spoof_check', errno.EOPNOTSUPP)
    err = cause(request(VFS[0]))
    assert isinstance(err, exception.DeviceError)
    assert f'VF 0 of PF {PF} (ens8f0)' in str(err)
    assert 'spoof_check cannot be set to False' in str(err)
    assert kept.snapshot() == before


def test_a_driver_that_does_something_else(kept, monkeypatch):
    write_vf = kept.write_vf

    def ignore_the_vlan(interface, number, name, value):
        if name != 'vlan':
            write_vf(interface, number, name, value)

    monkeypatch.setattr(
        'os_acc.privileged.pci.rtnetlink.write_vf', ignore_the_vlan
    )
    err = cause(request(VFS[0]))
    assert 'vlan is [0, 0] after it was set to [101, 3]' in str(err)


# --- switchdev


@pytest.fixture
def switchdev(kept):
    """The PF's interface is the uplink; each VF has a representor."""
    directory = (kept.pci / 'devices' / PF).resolve()

    def add(name, **files):
        if not (directory / 'net' / name).exists():
            kept.add_net(directory, name)
        for file, text in files.items():
            (directory / 'net' / name / file).write_text(f'{text}\n')

    add('ens8f0', phys_switch_id='b8cef6', phys_port_name='p0')
    add('eth7', phys_switch_id='b8cef6', phys_port_name='pf0vf0')
    add('eth8', phys_switch_id='b8cef6', phys_port_name='c0pf0vf1')
    add('eth9', phys_switch_id='b8cef6', phys_port_name='pf1vf0')
    add('sf1', phys_switch_id='b8cef6', phys_port_name='pf0sf1')
    other = kept.pci / 'devices' / OTHER_PF / 'net/ens9f0'
    (other / 'phys_switch_id').write_text('aaaaaa\n')
    (other / 'phys_port_name').write_text('pf0vf1\n')
    yield kept
    for name in ('eth7', 'eth8', 'eth9', 'sf1'):
        (kept.sys / 'class/net' / name).unlink()


def test_the_representor(switchdev):
    instance = devices.instance()
    first, second = os_acc.plug(
        instance, [request(VFS[0]), devices.pci(VFS[1])]
    )
    assert first.driver_data['representor'] == 'eth7'
    # Also without a port: os-vif needs it to connect the VF.
    assert second.driver_data['representor'] == 'eth8'
    assert switchdev.ports[PF][0] == SET
    os_acc.unplug(instance)


# --- what root checks by itself

GOOD = {'mac_address': MAC}


@pytest.mark.parametrize(
    'wanted',
    [
        {'mac_address': NO_MAC},
        {'mac_address': '01:00:5e:00:00:01'},
        {'mac_address': 'FA:16:3E:00:00:01'},
        {'mac_address': f'{MAC}\n'},
        {'mac_address': 7},
        {'vlan': [4095, 0]},
        {'vlan': [-1, 0]},
        {'vlan': [1, 8]},
        {'vlan': [True, 0]},
        {'vlan': 5},
        {'vlan': [5]},
        {'trusted': 1},
        {'spoof_check': 'no'},
        {'rate': 5},
        [],
    ],
)
def test_invalid_values_are_refused_as_root(kept, wanted):
    with pytest.raises(exception.InvalidRequest):
        privileged.set_port(VFS[0], wanted, 1.0)
    with pytest.raises(exception.InvalidRequest):
        privileged.restore_port(VFS[0], wanted, 1.0)
    assert kept.writes == []


@pytest.mark.parametrize('address', ['0000:08:00.9', '../..', 5, None])
def test_invalid_addresses_are_refused_as_root(kept, address):
    for act in (
        lambda: privileged.set_port(address, GOOD, 1.0),
        lambda: privileged.restore_port(address, GOOD, 1.0),
        lambda: privileged.read_port(address, 1.0),
    ):
        with pytest.raises(exception.InvalidRequest):
            act()
    assert kept.writes == []


def test_only_what_device_spec_names(kept):
    devices.spec({'address': OTHER_PF})
    for act in (
        lambda: privileged.set_port(VFS[0], GOOD, 1.0),
        lambda: privileged.read_port(VFS[0], 1.0),
    ):
        with pytest.raises(exception.DeviceNotFound):
            act()
    assert kept.writes == []


def test_a_vf_that_the_host_uses(kept):
    """Its interface is up on the host: nobody may change its MAC address."""
    directory = (kept.pci / 'devices' / VFS[0]).resolve()
    kept.bind(VFS[0], 'i40e')
    kept.add_net(directory, 'ens8f0v0')
    (directory / 'net/ens8f0v0/flags').write_text('0x1003\n')
    with pytest.raises(exception.DeviceInUseByHost, match='ens8f0v0'):
        privileged.set_port(VFS[0], GOOD, 1.0)
    assert kept.ports[PF][0] == FRESH
    (kept.sys / 'class/net/ens8f0v0').unlink()
    kept.unbind(VFS[0])


def test_a_vf_that_a_guest_has_open(kept):
    """Whoever asks: a running guest keeps its MAC address."""
    privileged.set_port(VFS[0], GOOD, 1.0)
    kept.bind(VFS[0], 'vfio-pci')
    pid = kept.hold(kept.node(VFS[0]))
    for act in (
        lambda: privileged.set_port(VFS[0], {'vlan': [7, 0]}, 1.0),
        lambda: privileged.restore_port(VFS[0], GOOD, 1.0),
    ):
        with pytest.raises(exception.DeviceBusy, match=f'process {pid}'):
            act()
    assert kept.ports[PF][0] == FRESH | GOOD
    kept.end(pid)
    kept.unbind(VFS[0])
    assert privileged.restore_port(VFS[0], GOOD, 1.0) == []
    assert kept.ports[PF][0] == FRESH


@pytest.fixture
def shared(kept):
    """The VF shares its IOMMU group with another function."""
    group = kept.group_of(VFS[0])
    other = kept.add_function('0000:0b:00.0', '8086:10d3', 0x020000)
    members = kept.sys / f'kernel/iommu_groups/{group}/devices'
    (members / other.name).symlink_to(other)
    kept.bind(VFS[0], 'vfio-pci')
    yield kept
    kept.unbind(VFS[0])
    (members / other.name).unlink()
    (kept.pci / 'devices' / other.name).unlink()


def test_a_vf_of_a_shared_group_that_a_guest_has_open(shared):
    pid = shared.hold(shared.node(VFS[0]))
    shared.open_function(pid, VFS[0])
    with pytest.raises(exception.DeviceBusy, match=f'process {pid}'):
        privileged.set_port(VFS[0], {'spoof_check': False}, 1.0)
    assert shared.ports[PF][0] == FRESH
    shared.end(pid)


def test_a_vf_whose_group_a_guest_has_open_for_another(shared):
    pid = shared.hold(shared.node(VFS[0]))
    shared.open_function(pid, '0000:0b:00.0')
    privileged.set_port(VFS[0], GOOD, 1.0)
    assert shared.ports[PF][0] == FRESH | GOOD
    assert privileged.restore_port(VFS[0], GOOD, 1.0) == []
    assert shared.ports[PF][0] == FRESH
    shared.end(pid)


def test_root_trusts_no_vf_that_device_spec_does_not(kept):
    devices.spec({'address': PF})
    with pytest.raises(exception.InvalidRequest, match='device_spec'):
        privileged.set_port(VFS[0], {'trusted': True}, 1.0)
    assert kept.ports[PF][0] == FRESH


# --- root's own record of the earlier settings


def test_what_was_before_may_be_what_no_port_has(kept):
    """An InfiniBand port's address, for example, looks like a group's."""
    kept.ports[PF][0]['mac_address'] = '81:00:00:00:00:01'
    privileged.set_port(VFS[0], GOOD, 1.0)
    assert kept.ports[PF][0]['mac_address'] == MAC
    assert privileged.restore_port(VFS[0], {}, 1.0) == []
    assert kept.ports[PF][0]['mac_address'] == '81:00:00:00:00:01'


# --- the entry is removed while a guest has the VF


def test_a_trusted_vf_comes_back_after_a_denial(nics):
    instance = devices.instance()
    os_acc.plug(instance, [request(VFS[0])])
    devices.spec()
    nics.reboot()
    report = os_acc.recover()
    assert report.failed == []
    assert len(report.restored) == 1
    assert nics.ports[PF][0]['trusted'] is True
    assert os_acc.unplug(instance) == 1


@pytest.mark.parametrize('plugged', [True, False])
def test_only_a_vf_that_was_trusted_stays_so(nics, plugged):
    wanted = {'trusted': True}
    if plugged:
        os_acc.plug(devices.instance(), [request(VFS[0], trusted=False)])
        devices.spec()
        expected = exception.InvalidRequest
    else:
        privileged_vfs.create_vfs(PF, 2, 5.0)
        privileged.set_port(VFS[0], wanted, 5.0)
        privileged.restore_port(VFS[0], wanted, 5.0)
        devices.spec({'address': PF, 'deny': True})
        expected = exception.DeviceNotFound
    with pytest.raises(expected, match='device_spec'):
        privileged.set_port(VFS[0], wanted, 5.0)
    if not plugged:
        assert privileged_vfs.remove_vfs(PF, 5.0) == []


def test_only_what_root_has_set_is_restored(kept):
    """What the caller says of it changes nothing."""
    kept.ports[PF][0]['vlan'] = [7, 0]
    assert privileged.restore_port(
        VFS[0], {'vlan': [7, 0], 'spoof_check': False}, 1.0
    ) == ['vlan is [7, 0], and os-acc has no record that it has set it']
    privileged.set_port(VFS[0], GOOD, 1.0)
    assert privileged.restore_port(VFS[0], {'vlan': [7, 0]}, 1.0) == []
    assert kept.ports[PF][0] == FRESH | {'vlan': [7, 0]}
    assert not any(path.endswith('/vlan') for path, _ in kept.writes)


def test_the_record_keeps_what_was_there_first(kept):
    """A caller that has died did not restore the first port."""
    privileged.set_port(VFS[0], {'vlan': [5, 0], 'spoof_check': False}, 1.0)
    privileged.set_port(VFS[0], {'vlan': [6, 0], **GOOD}, 1.0)
    assert privileged.restore_port(VFS[0], {}, 1.0) == []
    assert kept.ports[PF][0] == FRESH
    # Nothing is left to restore.
    kept.ports[PF][0]['vlan'] = [6, 0]
    assert privileged.restore_port(VFS[0], {}, 1.0) == []
    assert kept.ports[PF][0] == FRESH | {'vlan': [6, 0]}


def test_what_somebody_else_has_set_between_two_ports(kept):
    privileged.set_port(VFS[0], {'vlan': [5, 0]}, 1.0)
    kept.ports[PF][0]['vlan'] = [9, 0]
    privileged.set_port(VFS[0], {'vlan': [6, 0]}, 1.0)
    assert privileged.restore_port(VFS[0], {}, 1.0) == []
    assert kept.ports[PF][0] == FRESH | {'vlan': [9, 0]}


def test_a_trusted_vf_that_device_spec_no_longer_trusts(kept):
    """An administrator has trusted it before."""
    kept.ports[PF][0]['trusted'] = True
    privileged.set_port(VFS[0], {'trusted': False}, 1.0)
    devices.spec()
    assert privileged.restore_port(VFS[0], {}, 1.0) == []
    assert kept.ports[PF][0] == FRESH | {'trusted': True}


def test_removed_vfs_leave_no_record(nics):
    privileged_vfs.create_vfs(PF, 2, 5.0)
    privileged.set_port(VFS[0], {'vlan': [5, 0]}, 1.0)
    assert privileged.ports.read(VFS[0]) is not None
    assert privileged_vfs.remove_vfs(PF, 5.0) == []
    assert privileged.ports.read(VFS[0]) is None
