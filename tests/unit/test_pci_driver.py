# SPDX-License-Identifier: Apache-2.0

"""The driver pci, by os_acc's own calls, on a kernel of files."""

from __future__ import annotations

import errno
import threading

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects


@pytest.fixture
def here(kernel):
    """A furnished host; the library initialized; nothing changed at the end,
    unless the test took that upon itself."""
    devices.furnish(kernel)
    before = kernel.snapshot()
    os_acc.initialize()
    yield kernel
    for uuid in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=uuid, name='', project_id=''))
    assert kernel.snapshot() == before


def cause(*requests, instance=None) -> Exception:
    """Plug in vain.

    :returns: why
    """
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance or devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def test_bound_and_given_back(here):
    before = here.snapshot()
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.DISK)])
    assert here.driver_of(devices.DISK) == 'vfio-pci'
    assert (van.driver, van.device) == ('pci', devices.DISK)
    assert van.handle.managed is False
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before
    assert here.resets == []  # VFIO does it


def test_an_override_that_was_there_comes_back(here):
    here.write_file(
        f'sys/bus/pci/devices/{devices.GPU}/driver_override', 'other\n'
    )
    before = here.snapshot()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    os_acc.unplug(instance)
    assert here.snapshot() == before
    here.write(
        str(here.pci / 'devices' / devices.GPU / 'driver_override'), '\n'
    )


def test_one_that_is_bound_to_vfio_stays_bound(here):
    here.bind(devices.GPU, 'vfio-pci')
    before = here.snapshot()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    os_acc.unplug(instance)
    assert here.snapshot() == before
    here.unbind(devices.GPU)


def test_a_variant_driver_is_chosen(here):
    here.add_driver('mlx5_vfio_pci')
    here.aliases(
        'vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci',
        'vfio_pci:v000010DEd00001EB8sv*sd*bc*sc*i* mlx5_vfio_pci',
        'vfio_pci:v000010DEd*sv*sd*bc*sc*i* another',
    )
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    assert here.driver_of(devices.GPU) == 'mlx5_vfio_pci'
    os_acc.unplug(instance)


def test_vfs_are_made_and_removed(here):
    devices.spec({'address': devices.PF, 'num_vfs': 3})
    before = here.snapshot()
    first, second = devices.instance(), devices.instance()
    (van,) = os_acc.plug(first, [devices.pci(devices.VFS[0])])
    assert van.device == devices.PF
    os_acc.plug(second, [devices.pci(devices.VFS[2])])
    assert here.driver_of(devices.VFS[1]) is None
    assert isinstance(
        cause(devices.pci(devices.VFS[3])), exception.DeviceNotFound
    )
    assert 'offers VFs of it only' in str(cause(devices.pci(devices.PF)))
    assert isinstance(cause(devices.pci(devices.VFS[0])), exception.DeviceBusy)
    os_acc.unplug(first)
    assert here.driver_of(devices.VFS[2]) == 'vfio-pci'
    os_acc.unplug(second)
    assert here.snapshot() == before


def test_vfs_that_somebody_uses_stay(here):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.VFS[0])])
    override = here.pci / 'devices' / devices.VFS[1] / 'driver_override'
    here.write(str(override), 'vfio-pci')
    here.bind(devices.VFS[1], 'vfio-pci')
    assert os_acc.unplug(instance) == 1
    assert here.driver_of(devices.VFS[1]) == 'vfio-pci'
    here.set_numvfs(devices.PF, 0)
    probe = here.pci / 'devices' / devices.PF / 'sriov_drivers_autoprobe'
    here.write(str(probe), '1')


def test_a_driver_that_makes_fewer_vfs(here):
    devices.spec({'address': devices.PF, 'num_vfs': 2})
    here.fail('*/sriov_numvfs', errno.ENOMEM)
    err = cause(devices.pci(devices.VFS[0]))
    assert isinstance(err, exception.DeviceError)
    assert 'sriov_numvfs 2' in str(err)
    assert not os_acc.get_vans()


