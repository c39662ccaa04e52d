# SPDX-License-Identifier: Apache-2.0


"""The settings of VFs on a real kernel, by its simulated NIC (netdevsim).

netdevsim has VFs whose settings the kernel keeps and reports, but no PCI
functions. So for os-acc's own calls the PCI bus is one of files, and the PF's
interface in it is the simulated one.
"""

from __future__ import annotations

import errno
import json
import pathlib
import subprocess
import uuid

import pytest
import use

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.privileged.pci import network
from os_acc.privileged.pci import rtnetlink
from os_acc.testing import kernel as kernel_module

BUS = pathlib.Path('/sys/bus/netdevsim')
NUMBER = '77'
PF = '0000:08:00.0'
VFS = ('0000:08:00.1', '0000:08:00.2')
MAC = 'fa:16:3e:00:00:01'
NO_MAC = '00:00:00:00:00:00'


def ip(*arguments: str) -> str:
    return subprocess.run(
        ['ip', *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


@pytest.fixture
def nic():
    """The name of a simulated interface that has two VFs."""
    subprocess.run(['modprobe', 'netdevsim'], check=True, timeout=120)
    (BUS / 'new_device').write_text(f'{NUMBER} 1')
    subprocess.run(['udevadm', 'settle'], check=True, timeout=120)
    device = BUS / f'devices/netdevsim{NUMBER}'
    (device / 'sriov_numvfs').write_text('2')
    (interface,) = (path.name for path in (device / 'net').iterdir())
    yield interface
    (BUS / 'del_device').write_text(NUMBER)


@pytest.fixture
def index(nic) -> int:
    return int(pathlib.Path(f'/sys/class/net/{nic}/ifindex').read_text())


def told(nic: str, number: int = 0) -> dict[str, object]:
    """What iproute2 says of a VF."""
    (link,) = json.loads(ip('-json', '-details', 'link', 'show', nic))
    vf = link['vfinfo_list'][number]
    (vlan,) = vf.get('vlan_list') or [{}]
    return {
        'mac_address': vf.get('mac') or vf['address'],
        'vlan': [vlan.get('vlan', 0), vlan.get('qos', 0)],
        'trusted': vf['trust'],
        'spoof_check': vf['spoofchk'],
    }


def read(index: int, number: int = 0) -> dict[str, object]:
    found = rtnetlink.read_vf(index, number)
    return {name: found[name] for name in rtnetlink.SETTINGS}


def test_each_setting_is_written_and_read(nic, index):
    before = read(index)
    assert before == told(nic)
    other = read(index, 1)
    for name, values in {
        'mac_address': [MAC, NO_MAC],
        'vlan': [[101, 3], [4094, 0], [0, 0]],
        'trusted': [True, False],
        'spoof_check': [True, False],
    }.items():
        for value in values:
            rtnetlink.write_vf(index, 0, name, value)
            assert read(index)[name] == value
            assert told(nic)[name] == value
    assert read(index, 1) == other


def test_the_protocol_of_a_vlan(nic, index):
    ip('link', 'set', nic, 'vf', '1', 'vlan', '5', 'proto', '802.1ad')
    assert rtnetlink.read_vf(index, 1)['vlan_protocol'] == 0x88A8
    rtnetlink.write_vf(index, 1, 'vlan', [6, 0])
    assert rtnetlink.read_vf(index, 1)['vlan_protocol'] == 0x8100


def test_what_the_kernel_refuses(index):
    with pytest.raises(OSError) as caught:
        rtnetlink.write_vf(index, 2, 'mac_address', MAC)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError) as caught:
        rtnetlink.read_vf(index, 2)
    assert caught.value.errno == errno.ENODEV
    with pytest.raises(OSError) as caught:
        rtnetlink.write_vf(1, 0, 'mac_address', MAC)  # the loopback
    assert caught.value.errno == errno.EOPNOTSUPP


@pytest.fixture
def host(tmp_path, monkeypatch, nic, index):
    """A PCI bus of files; the kernel's own VF settings behind it."""
    ours = rtnetlink.read_vf, rtnetlink.write_vf
    made = kernel_module.Kernel(tmp_path / 'host')
    made.add_function(PF, '8086:1572', 0x020000, 'i40e', totalvfs=2, net=nic)
    (made.sys / 'class/net' / nic / 'ifindex').write_text(f'{index}\n')
    with monkeypatch.context() as patch:
        made.install(patch)
        patch.setattr(rtnetlink, 'read_vf', ours[0])
        patch.setattr(rtnetlink, 'write_vf', ours[1])
        spec = {'address': PF, 'num_vfs': 2, 'trusted': 'true'}
        use.configure(tmp_path / 'state', [spec])
        yield made
        use.close()


def request(address: str) -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        handle=objects.PCIHandle(address=address),
        port=objects.PortBinding(
            mac_address=MAC,
            vlan=101,
            vlan_qos=3,
            trusted=True,
            spoof_check=True,
        ),
    )


def test_plugged_and_released(host, nic):
    before = [told(nic, number) for number in (0, 1)]
    instance = use.instance()
    os_acc.plug(instance, [request(VFS[1])])
    assert told(nic, 1) == {
        'mac_address': MAC,
        'vlan': [101, 3],
        'trusted': True,
        'spoof_check': True,
    }
    assert told(nic, 0) == before[0]
    assert os_acc.unplug(instance) == 1
    assert [told(nic, number) for number in (0, 1)] == before


def test_what_was_set_before_comes_back(host, nic):
    ip('link', 'set', nic, 'vf', '0', 'mac', '02:11:22:33:44:55')
    ip('link', 'set', nic, 'vf', '0', 'vlan', '9', 'qos', '1')
    before = told(nic)
    instance = use.instance()
    os_acc.plug(instance, [request(VFS[0])])
    assert told(nic)['mac_address'] == MAC
    os_acc.unplug(instance)
    assert told(nic) == before


def test_a_vlan_that_could_not_be_restored(host, nic):
    ip('link', 'set', nic, 'vf', '0', 'vlan', '9', 'proto', '802.1ad')
    before = told(nic)
    with pytest.raises(exception.PlugException, match='0x88a8') as caught:
        os_acc.plug(use.instance(), [request(VFS[0])])
    assert caught.value.undo_errors == []
    assert told(nic) == before


def test_the_interface_goes_away(host, nic):
    instance = use.instance()
    os_acc.plug(instance, [request(VFS[0])])
    assert network.read_port(VFS[0], 10.0)['mac_address'] == MAC
    net = host.pci / 'devices' / PF / 'net'
    net.rename(net.with_name('net.away'))
    assert os_acc.unplug(instance) == 1
    assert told(nic)['mac_address'] == MAC