@pytest.mark.parametrize('number', [1, 4])
def test_selected_by_class_and_traits(here, number):
    devices.spec(
        {
            'address': devices.PF,
            'num_vfs': 4,
            'resource_class': 'CUSTOM_QAT',
            'traits': ['CUSTOM_FAST'],
        }
    )
    instance = devices.instance()
    requests = [
        devices.wanted('CUSTOM_QAT', 'CUSTOM_FAST') for _ in range(number)
    ]
    vans = os_acc.plug(instance, requests)
    assert {van.handle.address for van in vans} <= set(devices.VFS)
    assert len({van.handle.address for van in vans}) == number
    (device,) = os_acc.get_devices()
    assert (device.handles_total, device.handles_free) == (4, 4 - number)
    if number == 4:
        err = cause(devices.wanted('CUSTOM_QAT'))
        assert isinstance(err, exception.DeviceNotFound)
    os_acc.unplug(instance)


def test_bound_by_libvirt(here):
    here_before = here.snapshot()
    function = here.pci / 'devices' / devices.NIC
    for name, text in {'reset': '', 'reset_method': 'flr\n'}.items():
        (function / name).write_text(text)
    devices.spec({'address': devices.NIC, 'managed': 'yes'})
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.NIC)])
    assert van.handle.managed is True
    assert 'managed="yes"' in van.guest_config
    assert here.snapshot() == here_before
    os_acc.unplug(instance)
    assert here.resets == [devices.NIC]


def test_the_request_may_say_who_binds(here):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU, managed=True)])
    assert (van.handle.managed, here.driver_of(devices.GPU)) == (True, None)
    os_acc.unplug(instance)
    os_acc.CONF.set_override('bind', 'libvirt', 'os_acc_pci')
    (van,) = os_acc.plug(instance, [devices.pci(devices.GPU, managed=False)])
    assert here.driver_of(devices.GPU) == 'vfio-pci'
    os_acc.unplug(instance)


def test_bound_by_nobody(here):
    os_acc.CONF.set_override('bind', 'none', 'os_acc_pci')
    err = cause(devices.pci(devices.DISK))
    assert 'someone else must bind it' in str(err)
    here.bind(devices.GPU, 'vfio-pci')
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    os_acc.unplug(instance)
    here.unbind(devices.GPU)


USES = {
    'mounted': (
        devices.DISK,
        lambda k: k.write_file(
            'proc/self/mountinfo',
            '36 35 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n',
        ),
        'mounted on /data',
    ),
    'btrfs': (
        devices.DISK,
        lambda k: k.write_file(
            'proc/self/mountinfo',
            '36 35 0:77 / /data rw - btrfs /dev/nvme0n1 rw\n',
        ),
        'mounted on /data',
    ),
    'swap': (
        devices.DISK,
        lambda k: k.write_file(
            'proc/swaps', 'Filename\n/dev/nvme0n1 partition 9 0 -2\n'
        ),
        'swap space',
    ),
    'lvm': (
        devices.DISK,
        lambda k: (
            (k.sys / 'class/block/nvme0n1/holders/dm-0').touch(),
            k.write_file('sys/class/block/dm-0/dm/name', 'vg-root\n'),
        ),
        'dm-0 (vg-root)',
    ),
    'interface up': (
        devices.NIC,
        lambda k: (k.sys / 'class/net/eth0/flags').write_text('0x1003\n'),
        'eth0 is up',
    ),
    'in a bond': (
        devices.NIC,
        lambda k: (k.sys / 'class/net/eth0/master').symlink_to('../bond0'),
        'part of bond0',
    ),
    'has a VLAN': (
        devices.NIC,
        lambda k: (k.sys / 'class/net/eth0/upper_eth0.5').touch(),
        'carries eth0.5',
    ),
    'in another namespace': (
        devices.NIC,
        lambda k: k.leave_namespace('eth0'),
        'another network namespace',
    ),
    'boot display': (
        devices.GPU,
        lambda k: (k.pci / 'devices' / devices.GPU / 'boot_vga').write_text(
            '1\n'
        ),
        'boot display',
    ),
    'foreign member of the group': (
        devices.SHARED,
        lambda k: None,
        devices.SHARED_NIC,
    ),
}


@pytest.mark.parametrize('use', USES)
def test_what_the_host_uses_is_refused(here, use):
    address, do, text = USES[use]
    do(here)
    before = here.snapshot()
    err = cause(devices.pci(address))
    assert isinstance(err, exception.DeviceInUseByHost)
    assert text in str(err)
    assert here.writes == []
    assert here.snapshot() == before
    assert not os_acc.get_vans()


def test_a_group_goes_to_one_guest(here):
    instance = devices.instance()
    both = [devices.pci(devices.SHARED), devices.pci(devices.SHARED_NIC)]
    os_acc.plug(instance, both)
    assert here.driver_of(devices.SHARED_NIC) == 'vfio-pci'
    os_acc.unplug(instance, both[1:])
    os_acc.unplug(instance, both[:1])
    here._bind_free = None
    here.unbind(devices.SHARED_NIC)
    os_acc.plug(instance, both[:1])
    err = cause(devices.pci(devices.SHARED_NIC))
    assert isinstance(err, exception.DeviceBusy)
    assert instance.uuid in str(err)
    os_acc.unplug(instance)
    here.bind(devices.SHARED_NIC, 'e1000e')


def test_held_by_another_guest(here):
    here.bind(devices.GPU, 'vfio-pci')
    pid = here.hold(here.node(devices.GPU))
    before = here.snapshot()
    err = cause(devices.pci(devices.GPU))
    assert isinstance(err, exception.DeviceBusy)
    assert f'process {pid} (qemu)' in str(err)
    assert here.snapshot() == before
    here.end(pid)
    here.unbind(devices.GPU)


def test_claimed_by_a_domain_of_libvirt(here):
    here.write_file(
        'libvirt/g.xml',
        '<domstatus><domain><name>g</name><uuid>u</uuid><devices>'
        '<hostdev type="pci">'
        "<source><address domain='0x0000' bus='0x02' slot='0x00' "
        "function='0x0'/></source></hostdev></devices></domain></domstatus>",
    )
    err = cause(devices.pci(devices.GPU))
    assert 'libvirt domain g' in str(err)
    assert here.writes == []


def test_a_guest_that_has_it_keeps_it(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    pid = here.hold(here.node(devices.GPU))
    with pytest.raises(exception.UnplugException, match=f'process {pid}'):
        os_acc.unplug(instance)
    assert here.driver_of(devices.GPU) == 'vfio-pci'
    here.end(pid)
    assert os_acc.unplug(instance) == 1


def test_what_device_spec_does_not_name(here):
    devices.spec({'vendor_id': '10de'})
    err = cause(devices.pci(devices.DISK))
    assert isinstance(err, exception.DeviceNotFound)
    assert 'device_spec' in str(err)
    assert here.writes == []


def test_no_such_function(here):
    err = cause(devices.pci('0000:7f:00.0'))
    assert isinstance(err, exception.DeviceNotFound)


def test_no_iommu(here):
    here.add_function('0000:09:00.0', group=-1)
    assert 'IOMMU' in str(cause(devices.pci('0000:09:00.0')))
    here.pci.joinpath('devices/0000:09:00.0').unlink()


def test_the_kernel_refuses_the_bind(here):
    here.fail('*/drivers_probe', errno.EINVAL)
    err = cause(devices.pci(devices.DISK))
    assert isinstance(err, exception.DeviceError)
    assert 'drivers_probe' in str(err)
    assert here.driver_of(devices.DISK) == 'nvme'


def test_no_driver_takes_it(here):
    os_acc.CONF.set_override('device_timeout', 0.6, 'os_acc')
    here.add_driver('vfio-pci2')
    here.allowed = lambda address, driver: driver != 'vfio-pci'
    err = cause(devices.pci(devices.GPU))
    assert isinstance(err, exception.Timeout)
    assert 'vfio-pci' in str(err)
    del here.allowed


def test_its_own_driver_does_not_take_it_again(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.DISK)])
    here.fail('*/drivers/nvme/bind', errno.ENODEV)
    with pytest.raises(exception.UnplugException, match='bind'):
        os_acc.unplug(instance)
    (van,) = os_acc.get_vans(instance)
    assert van.state == 'error'
    report = os_acc.recover()
    assert [v.uuid for v in report.released] == [van.uuid]


def test_a_write_that_blocks_ends_at_its_deadline(here):
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    instance = devices.instance()
    go_on = threading.Event()
    here.fail('*/drivers/nvme/unbind', lambda: go_on.wait(30) and None)
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, [devices.pci(devices.DISK)])
    assert isinstance(caught.value.__cause__, exception.Timeout)
    assert 'earlier operation' in str(caught.value.undo_errors[0])
    (van,) = os_acc.get_vans(instance)
    assert van.state == 'error'
    go_on.set()
    os_acc.CONF.set_override('device_timeout', 60.0, 'os_acc')
    assert [v.uuid for v in os_acc.recover().released] == [van.uuid]


def test_after_a_reboot(here):
    devices.spec({'address': devices.PF, 'num_vfs': 2}, {'address': '*'})
    instance = devices.instance()
    requests = [devices.pci(devices.VFS[1]), devices.pci(devices.DISK)]
    os_acc.plug(instance, requests)
    here.reboot()
    report = os_acc.recover()
    assert len(report.restored) == 2
    assert here.driver_of(devices.VFS[1]) == 'vfio-pci'
    assert here.driver_of(devices.DISK) == 'vfio-pci'
    assert os_acc.unplug(instance) == 2


def test_another_device_at_the_address_after_a_reboot(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    here.reboot()
    modalias = here.pci / 'devices' / devices.GPU / 'modalias'
    text = modalias.read_text()
    modalias.write_text(text.replace('d00001EB8', 'd00002235'))
    (failed,) = os_acc.recover().failed
    assert '10de:2235 is at that address' in failed.error
    assert here.driver_of(devices.GPU) is None
    modalias.write_text(text)
    assert len(os_acc.recover().restored) == 1


def test_somebody_else_bound_it_meanwhile(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    here.unbind(devices.GPU)
    here.bind(devices.GPU, 'nvidia')
    assert os_acc.unplug(instance) == 1
    assert here.driver_of(devices.GPU) == 'nvidia'
    here.unbind(devices.GPU)
    override = here.pci / 'devices' / devices.GPU / 'driver_override'
    here.write(str(override), '\n')


def test_cleaning_that_fails_keeps_the_device(here):
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.GPU)])
    for command, text in (
        ('false {address}', 'exit code 1'),
        ('/no/such/command', 'No such file'),
        ('sleep 60', 'killed'),
    ):
        os_acc.CONF.set_override('cleaning_command', command, 'os_acc')
        os_acc.CONF.set_override('cleaning_timeout', 0.2, 'os_acc')
        with pytest.raises(exception.UnplugException, match=text):
            os_acc.unplug(instance)
        assert here.driver_of(devices.GPU) == 'vfio-pci'
    os_acc.CONF.set_override('cleaning_command', '', 'os_acc')


@pytest.mark.parametrize(
    ('address', 'mode', 'resets'),
    [
        (devices.DISK, 'required', [devices.DISK]),
        (devices.DISK, 'auto', []),
        (devices.DISK, 'none', []),
        (devices.GPU, 'required', None),
    ],
)
def test_reset(here, address, mode, resets):
    devices.spec({'address': address, 'reset': mode})
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(address)])
    if resets is None:
        with pytest.raises(exception.UnplugException, match='no reset'):
            os_acc.unplug(instance)
        (here.pci / 'devices' / address / 'reset').touch()
    assert os_acc.unplug(instance) == 1
    assert here.resets == ([address] if mode == 'required' else [])


def test_discovery(here):
    found = {d.address: d for d in os_acc.get_devices() if d.driver == 'pci'}
    assert devices.BRIDGE not in found
    gpu = found[devices.GPU]
    assert (gpu.resource_class, gpu.numa_node) == ('PGPU', 1)
    assert 'CUSTOM_PCI_PRODUCT_1EB8' in gpu.traits
    assert (gpu.handles_total, gpu.handles_free) == (1, 1)
    assert found[devices.DISK].resource_class == 'CUSTOM_PCI_1B36_0010'
    here.write_file(
        'proc/self/mountinfo', '1 1 259:0 / / rw - x /dev/nvme0n1 rw\n'
    )
    found = {d.address: d for d in os_acc.get_devices()}
    assert found[devices.DISK].handles_free == 0


def test_what_no_guest_had_is_not_reset(here):
    """It was never taken from its driver, and the host may be using it."""
    here.fail('*/drivers/nvme/unbind', errno.EBUSY)
    with pytest.raises(exception.PlugException):
        os_acc.plug(devices.instance(), [devices.pci(devices.DISK)])
    assert here.resets == []
    assert os_acc.get_vans() == objects.VANList()
